// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// checkAgreement makes the same comparison as status --diff.
func (p *Node) checkAgreement(ctx context.Context) ([]Finding, error) {
	k, err := p.compare(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	silent := func(who string, w view.Source) {
		if !w.Answered {
			found = append(found, Finding{Severity: warning, About: who,
				Means: "no answer, so doctor has left this source out of the comparison",
				Do:    "look at the messages of the command that made this check: a warning says why no answer came"})
		}
	}
	silent("metadata service", k.Metadata)
	silent("EC2", k.EC2)
	for _, f := range k.Findings() {
		a := Finding{Severity: severe, About: f.About, Means: f.Means, Do: f.Do}
		if f.Harmless {
			a.Severity = note
		}
		found = append(found, a)
	}
	return found, nil
}
