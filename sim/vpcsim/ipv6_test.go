// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

func TestDelivery6(t *testing.T) {
	f := newFabric(t)
	a, twin := run(t, f, "a", "subnet-dual"), run(t, f, "twin", "subnet-dual")
	peer, stranger := run(t, f, "peer", "subnet-peer6"), run(t, f, "stranger", "subnet-stranger6")

	for _, ends := range [][2]*vpcsim.Instance{{a, twin}, {a, peer}, {twin, peer}} {
		meet(t, ends[0].Namespace, ends[1].Namespace, ends[1].Addr6(), ends[0].Addr6(), "tcp", "udp")
		meet(t, ends[1].Namespace, ends[0].Namespace, ends[0].Addr6(), ends[1].Addr6(), "tcp", "udp")
	}
	meet(t, a.Namespace, twin.Namespace, twin.Addr(), a.Addr(), "tcp", "udp")
	for _, i := range []*vpcsim.Instance{a, peer, stranger} {
		meet(t, i.Namespace, f.Internet, vpcsim.InternetAddr6, i.Addr6(), "tcp", "udp")
		meet(t, f.Internet, i.Namespace, i.Addr6(), vpcsim.InternetAddr6, "tcp", "udp")
	}
	drops(t, f, vpcsim.Drops{})

	lost(t, a.Namespace, netip.Addr{}, addr("2001:db8:1:6::99")) // in the sender's subnet
	lost(t, a.Namespace, netip.Addr{}, addr("2001:db8:1:9::99"))
	lost(t, a.Namespace, netip.Addr{}, addr("2001:db8:2:6::99"))
	lost(t, f.Internet, netip.Addr{}, addr("2001:db8:1:6::99"))
	drops(t, f, vpcsim.Drops{NoHost: 4})
	lost(t, a.Namespace, netip.Addr{}, vpcsim.InternetAddr) // the sender has no public IPv4 address
	drops(t, f, vpcsim.Drops{NoHost: 4, NoRoute: 1})
}

func TestSourceCheck6(t *testing.T) {
	f := newFabric(t)
	honest, liar := run(t, f, "honest", "subnet-dual"), run(t, f, "liar", "subnet-dual")
	meet(t, liar.Namespace, f.Internet, vpcsim.InternetAddr6, liar.Addr6()) // the kernel learns the router's MAC
	for _, a := range []netip.Addr{honest.Addr6(), addr("2001:db8:1:6::99"), addr("2001:db8::8")} {
		own := nl.Addr{Prefix: netip.PrefixFrom(a, 128), Dev: "lo", NoDAD: true}
		if err := own.Add(liar.NS); err != nil {
			t.Fatal(err)
		}
		lost(t, liar.Namespace, a, vpcsim.InternetAddr6)
		if err := own.Del(liar.NS); err != nil {
			t.Fatal(err)
		}
	}
	drops(t, f, vpcsim.Drops{Spoofed: 3})
	if err := (nl.Addr{Prefix: cidr("2001:db8:1:6::99/128"), Dev: "lo", NoDAD: true}).Add(liar.NS); err != nil {
		t.Fatal(err)
	}
	call(t, liar, "ModifyNetworkInterfaceAttribute", "NetworkInterfaceId", liar.ENIs()[0].ID,
		"SourceDestCheck.Value", "false")
	lost(t, liar.Namespace, addr("2001:db8:1:6::99"), honest.Addr6())
	meet(t, liar.Namespace, honest.Namespace, honest.Addr6(), liar.Addr6(), "tcp") // after the spoofed datagram
	drops(t, f, vpcsim.Drops{Spoofed: 3, NoHost: 1})
}

// TestPrefix6 attaches an ENI to each of two instances, and gives each ENI a /80 prefix. The route to the ENIs' subnet
// has no next hop, so each instance solicits the other pod's address, which is in the prefix of the other instance.
func TestPrefix6(t *testing.T) {
	f := newFabric(t)
	node, other := run(t, f, "node", "subnet-dual"), run(t, f, "other", "subnet-dual")
	eni := func(i *vpcsim.Instance) netip.Addr {
		t.Helper()
		id := call(t, i, "CreateNetworkInterface", "SubnetId", "subnet-pods").get(t, "networkInterfaceId")
		call(t, i, "AttachNetworkInterface", "NetworkInterfaceId", id, "InstanceId", i.ID, "DeviceIndex", "1")
		got := call(t, i, "AssignIpv6Addresses", "NetworkInterfaceId", id, "Ipv6PrefixCount", "1")
		pod := cidr(got.get(t, "item")).Addr().Next()
		err := nl.Wiring{
			{NS: i.NS, Object: nl.Addr{Prefix: netip.PrefixFrom(pod, 64), Dev: "eth1", NoDAD: true}},
			{NS: i.NS, Object: nl.Route{Dst: cidr("::/0"), Via: addr("fe80:ec2::1"), Dev: "eth1", Table: 100}},
			{NS: i.NS, Object: nl.Rule{Pref: 100, From: netip.PrefixFrom(pod, 128), Table: 100}},
		}.Add()
		if err != nil {
			t.Fatal(err)
		}
		return pod
	}
	pod, sibling := eni(node), eni(other)
	// the fabric answers the neighbour solicitation
	meet(t, other.Namespace, node.Namespace, pod, sibling, "tcp", "udp")
	meet(t, node.Namespace, other.Namespace, sibling, pod, "tcp", "udp")
	meet(t, f.Internet, node.Namespace, pod, vpcsim.InternetAddr6, "tcp")
	drops(t, f, vpcsim.Drops{})
	call(t, node, "UnassignIpv6Addresses", "NetworkInterfaceId", node.ENIs()[1].ID, "Ipv6Prefix.1",
		node.ENIs()[1].IPv6Prefixes[0].String())
	lost(t, other.Namespace, netip.Addr{}, pod)
	lost(t, f.Internet, netip.Addr{}, pod)
	lost(t, node.Namespace, pod, vpcsim.InternetAddr6)
	drops(t, f, vpcsim.Drops{NoHost: 2, Spoofed: 1})
}

// TestDHCP6 checks the IPv6 configuration of an instance after its boot.
func TestDHCP6(t *testing.T) {
	i := run(t, newFabric(t), "node", "subnet-peer6")
	routes, err := i.Routes(nl.RouteFilter{Protocol: 9})
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := i.Addrs("eth0")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			got = append(got, a.String())
		}
	}
	for _, r := range routes {
		got = append(got, r.String())
	}
	want := []string{
		"ip addr add 2001:db8:2:6::4/128 dev eth0 nodad",
		"ip -6 route add 2001:db8:2:6::/64 dev eth0 metric 1024 proto 9",
		"ip -6 route add default via fe80:ec2::1 dev eth0 metric 1024 proto 9",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("addresses and routes of an instance (-want +got):\n%s", diff)
	}
}
