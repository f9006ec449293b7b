// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim_test

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

var (
	addr = netip.MustParseAddr
	cidr = netip.MustParsePrefix
)

// world has three VPCs. The first two are peers. EC2 assigns IPv6 addresses to instances in only three of the subnets.
var world = func() ec2sim.Config {
	c := ec2sim.World(`
		vpc-1            10.0.0.0/16 100.64.0.0/16 2001:db8:1::/56
		subnet-nodes     10.0.0.0/24 public
		subnet-private   10.0.1.0/24
		subnet-pods      100.64.0.0/24 2001:db8:1:1::/64
		subnet-dual      10.0.6.0/24 2001:db8:1:6::/64
		vpc-2            10.1.0.0/16 2001:db8:2::/56
		subnet-peer      10.1.0.0/24
		subnet-peer6     2001:db8:2:6::/64
		vpc-3            10.2.0.0/16 2001:db8:3::/56
		subnet-stranger  10.2.0.0/24
		subnet-stranger6 2001:db8:3:6::/64
		pcx-1            vpc-1 vpc-2
		pcx-2            vpc-3 vpc-1 pending-acceptance`)
	for i, s := range c.Subnets {
		c.Subnets[i].AssignIPv6 = s.ID == "subnet-dual" || s.ID == "subnet-peer6" || s.ID == "subnet-stranger6"
	}
	return c
}()

const port = 8080

func newFabric(t *testing.T) *vpcsim.Fabric {
	t.Helper()
	nltest.Need(t, "root")
	f := simtest.Fabric(t, world)
	if err := f.Internet.Answer(port); err != nil {
		t.Fatal(err)
	}
	return f
}

// run launches an instance in which servers answer at port.
func run(t *testing.T, f *vpcsim.Fabric, name, subnet string) *vpcsim.Instance {
	t.Helper()
	i := simtest.Launch(t, f, name, ec2sim.RunInstance{Type: "m5.large", Subnet: subnet})
	if err := i.Answer(port); err != nil {
		t.Fatal(err)
	}
	return i
}

// drops checks the numbers of packets that the fabric has dropped. It waits for the packets that must be dropped,
// because a neighbour solicitation may delay a packet.
func drops(t *testing.T, f *vpcsim.Fabric, want vpcsim.Drops) {
	t.Helper()
	var got vpcsim.Drops
	for end := time.Now().Add(time.Minute); got != want && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var err error
		if got, err = f.Drops(); err != nil {
			t.Fatal(err)
		}
		if want == (vpcsim.Drops{}) {
			break
		}
	}
	if got != want {
		t.Errorf("dropped: %v, want %v", got, want)
	}
}

// meet checks that a reaches b at the address in the argument "to", by ping and by each of the networks, "tcp" or
// "udp". In each call by a network, b must see the source address in the argument "want".
func meet(t *testing.T, a, b *vpcsim.Namespace, to, want netip.Addr, networks ...string) {
	t.Helper()
	if err := a.Ping(to); err != nil {
		t.Errorf("to %s: %v", b.Name, err)
	}
	for _, network := range networks {
		seen, err := a.Call(network, netip.AddrPortFrom(to, port))
		if err != nil {
			t.Errorf("%s to %s: %v", network, b.Name, err)
		} else if seen.Addr() != want {
			t.Errorf("%s from %s: %s sees %s, want %s", network, a.Name, b.Name, seen.Addr(), want)
		}
	}
}

// lost sends one datagram from the address in the argument "local". It does not wait for an answer.
func lost(t *testing.T, from *vpcsim.Namespace, local, to netip.Addr) {
	t.Helper()
	if err := from.Do(func() error { return datagram(local, to, 1) }); err != nil {
		t.Error(err)
	}
}

func datagram(from, to netip.Addr, size int) error {
	var local *net.UDPAddr
	if from.IsValid() {
		local = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	c, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port)))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write(make([]byte, size))
	return err
}

func TestDelivery(t *testing.T) {
	f := newFabric(t)
	public, private := run(t, f, "public", "subnet-nodes"), run(t, f, "private", "subnet-private")
	twin, peer := run(t, f, "twin", "subnet-nodes"), run(t, f, "peer", "subnet-peer")
	stranger := run(t, f, "stranger", "subnet-stranger")

	for _, ends := range [][2]*vpcsim.Instance{{public, private}, {public, twin}, {public, peer}, {private, peer}} {
		meet(t, ends[0].Namespace, ends[1].Namespace, ends[1].Addr(), ends[0].Addr(), "tcp", "udp")
		meet(t, ends[1].Namespace, ends[0].Namespace, ends[0].Addr(), ends[1].Addr(), "tcp", "udp")
	}
	meet(t, public.Namespace, f.Internet, vpcsim.InternetAddr, public.PublicIP(), "tcp", "udp")
	meet(t, twin.Namespace, f.Internet, vpcsim.InternetAddr, twin.PublicIP(), "tcp", "udp")
	drops(t, f, vpcsim.Drops{})

	lost(t, private.Namespace, netip.Addr{}, vpcsim.InternetAddr)
	lost(t, private.Namespace, netip.Addr{}, stranger.Addr()) // the peering is not active
	lost(t, stranger.Namespace, netip.Addr{}, private.Addr())
	drops(t, f, vpcsim.Drops{NoRoute: 3})
	lost(t, private.Namespace, netip.Addr{}, addr("10.0.0.200"))
	lost(t, private.Namespace, netip.Addr{}, addr("100.64.9.9"))
	lost(t, private.Namespace, netip.Addr{}, addr("10.1.9.9"))
	lost(t, private.Namespace, netip.Addr{}, addr("10.0.1.1")) // the gateway does not answer either
	drops(t, f, vpcsim.Drops{NoRoute: 3, NoHost: 4})
}

func TestSourceCheck(t *testing.T) {
	f := newFabric(t)
	honest, liar := run(t, f, "honest", "subnet-nodes"), run(t, f, "liar", "subnet-nodes")
	for _, a := range []netip.Addr{honest.Addr(), addr("10.0.0.99"), addr("8.8.8.8")} {
		own := nl.Addr{Prefix: netip.PrefixFrom(a, 32), Dev: "lo"}
		if err := own.Add(liar.NS); err != nil {
			t.Fatal(err)
		}
		lost(t, liar.Namespace, a, vpcsim.InternetAddr)
		if err := own.Del(liar.NS); err != nil {
			t.Fatal(err)
		}
	}
	drops(t, f, vpcsim.Drops{Spoofed: 3})

	// If EC2 does not check the sources of an ENI, the ENI may send with any source address. No ENI has 10.0.0.99, so
	// the fabric drops the answer.
	if err := (nl.Addr{Prefix: cidr("10.0.0.99/32"), Dev: "lo"}).Add(liar.NS); err != nil {
		t.Fatal(err)
	}
	call(t, liar, "ModifyNetworkInterfaceAttribute", "NetworkInterfaceId", liar.ENIs()[0].ID,
		"SourceDestCheck.Value", "false")
	lost(t, liar.Namespace, addr("10.0.0.99"), honest.Addr())
	// honest answers these calls later than the spoofed datagram
	meet(t, liar.Namespace, honest.Namespace, honest.Addr(), liar.Addr(), "tcp", "udp")
	drops(t, f, vpcsim.Drops{Spoofed: 3, NoHost: 1})
}

// TestHotPlug attaches an ENI by a call from the instance itself. Then it checks that the fabric follows changes of the
// ENI's addresses.
func TestHotPlug(t *testing.T) {
	f := newFabric(t)
	node, host := run(t, f, "node", "subnet-nodes"), run(t, f, "host", "subnet-private")
	made := call(t, node, "CreateNetworkInterface", "SubnetId", "subnet-pods")
	eni := made.get(t, "networkInterfaceId")
	attached := call(t, node, "AttachNetworkInterface", "NetworkInterfaceId", eni, "InstanceId", node.ID,
		"DeviceIndex", "1")

	// When EC2 has answered, the link is there. It has no address.
	link, err := node.LinkByName("eth1")
	if err != nil {
		t.Fatal(err)
	}
	if want := node.ENIs()[1].MAC; link.MAC != want || link.MTU != 9001 {
		t.Errorf("eth1 has address %s and mtu %d, want %s and 9001", link.MAC, link.MTU, want)
	}
	addrs, err := node.Addrs("eth1")
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Addr().Is4() }) {
		t.Errorf("eth1 has %v, want no IPv4 address", addrs)
	}

	// An assigned address works at once. After UnassignPrivateIpAddresses, no ENI has the address.
	assigned := call(t, node, "AssignPrivateIpAddresses", "NetworkInterfaceId", eni,
		"SecondaryPrivateIpAddressCount", "1")
	pod := addr(assigned.get(t, "privateIpAddress"))
	w := nl.Wiring{
		{NS: node.NS, Object: nl.Addr{Prefix: netip.PrefixFrom(pod, 32), Dev: "lo"}},
		{NS: node.NS, Object: nl.Route{Dst: cidr("0.0.0.0/0"), Via: addr("100.64.0.1"), Dev: "eth1", Table: 100,
			OnLink: true}},
		{NS: node.NS, Object: nl.Rule{Pref: 100, From: netip.PrefixFrom(pod, 32), Table: 100}},
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	meet(t, host.Namespace, node.Namespace, pod, host.Addr(), "tcp")
	drops(t, f, vpcsim.Drops{})
	call(t, node, "UnassignPrivateIpAddresses", "NetworkInterfaceId", eni, "PrivateIpAddress.1", pod.String())
	lost(t, host.Namespace, netip.Addr{}, pod)
	lost(t, node.Namespace, pod, host.Addr())
	drops(t, f, vpcsim.Drops{NoHost: 1, Spoofed: 1})

	// The addresses of an assigned prefix work at once, too.
	assigned = call(t, node, "AssignPrivateIpAddresses", "NetworkInterfaceId", eni, "Ipv4PrefixCount", "1")
	pod = cidr(assigned.get(t, "ipv4Prefix")).Addr().Next().Next()
	w[0].Object = nl.Addr{Prefix: netip.PrefixFrom(pod, 32), Dev: "lo"}
	w[2].Object = nl.Rule{Pref: 100, From: netip.PrefixFrom(pod, 32), Table: 100}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	meet(t, host.Namespace, node.Namespace, pod, host.Addr(), "tcp")

	call(t, node, "DetachNetworkInterface", "AttachmentId", attached.get(t, "attachmentId"))
	if _, err := node.LinkByName("eth1"); err == nil {
		t.Error("eth1 is still there")
	}
	lost(t, host.Namespace, netip.Addr{}, pod)
	drops(t, f, vpcsim.Drops{NoHost: 2, Spoofed: 1})
	if err := f.Err(); err != nil {
		t.Error(err)
	}
}

// TestClose checks that Close leaves nothing behind, and that a new Fabric removes what a killed process has left.
func TestClose(t *testing.T) {
	before := left(t)
	f := newFabric(t)
	i := run(t, f, "node", "subnet-nodes")
	if _, err := f.NewNamespace("pod"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.RunInstance("node", ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-nodes"}); err == nil {
		t.Error("two instances of one name")
	}
	if _, err := f.RunInstance("other", ec2sim.RunInstance{Type: "m5.huge", Subnet: "subnet-nodes"}); err == nil {
		t.Error("an instance of no type")
	}
	dead := "/run/netns/vpcsim77-half"
	for _, err := range []error{os.Mkdir("/run/vpcsim77", 0o755), os.WriteFile(dead, nil, 0o444)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	other := newFabric(t) // New removes the files of vpcsim77, which has no process, and not the files of f
	if _, err := os.Stat(dead); err == nil {
		t.Errorf("%s is still there", dead)
	}
	if err := i.Ping(i.Addr()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, left(t)); diff != "" {
		t.Errorf("files and links of the host (-before +after):\n%s", diff)
	}
}

// left lists what a Fabric might leave behind.
func left(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/run/vpcsim*", "/run/netns/vpcsim*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	host, err := nl.Node()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	links, err := host.Links()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		all = append(all, l.String())
	}
	return all
}

func TestOverlap(t *testing.T) {
	c := world
	c.VPCs = append(slices.Clone(c.VPCs), ec2sim.VPC{ID: "vpc-4", CIDRs: []netip.Prefix{cidr("10.0.0.0/20")}})
	if _, err := vpcsim.New(c); err == nil || !strings.Contains(err.Error(), "vpc-1 and vpc-4 overlap") {
		t.Errorf("got %v, want an error that names both VPCs", err)
	}
}
