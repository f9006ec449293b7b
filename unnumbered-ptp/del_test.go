// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// TestDelTogether: DEL deletes the pair and the slave. It deletes nothing of another attachment, and no links that
// other programs have put into the groups of links.
func TestDelTogether(t *testing.T) {
	f, _ := preparedTable(t)
	p := f.grouped("pod2", "10.0.1.51")
	others := []nl.Object{
		nl.Veth{Name: "net1", Peer: "far1", PeerNS: f.other, Group: nl.OwnGroup},
		nl.Veth{Name: "net2", Peer: "far2", PeerNS: f.other, Group: nl.PodGroup(p.request.Digest()) + 1},
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

// TestDelRefused runs DEL without the right to change anything. DEL fails, and names what it could not delete on the
// node, so that the runtime calls DEL again. In the pod, everything stays.
func TestDelRefused(t *testing.T) {
	f, _ := preparedTable(t)
	p := f.grouped("pod2", "10.0.1.51")
	rich(&p.request)
	before := nltest.Dump(t, f.node)
	must(t, f.ADD(p))
	veth := p.result.Interfaces[1].Name
	err := f.in(p, func(r *plugin.Request[ptp.Config]) (err error) {
		nltest.Without(t, unix.CAP_NET_ADMIN, func() { err = ptp.Commands().Del(t.Context(), r) })
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "ip rule del iif "+veth) ||
		!strings.Contains(err.Error(), "ip link add "+veth) || strings.Contains(err.Error(), "pod:") {
		t.Errorf("DEL says %v", err)
	}
	must(t, f.CHECK(p))
	must(t, f.DEL(p))
	same(t, "DEL left something on the node", before, nltest.Dump(t, f.node))
}
