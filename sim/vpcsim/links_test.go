// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim_test

import (
	"context"
	"net/netip"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

func (c card) mac(t *testing.T, i *vpcsim.Instance) string {
	t.Helper()
	for _, e := range i.ENIs() {
		if e.ID == c.id {
			return e.MAC
		}
	}
	t.Fatalf("%s is not attached to %s", c.id, i.Name)
	return ""
}

// change assigns an address to the ENI, and then unassigns it. The fabric updates the ENI's wiring after each call.
func (c card) change(t *testing.T, i *vpcsim.Instance) {
	t.Helper()
	a := call(t, i, "AssignPrivateIpAddresses", "NetworkInterfaceId", c.id, "SecondaryPrivateIpAddressCount",
		"1").get(t, "privateIpAddress")
	call(t, i, "UnassignPrivateIpAddresses", "NetworkInterfaceId", c.id, "PrivateIpAddress.1", a)
}

// podGroup is the link group of an ENI's link while the link is in a pod.
const podGroup = 72<<24 | 7

// newPod creates a namespace in which servers answer at port.
func newPod(t *testing.T, f *vpcsim.Fabric, name string) *vpcsim.Namespace {
	t.Helper()
	pod, err := f.NewNamespace(name)
	if err == nil {
		err = pod.Answer(port)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// move returns the wiring that moves the ENI's link into a pod, and gives it addresses and routes there.
func (c card) move(t *testing.T, i *vpcsim.Instance, pod *vpcsim.Namespace) nl.Wiring {
	t.Helper()
	addrs := c.addrs(t, i)
	in := func(o nl.Object) nl.Step { return nl.Step{NS: pod.NS, Object: o} }
	return nl.Wiring{
		{NS: i.NS, Object: nl.MovedLink{Name: "eth0", MAC: c.mac(t, i), NS: pod.NS, Home: "eth1", MTU: 9001,
			Group: podGroup, Down: true}},
		in(nl.Sysctl{Key: "net/ipv6/conf/eth0/accept_dad", Value: "0"}),
		in(nl.Up{Dev: "eth0"}),
		in(nl.Addr{Prefix: netip.PrefixFrom(addrs[0], 24), Dev: "eth0"}),
		in(nl.Addr{Prefix: netip.PrefixFrom(addrs[1], 64), Dev: "eth0", NoDAD: true}),
		in(nl.Route{Dst: cidr("0.0.0.0/0"), Via: addr("100.64.0.1"), Dev: "eth0"}),
		in(nl.Route{Dst: cidr("::/0"), Via: addr("fe80:ec2::1"), Dev: "eth0"}),
	}
}

// returned waits until the ENI's link is on the instance again, in the state of a network card that the kernel has
// brought back.
func (c card) returned(t *testing.T, i *vpcsim.Instance) nl.Link {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := i.LinkByMAC(ctx, c.mac(t, i))
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := i.Addrs(l.Name)
	if err != nil {
		t.Fatal(err)
	}
	if l.Up || len(addrs) > 0 {
		t.Errorf("%+v has returned with %v, want it down and without addresses", l, addrs)
	}
	return l
}

// TestLinkReturns moves an ENI's link into pods, under different names, and ends the pods' namespaces. Each time, the
// link must return to the node.
func TestLinkReturns(t *testing.T) {
	f := newFabric(t)
	node := run(t, f, "node", "subnet-dual")
	c := plug(t, node, 1)
	for n, tt := range []struct {
		name, taken string // the link's name in the pod; the name of another link on the node
		fallback    bool   // the link returns as dev<index>
		want        string
	}{
		{name: "net1", want: "net1"},
		{name: "eth1", want: "eth1"},
		{name: "eth0", fallback: true},
		{name: "net1", taken: "net1", fallback: true},
		{name: "net2", want: "net2"},
	} {
		pod := newPod(t, f, "pod"+strconv.Itoa(n))
		moved := nl.MovedLink{Name: tt.name, MAC: c.mac(t, node), NS: pod.NS, MTU: 1500, Group: podGroup}
		if err := moved.Add(node.NS); err != nil {
			t.Fatal(err)
		}
		l, err := pod.LinkByName(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		if tt.fallback {
			tt.want = "dev" + strconv.Itoa(l.Index)
		}
		if tt.taken != "" {
			nltest.Shell(t, node.NS, "ip link add "+tt.taken+" type veth peer x")
		}
		c.change(t, node) // the fabric stores the name of the link
		if err := pod.Close(); err != nil {
			t.Fatal(err)
		}
		l = c.returned(t, node)
		if l.Name != tt.want || l.MTU != 1500 || l.Group != podGroup {
			t.Errorf("%+v: it has returned as %+v, want the name %s, and the MTU and group that it had", tt, l, tt.want)
		}
		if tt.taken != "" {
			nltest.Shell(t, node.NS, "ip link del "+tt.taken)
		}
		// The returned link is the link of the ENI. A change in EC2 does not make the fabric create another link.
		c.change(t, node)
		if now, err := node.LinkByName(l.Name); err != nil || !reflect.DeepEqual(now, l) {
			t.Errorf("after another address: %+v, %v, want %+v", now, err, l)
		}
		if err := (nl.MovedLink{MAC: c.mac(t, node), Home: "eth1", Group: podGroup}).Del(node.NS); err != nil {
			t.Error(err)
		}
		if l, err := node.LinkByName("eth1"); err != nil || l.Group != 0 {
			t.Errorf("%+v, %v, want group 0", l, err)
		}
	}
	// Both names that the kernel prefers are taken: the link's last name, and dev<index>. dev0 is taken, too.
	pod := newPod(t, f, "pod")
	if err := (nl.MovedLink{Name: "eth0", MAC: c.mac(t, node), NS: pod.NS}).Add(node.NS); err != nil {
		t.Fatal(err)
	}
	l, err := pod.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	nltest.Shell(t, node.NS, "ip link add dev0 type veth peer dev"+strconv.Itoa(l.Index))
	c.change(t, node)
	if err := pod.Close(); err != nil {
		t.Fatal(err)
	}
	if l := c.returned(t, node); l.Name != "dev1" {
		t.Errorf("it has returned as %s, want dev1", l.Name) // l.Index is not 1: lo and eth0 are older
	}
	if err := f.Err(); err != nil {
		t.Error(err)
	}
}

// TestMovedLink moves an ENI's link into a pod, where it works. DEL, or the end of the pod's namespace, brings the link
// back to the node. The link then works on the node as the master of a slave, and after that in another pod.
func TestMovedLink(t *testing.T) {
	nltest.Need(t, "ipvlan")
	f := newFabric(t)
	node, host := run(t, f, "node", "subnet-dual"), run(t, f, "host", "subnet-dual")
	c := plug(t, node, 1)
	addrs := c.addrs(t, node)
	reach := func(pod *vpcsim.Namespace) {
		t.Helper()
		// when a link was down, the fabric's end drops packets until the kernel's linkwatch runs
		for _, a := range addrs {
			if err := eventually(host, a); err != nil {
				t.Error(err)
			}
		}
		meet(t, host.Namespace, pod, addrs[0], host.Addr(), "tcp", "udp")
		meet(t, host.Namespace, pod, addrs[1], host.Addr6(), "tcp", "udp")
		meet(t, pod, host.Namespace, host.Addr(), addrs[0], "tcp", "udp")
		meet(t, pod, host.Namespace, host.Addr6(), addrs[1], "tcp", "udp")
	}
	for n, end := range []string{"DEL", "the end of the namespace", "DEL", "the end of the namespace"} {
		pod := newPod(t, f, "whole"+strconv.Itoa(n))
		w := c.move(t, node, pod)
		for range 2 {
			if err := w.Add(); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Check(); err != nil {
			t.Error(err)
		}
		if _, err := node.FindMAC(c.mac(t, node)); err == nil {
			t.Error("the node has the link, too")
		}
		reach(pod)
		if end == "DEL" {
			for range 2 {
				if err := w.Del(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := pod.Close(); err != nil {
			t.Fatal(err)
		}
		c.link = c.returned(t, node).Name
		if end == "DEL" && c.link != "eth1" {
			t.Errorf("after %s: the link is %s, want eth1", end, c.link)
		}

		pod = newPod(t, f, "slave"+strconv.Itoa(n))
		c.slave(t, node, pod)
		reach(pod)
		if err := (nl.IPVlan{Name: "eth0", NS: pod.NS}).Del(node.NS); err != nil {
			t.Error(err)
		}
		if err := pod.Close(); err != nil {
			t.Error(err)
		}
	}
	drops(t, f, vpcsim.Drops{})
}

// TestDetachFromPod detaches an ENI whose link is in the namespace of a pod. The link vanishes, and does not return.
func TestDetachFromPod(t *testing.T) {
	f := newFabric(t)
	node := run(t, f, "node", "subnet-dual")
	c := plug(t, node, 1)
	mac := c.mac(t, node)
	for _, end := range []func(*vpcsim.Namespace){
		func(*vpcsim.Namespace) { call(t, node, "DetachNetworkInterface", "AttachmentId", c.attachment) },
		func(*vpcsim.Namespace) {
			if err := f.EC2.TerminateInstance(node.ID); err != nil {
				t.Fatal(err)
			}
		},
	} {
		pod := newPod(t, f, "pod"+c.attachment)
		if err := (nl.MovedLink{Name: "eth0", MAC: mac, NS: pod.NS}).Add(node.NS); err != nil {
			t.Fatal(err)
		}
		end(pod)
		vanished(t, pod, "eth0")
		for range 2 {
			if l, err := node.FindMAC(mac); err == nil {
				t.Errorf("the node has %+v", l)
			}
			if err := pod.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if len(node.ENIs()) > 0 {
			c.attach(t, node, 1)
		}
	}
	if err := f.Err(); err != nil {
		t.Error(err)
	}
}

// TestRebootUnderPod reboots an instance while a pod has an ENI's link.
func TestRebootUnderPod(t *testing.T) {
	nltest.Need(t, "nftables")
	f := newFabric(t)
	node := run(t, f, "node", "subnet-dual")
	c := plug(t, node, 1)
	pod := newPod(t, f, "pod")
	if err := (nl.MovedLink{Name: "eth0", MAC: c.mac(t, node), NS: pod.NS}).Add(node.NS); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := node.Reboot(); err != nil {
			t.Fatal(err)
		}
		if l, err := node.LinkByName("eth1"); err != nil || l.MAC != c.mac(t, node) || l.MTU != 9001 {
			t.Errorf("%+v, %v", l, err)
		}
	}
	vanished(t, pod, "eth0")
	if err := f.Err(); err != nil {
		t.Error(err)
	}
}

// TestLinkRaces ends namespaces that contain an ENI's link. Meanwhile, EC2 assigns an address to the ENI, EC2 detaches
// the ENI, or the instance reboots.
func TestLinkRaces(t *testing.T) {
	nltest.Need(t, "nftables")
	f := newFabric(t)
	node := run(t, f, "node", "subnet-dual")
	c := plug(t, node, 1)
	mac := c.mac(t, node)
	for n := range 12 {
		pod := newPod(t, f, "pod"+strconv.Itoa(n))
		if err := (nl.MovedLink{Name: "eth0", MAC: mac, NS: pod.NS}).Add(node.NS); err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		both.Go(func() {
			if err := pod.Close(); err != nil {
				t.Error(err)
			}
		})
		detached := false
		switch n % 3 {
		case 0:
			c.change(t, node)
		case 1:
			call(t, node, "DetachNetworkInterface", "AttachmentId", c.attachment)
			detached = true
		case 2:
			if err := node.Reboot(); err != nil {
				t.Fatal(err)
			}
		}
		both.Wait()
		if detached {
			if l, err := node.FindMAC(mac); err == nil {
				t.Errorf("it is detached, and the node has %+v", l)
			}
			c.attach(t, node, 1)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if _, err := node.LinkByMAC(ctx, mac); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	// The fabric has restored all of the ENI's wiring, so the link works in a pod.
	host := run(t, f, "host", "subnet-dual")
	pod := newPod(t, f, "last")
	l, err := node.FindMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	c.link = l.Name
	if err := c.move(t, node, pod).Add(); err != nil {
		t.Fatal(err)
	}
	for _, a := range c.addrs(t, node) {
		if err := eventually(host, a); err != nil {
			t.Error(err)
		}
	}
	if err := f.Err(); err != nil {
		t.Error(err)
	}
}
