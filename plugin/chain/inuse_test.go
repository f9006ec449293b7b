// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// occupy makes a namespace with an address to which the node has no route. A pod that still runs after its DEL looks
// like this.
func (n node) occupy(text string) netip.Addr {
	n.Helper()
	pod, _ := nltest.NS(n, "old")
	a := netip.MustParseAddr(text)
	n.must(nl.Wiring{
		{NS: n.ns, Object: nl.IPVlan{Name: "eth0", Master: "ens6", NS: pod}},
		{NS: pod, Object: nl.Addr{Prefix: netip.PrefixFrom(a, 24), Dev: "eth0"}},
	}.Add())
	return a
}

// unclaimed checks that the address has a lease without an attachment.
func (n node) unclaimed(a netip.Addr) {
	n.Helper()
	s, err := n.registry().View()
	n.must(err)
	if l, leased := s.Leases.At(a); !leased || l.Key != (registry.Key{}) || l.ENI != "eni-2" {
		n.Errorf("%s: lease %+v (%v)", a, l, leased)
	}
}

// TestAddressInUse: an address is free in the registry, but the kernel refuses it. The same ADD then takes another
// address.
func TestAddressInUse(t *testing.T) {
	n := newNode(t)
	first, second := n.occupy("10.0.1.20"), n.occupy("10.0.1.21")
	_, path := nltest.NS(t, "pod")
	r := n.request(path, "")
	res, err := n.ADD(r)
	n.must(err)
	if got := res.IPs[0].Address.IP.String(); got != "10.0.1.22" {
		t.Errorf("the pod has %s", got)
	}
	n.unclaimed(first)
	n.unclaimed(second)
	n.must(n.DEL(r))
	n.unclaimed(first)
}

// TestAddressInUseByThree: the three plugins run as processes, and the second plugin finds that the address is in use.
// After the runtime's DEL, the next ADD gets another address.
func TestAddressInUseByThree(t *testing.T) {
	n := newNode(t)
	old := n.occupy("10.0.1.20")
	_, path := nltest.NS(t, "pod")
	all := n.request(path, "")
	ipam := requestOf(all, all.Config.ipam)
	slave := *requestOf(all, all.Config.ipvlan)
	add := func() (res *types100.Result, err error) {
		err = n.ns.Do(func() error {
			if slave.Prev, _, err = lease.Add(t.Context(), ipam, lease.Program(t.Context(), all)); err == nil {
				res, err = lease.NotesUse(ipvlan.Commands(nil)).Add(t.Context(), &slave)
			}
			return err
		})
		return res, err
	}
	_, err := add()
	if e, ok := errors.AsType[*plugin.Error](err); !ok || e.Code != plugin.CodeTryAgain ||
		!errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v", err)
	}
	n.unclaimed(old)
	n.must(n.ns.Do(func() error { return lease.Commands().Del(t.Context(), ipam) }))
	res, err := add()
	n.must(err)
	if got := res.IPs[0].Address.IP.String(); got != "10.0.1.21" {
		t.Errorf("the pod has %s", got)
	}
}

// TestAddressInUseOfSeveral: one of a pod's three addresses is in use. ADD replaces only this address.
func TestAddressInUseOfSeveral(t *testing.T) {
	n := newNode(t) // four addresses are free
	old := n.occupy("10.0.1.21")
	_, path := nltest.NS(t, "pod")
	r := n.request(path, asking)
	res, err := n.ADD(r)
	n.must(err)
	var got []string
	for _, ip := range res.IPs {
		got = append(got, ip.Address.IP.String())
	}
	if !slices.Equal(got, []string{"10.0.1.20", "10.0.1.22", "10.0.1.23"}) {
		t.Errorf("the pod has %s", got)
	}
	n.unclaimed(old)
	n.must(n.DEL(r))
	n.unclaimed(old)
}
