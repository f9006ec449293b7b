// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim_test

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// A card is an ENI that a test has attached.
type card struct{ id, link, attachment string }

func plug(t *testing.T, i *vpcsim.Instance, index int) card {
	t.Helper()
	id := call(t, i, "CreateNetworkInterface", "SubnetId", "subnet-pods", "Ipv6AddressCount", "1").get(t,
		"networkInterfaceId")
	c := card{id: id, link: "eth" + strconv.Itoa(index)}
	c.attach(t, i, index)
	return c
}

func (c *card) attach(t *testing.T, i *vpcsim.Instance, index int) {
	t.Helper()
	c.attachment = call(t, i, "AttachNetworkInterface", "NetworkInterfaceId", c.id, "InstanceId", i.ID,
		"DeviceIndex", strconv.Itoa(index)).get(t, "attachmentId")
}

func (c card) addrs(t *testing.T, i *vpcsim.Instance) []netip.Addr {
	t.Helper()
	for _, e := range i.ENIs() {
		if e.ID == c.id {
			return []netip.Addr{e.Addrs[0], e.IPv6Addrs[0]}
		}
	}
	t.Fatalf("%s is not attached to %s", c.id, i.Name)
	return nil
}

func (c card) slave(t *testing.T, i *vpcsim.Instance, pod *vpcsim.Namespace) {
	t.Helper()
	addrs := c.addrs(t, i)
	err := nl.Wiring{
		{NS: i.NS, Object: nl.Up{Dev: c.link}},
		{NS: i.NS, Object: nl.IPVlan{Name: "eth0", Master: c.link, NS: pod.NS, Mode: "l2", MTU: 9001}},
		{NS: pod.NS, Object: nl.Sysctl{Key: "net/ipv6/conf/eth0/accept_dad", Value: "0"}},
		{NS: pod.NS, Object: nl.Addr{Prefix: netip.PrefixFrom(addrs[0], 24), Dev: "eth0"}},
		{NS: pod.NS, Object: nl.Addr{Prefix: netip.PrefixFrom(addrs[1], 64), Dev: "eth0", NoDAD: true}},
		{NS: pod.NS, Object: nl.Route{Dst: cidr("0.0.0.0/0"), Via: addr("100.64.0.1"), Dev: "eth0"}},
		{NS: pod.NS, Object: nl.Route{Dst: cidr("::/0"), Via: addr("fe80:ec2::1"), Dev: "eth0"}},
	}.Add()
	if err != nil {
		t.Fatal(err)
	}
}

func vanished(t *testing.T, n *vpcsim.Namespace, link string) {
	t.Helper()
	if _, err := n.LinkByName(link); !errors.Is(err, unix.ENODEV) {
		t.Errorf("%s of %s: %v, want none", link, n.Name, err)
	}
}

// TestDetachUnderPods detaches an ENI that pods use. The ENI's link vanishes, and so do the pods' slaves of this link.
// Pods of another ENI are not affected. The detached ENI can be attached again.
func TestDetachUnderPods(t *testing.T) {
	nltest.Need(t, "ipvlan")
	f := newFabric(t)
	node, host := run(t, f, "node", "subnet-dual"), run(t, f, "host", "subnet-dual")
	first, second := plug(t, node, 1), plug(t, node, 2)
	var pods []*vpcsim.Namespace
	for _, name := range []string{"pod1", "pod2"} {
		pod, err := f.NewNamespace(name)
		if err == nil {
			err = pod.Answer(port)
		}
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, pod)
	}
	first.slave(t, node, pods[0])
	second.slave(t, node, pods[1])
	was := first.addrs(t, node)
	reach := func(pod *vpcsim.Namespace, addrs []netip.Addr) {
		t.Helper()
		meet(t, host.Namespace, pod, addrs[0], host.Addr(), "tcp", "udp")
		meet(t, host.Namespace, pod, addrs[1], host.Addr6(), "tcp", "udp")
	}
	reach(pods[0], was)
	reach(pods[1], second.addrs(t, node))

	call(t, node, "DetachNetworkInterface", "AttachmentId", first.attachment)
	vanished(t, node.Namespace, first.link)
	vanished(t, pods[0], "eth0")
	for _, a := range was {
		lost(t, host.Namespace, netip.Addr{}, a)
	}
	drops(t, f, vpcsim.Drops{NoHost: 2})
	reach(pods[1], second.addrs(t, node))

	first.attach(t, node, 1)
	first.slave(t, node, pods[0])
	reach(pods[0], was)

	if err := f.EC2.TerminateInstance(node.ID); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*vpcsim.Namespace{node.Namespace, pods[0], pods[1]} {
		vanished(t, n, "eth0")
	}
	drops(t, f, vpcsim.Drops{NoHost: 2})
}

func TestLinkDown(t *testing.T) {
	f := newFabric(t)
	node, host := run(t, f, "node", "subnet-dual"), run(t, f, "host", "subnet-dual")
	c := plug(t, node, 1)
	addrs := c.addrs(t, node)
	w := nl.Wiring{
		{NS: node.NS, Object: nl.Addr{Prefix: netip.PrefixFrom(addrs[0], 32), Dev: "lo"}},
		{NS: node.NS, Object: nl.Addr{Prefix: netip.PrefixFrom(addrs[1], 128), Dev: "lo", NoDAD: true}},
		{NS: node.NS, Object: nl.Rule{Pref: 100, From: netip.PrefixFrom(addrs[0], 32), Table: 100}},
		{NS: node.NS, Object: nl.Rule{Pref: 100, From: netip.PrefixFrom(addrs[1], 128), Table: 100}},
		{NS: node.NS, Object: nl.Up{Dev: c.link}},
		{NS: node.NS, Object: nl.Route{Dst: cidr("0.0.0.0/0"), Via: addr("100.64.0.1"), Dev: c.link, Table: 100,
			OnLink: true}},
		{NS: node.NS, Object: nl.Route{Dst: cidr("::/0"), Via: addr("fe80:ec2::1"), Dev: c.link, Table: 100}},
	}
	for range 2 {
		if err := w.Add(); err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			if err := eventually(host, a); err != nil {
				t.Errorf("%s is up: %v", c.link, err)
			}
		}
		if err := node.Do(func() error { return setDown(c.link) }); err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			if err := host.Do(func() error { return ask(a) }); err == nil {
				t.Errorf("%s answers although %s is down", a, c.link)
			}
		}
	}
	drops(t, f, vpcsim.Drops{}) // the ENI keeps its addresses while its link is down
}

// eventually connects to an address until a connection succeeds, for at most a minute. A new link or route does not
// work at once.
func eventually(from *vpcsim.Instance, to netip.Addr) (err error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if err = from.Do(func() error { return ask(to) }); err == nil {
			return nil
		}
	}
	return err
}

func ask(to netip.Addr) error {
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, port).String(), 2*time.Second)
	if err == nil {
		c.Close()
	}
	return err
}

func setDown(link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	return netlink.LinkSetDown(l)
}
