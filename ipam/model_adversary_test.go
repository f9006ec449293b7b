// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// An adversary is a process without privileges, with a namespace of its own on the node. It gives its own links the
// addresses and the MAC address of an ENI. The checks of the model must succeed nevertheless: no lease may begin or
// stay because of the adversary.
type adversary struct {
	ns    *nl.NS
	links *netlink.Handle
	has   map[nl.Addr]bool
	rng   *rand.Rand // of its own: the other events of a history are as without an adversary
}

// adversaryLinks are the links to which the adversary adds addresses. ens0 is an end of a veth pair, and eth0 is a
// slave of ens0 with the MAC address of an ENI.
var adversaryLinks = []string{"lo", "ens0", "eth0"}

// newAdversary makes the adversary's namespace. The node's processes find this namespace in the same way as the
// namespaces of pods.
func newAdversary(t *testing.T, k *kernel) *adversary {
	t.Helper()
	ns, path := nltest.NS(t, "model-adversary")
	must(t, os.Symlink(path, k.path("adversary")))
	far, _ := nltest.NS(t, "model-far")
	must(t, nl.Wiring{{NS: ns, Object: nl.Up{Dev: "lo"}},
		{NS: ns, Object: nl.Veth{Name: "ens0", Peer: "ens0", PeerNS: far}},
		{NS: k.host, Object: nl.Veth{Name: "vadversary", Peer: "eth1", PeerNS: ns}}}.Add())
	addSlave(t, ns, "ens0", path, "eth0")
	a := &adversary{ns: ns, has: map[nl.Addr]bool{}}
	must(t, ns.Do(func() (err error) { a.links, err = netlink.NewHandle(); return err }))
	t.Cleanup(a.links.Close)
	return a
}

// act gives eth0 of the adversary the MAC address of an ENI of the node. It adds some of this ENI's addresses to the
// adversary's links, or removes them. In 30% of the calls, act does nothing.
func (a *adversary) act(m *model) {
	if a.rng.IntN(100) < 30 {
		return
	}
	enis := slices.DeleteFunc(m.attached(), func(e ec2sim.ENI) bool { return len(e.Addrs) == 0 })
	e := enis[a.rng.IntN(len(enis))]
	a.setMAC(m, e)
	for range 1 + a.rng.IntN(4) {
		a.claim(m, a.addrOf(e), adversaryLinks[a.rng.IntN(len(adversaryLinks))])
	}
	m.logf("%s the adversary claims %d addresses, and to be %s", m.clock(), len(a.has), e.ID)
}

// addrOf chooses an address of an ENI, or of one of the ENI's prefixes.
func (a *adversary) addrOf(e ec2sim.ENI) netip.Addr {
	all := slices.Concat(e.Addrs, e.IPv6Addrs)
	for _, c := range slices.Concat(e.Prefixes, e.IPv6Prefixes) {
		all = append(all, c.Addr().Next())
	}
	return all[a.rng.IntN(len(all))]
}

// claim adds an address to the link dev. If the link already has the address, claim removes the address.
func (a *adversary) claim(t testing.TB, addr netip.Addr, dev string) {
	at := nl.Addr{Prefix: netip.PrefixFrom(addr, addr.BitLen()), Dev: dev, NoDAD: addr.Is6()}
	if a.has[at] {
		must(t, nl.Wiring{{NS: a.ns, Object: at}}.Del())
		delete(a.has, at)
		return
	}
	must(t, nl.Wiring{{NS: a.ns, Object: at}}.Add())
	a.has[at] = true
}

// setMAC gives eth0 of the adversary the MAC address of an ENI. eth0 is a slave and not a veth, because the ENIs' links
// are veths in these tests.
func (a *adversary) setMAC(t testing.TB, e ec2sim.ENI) {
	l, err := a.links.LinkByName("eth0")
	must(t, err)
	hw, err := net.ParseMAC(e.MAC)
	must(t, err)
	must(t, a.links.LinkSetHardwareAddr(l, hw))
}

// begin prepares the adversary for a new history: it removes all addresses that the adversary has.
func (a *adversary) begin(t testing.TB, seed uint64) {
	a.rng = rand.New(rand.NewPCG(seed, 3))
	for at := range a.has {
		must(t, nl.Wiring{{NS: a.ns, Object: at}}.Del())
	}
	clear(a.has)
}
