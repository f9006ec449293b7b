// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"maps"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// checkOthers returns a note about each ENI that an operator or another program has attached, and whose addresses no
// new pod gets. This is a fault only if the ENI is meant to serve pods. The check also names ENIs that an operator
// drains, but not those that a process has begun to delete.
func (p *Node) checkOthers(context.Context) ([]Finding, error) {
	var found []Finding
	for _, id := range slices.Sorted(maps.Keys(p.state.ENIs)) {
		e := p.state.ENIs[id]
		if e.Draining {
			continue // checkAgreement has a finding about the ENI
		}
		if e.Retired {
			found = append(found, Finding{Severity: note, About: id,
				Means: "an operator drains this ENI (drain-interface), so no new pod gets its addresses. When " +
					"its last pod has ended, registry-gc deletes the ENI, if this node has created it and " +
					"provision is full",
				Do: "to give its addresses to new pods again, run: " + cli.Name + " drain-interface --undo " + id})
		} else if why := p.conflists.Misfit(e); why != "" {
			found = append(found, Finding{Severity: note, About: id,
				Means: "an operator or another program has attached this ENI, and no new pod gets its addresses: " +
					why,
				Do: "if the ENI is for pods, give it the security groups of secGroupIds (aws ec2 " +
					"modify-network-interface-attribute --groups), then run " + cli.Name +
					" registry-gc --free-after=15m. Or add the tag " + book.TagPool +
					"=default, which the node reads when it boots"})
		}
	}
	return found, nil
}
