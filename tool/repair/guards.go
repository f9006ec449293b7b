// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package repair

import (
	"errors"
	"log/slog"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Unguarded lists the links of the node whose ENIs have pods, and that do not refuse what these pods send to the node
// (see [nl.Guard]). If a pod has a whole ENI, the link is in the pod, and has no slaves.
func Unguarded(host *nl.NS, s *registry.State) (lost []nl.Guard, err error) {
	used := map[string]bool{}
	for _, l := range s.Leases.All() {
		if e, known := s.ENIs[l.ENI]; known {
			used[e.MAC] = true
		}
	}
	links, err := host.Links()
	for _, l := range links {
		g := nl.Guard{Link: l.Name}
		if used[l.MAC] && l.MayBeCard() && g.Check(host) != nil {
			lost = append(lost, g)
		}
	}
	return lost, err
}

// Guards puts back what [Unguarded] lists, and returns what that was.
func Guards(host *nl.NS) (did []string, failed error) {
	s, err := leases()
	if err != nil {
		return nil, nil // without a registry repair does not know the ENIs; the next ADD puts it back
	}
	lost, failed := Unguarded(host, s)
	for _, g := range lost {
		if err := g.Restore(host); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		did = append(did, g.String())
		slog.Info("restored what keeps pods from sending to the node past security groups", "link", g.Link)
	}
	return did, failed
}
