// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim_test

import (
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// TestNATGateway gives a subnet a NAT gateway, which serves all addresses of the subnet.
func TestNATGateway(t *testing.T) {
	f := newFabric(t)
	if err := f.AddNATGateway(cidr("10.0.1.0/24")); err != nil {
		t.Fatal(err)
	}
	private, public := run(t, f, "private", "subnet-private"), run(t, f, "public", "subnet-nodes")
	meet(t, private.Namespace, f.Internet, vpcsim.InternetAddr, vpcsim.NATAddr, "tcp", "udp")
	meet(t, public.Namespace, f.Internet, vpcsim.InternetAddr, public.PublicIP(), "tcp", "udp")
	meet(t, private.Namespace, public.Namespace, public.Addr(), private.Addr(), "tcp", "udp")
	assigned := call(t, private, "AssignPrivateIpAddresses", "NetworkInterfaceId", private.ENIs()[0].ID,
		"SecondaryPrivateIpAddressCount", "1")
	second := addr(assigned.get(t, "privateIpAddress"))
	if err := (nl.Addr{Prefix: netip.PrefixFrom(second, 32), Dev: "lo"}).Add(private.NS); err != nil {
		t.Fatal(err)
	}
	lost(t, private.Namespace, second, vpcsim.InternetAddr) // the NAT gateway serves this address, too
	lost(t, f.Internet, netip.Addr{}, vpcsim.NATAddr)       // no instance gets a call to the NAT gateway
	drops(t, f, vpcsim.Drops{})
}

// TestOpenPorts calls two instances from the internet. EC2 launches one instance before OpenPorts, and the other after
// OpenPorts.
func TestOpenPorts(t *testing.T) {
	f := newFabric(t)
	early := run(t, f, "early", "subnet-nodes")
	if err := f.OpenPorts(port); err != nil {
		t.Fatal(err)
	}
	for _, i := range []*vpcsim.Instance{early, run(t, f, "late", "subnet-nodes")} {
		for _, network := range []string{"tcp", "udp"} {
			seen, err := f.Internet.Call(network, netip.AddrPortFrom(i.PublicIP(), port))
			if err != nil || seen.Addr() != vpcsim.InternetAddr {
				t.Errorf("%s sees the internet as %s by %s; %v", i.Name, seen, network, err)
			}
		}
	}
}

// TestMTU checks that a VPC delivers jumbo frames, and that a router reports the MTU of the path to the internet.
func TestMTU(t *testing.T) {
	f := newFabric(t)
	a, b, dual, peer := run(t, f, "a", "subnet-nodes"), run(t, f, "b", "subnet-private"), run(t, f, "dual",
		"subnet-dual"), run(t, f, "peer", "subnet-peer6")
	for _, path := range []struct {
		from *vpcsim.Instance
		to   netip.Addr
		want int
	}{
		{a, b.Addr(), 9001},
		{a, vpcsim.InternetAddr, 1500},
		{dual, peer.Addr6(), 9001},
		{dual, vpcsim.InternetAddr6, 1500},
	} {
		got, _, err := path.from.PathMTU(netip.AddrPortFrom(path.to, port))
		if err != nil {
			t.Error(err)
		} else if got != path.want {
			t.Errorf("the path to %s has MTU %d, want %d", path.to, got, path.want)
		}
		// A datagram arrives in fragments. A stream arrives when its sender has learned the path MTU.
		for _, network := range []string{"tcp", "udp"} {
			if _, err := path.from.Send(network, netip.AddrPortFrom(path.to, port), 30_000); err != nil {
				t.Errorf("%s: %v", network, err)
			}
		}
	}
	drops(t, f, vpcsim.Drops{})
}
