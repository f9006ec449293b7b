// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"fmt"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
)

// linkNames returns the names of an ADD's n links in the pod. The name of the first link is CNI_IFNAME. A further link
// has the name for which the pod asks, or the next free name of eth0, eth1 and so on. The names of links from an
// earlier ADD of the attachment count as free, so a repeated ADD gets the same names again.
func linkNames(r *plugin.Request[Config], asked []nic.Request, n int, links []nl.Link) ([]string, error) {
	names := []string{r.IfName}
	if n == 1 {
		return names, nil
	}
	taken := []string{r.IfName, r.Config.ContainerInterface}
	for _, l := range links {
		if own := nl.PodGroup(r.Digest()); nl.Attachment(l.Group) != own &&
			nl.Attachment(l.Group) != nl.FurtherGroup(own) {
			taken = append(taken, l.Name)
		}
	}
	for i := 1; i < n && i < len(asked); i++ {
		if name := asked[i].Name; name != "" && slices.Contains(taken, name) {
			return nil, plugin.Errorf(plugin.CodeInvalid, "choose another name for the interface",
				"interface %d: name: %q: another link of the pod has this name", i+1, name)
		}
	}
	for _, a := range asked {
		taken = append(taken, a.Name)
	}
	for i := 1; i < n; i++ {
		name := ""
		if i < len(asked) {
			name = asked[i].Name
		}
		for k := 0; name == ""; k++ {
			if eth := fmt.Sprintf("eth%d", k); !slices.Contains(taken, eth) {
				name, taken = eth, append(taken, eth)
			}
		}
		names = append(names, name)
	}
	return names, nil
}
