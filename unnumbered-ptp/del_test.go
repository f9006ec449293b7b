// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestDelTogether deletes the link of the ipvlan plugin with the pair, and nothing that is
// another attachment's, or that people have put into groups.
func TestDelTogether(t *testing.T) {
	f, _ := prepared(t)
	p := f.grouped("pod2", "10.0.1.51")
	others := []nl.Object{
		nl.Veth{Name: "net1", Peer: "far1", PeerNS: f.other, Group: nl.OwnGroup},
		nl.Veth{Name: "net2", Peer: "far2", PeerNS: f.other, Group: p.request.LinkGroup() + 1},
		nl.Veth{Name: "net3", Peer: "far3", PeerNS: f.other},
	}
	node := nltest.Dump(t, f.node)
	must(t, f.ADD(p))
	f.add(p.NS, others...)
	for range 2 {
		must(t, f.DEL(p))
		same(t, "DEL left something on the node", node, nltest.Dump(t, f.node))
		for _, o := range others {
			must(t, o.Check(p.NS))
		}
	}
	for _, o := range others {
		must(t, o.Del(p.NS))
	}
	same(t, "DEL left something in the pod", p.bare, nltest.Dump(t, p.NS))
	if err := p.DelGroup(0); err == nil {
		t.Error("the group of all that are in no group can be deleted")
	}
	if err := p.DelRules(""); err == nil {
		t.Error("the rules about no link can be deleted")
	}
}
