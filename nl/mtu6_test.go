// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestMTU6 changes the MTU of an ENI. The slave's MTU changes with it, but the slave's IPv6 may keep a larger MTU.
// Check finds this, and Add corrects it. An IPv6 MTU below the link's MTU is right, because it loses no packets.
func TestMTU6(t *testing.T) {
	nltest.Need(t, "ipvlan")
	b := newBay(t)
	slave := nl.IPVlan{Name: "eth0", Master: "ens6", NS: b.pod}
	b.must(nl.Wiring{{NS: b.node, Object: nl.Up{Dev: "ens6"}}, {NS: b.node, Object: slave}}.Add())
	m := nl.MTU6{Dev: "eth0"}
	w := nl.Wiring{{NS: b.pod, Object: m}}
	for _, step := range []struct{ mtu, link, ipv6 int }{{9001, 9001, 9001}, {1500, 1500, 1500}, {9001, 9001, 1500},
		{1400, 1400, 1400}} {
		if step.mtu != 9001 {
			b.must(w.Check())
		}
		b.must(nl.Wiring{{NS: b.node, Object: nl.Up{Dev: "ens6", MTU: step.mtu}}}.Add())
		l, err := b.pod.LinkByName("eth0")
		b.must(err)
		if err := m.Check(b.pod); (err != nil) != (l.MTU6 > step.mtu) || err != nil &&
			!strings.Contains(err.Error(), "lost without an error") {
			t.Errorf("%d bytes by IPv6 on a link with MTU %d: %v", l.MTU6, l.MTU, err)
		}
		b.must(w.Add())
		if l, err = b.pod.LinkByName("eth0"); err != nil || l.MTU != step.link || l.MTU6 != step.ipv6 {
			t.Errorf("after MTU %d of the master: MTU %d, of IPv6 %d, %v; want %d and %d", step.mtu, l.MTU, l.MTU6, err,
				step.link, step.ipv6)
		}
		b.must(w.Check())
	}
}

// TestUnshared: a link counts as shared while it has slaves, even in another namespace.
func TestUnshared(t *testing.T) {
	nltest.Need(t, "ipvlan")
	b := newBay(t)
	slave := nl.Wiring{{NS: b.node, Object: nl.Up{Dev: "ens6"}},
		{NS: b.node, Object: nl.IPVlan{Name: "eth0", Master: "ens6", NS: b.pod}}}
	unshared := func() bool {
		l, err := b.node.LinkByName("ens6")
		b.must(err)
		return b.node.Unshared(l) == nil
	}
	for range 2 {
		if !unshared() {
			t.Error("a link without slaves counts as shared")
		}
		b.must(slave.Add())
		if unshared() {
			t.Error("a link with a slave counts as unshared")
		}
		b.must(slave.Del())
	}
}
