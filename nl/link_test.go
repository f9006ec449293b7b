// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ip(t *testing.T, n *nl.NS, args ...string) {
	t.Helper()
	if err := n.Do(func() error {
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("ip %q: %w: %s", args, err, out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestLinks compares the links that we read with those that package netlink reads.
func TestLinks(t *testing.T) {
	host, pod := two(t)
	must(t, nl.Wiring{
		{host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod, MTU: 9001, Group: 72, PeerGroup: 7,
			Alias: "some words"}},
		{host, nl.Veth{Name: "here", MAC: "0a:00:00:00:00:02", Peer: "too", PeerNS: host}},
	}.Add())
	ip(t, host, "link", "add", "bridge", "type", "bridge")
	if (nl.IPVlan{}).Supported(host) == nil {
		for _, mode := range []string{"l2", "l3"} {
			must(t, nl.IPVlan{Name: mode, Master: "here", NS: pod, Mode: mode}.Add(host))
		}
	}
	for _, n := range []*nl.NS{host, pod} {
		links, err := n.Links()
		must(t, err)
		var theirs []netlink.Link
		must(t, n.Do(func() (err error) { theirs, err = netlink.LinkList(); return err }))
		if len(links) != len(theirs) {
			t.Fatalf("%d links, and not %d", len(links), len(theirs))
		}
		for i, l := range links {
			a := theirs[i].Attrs()
			mode := ""
			if v, is := theirs[i].(*netlink.IPVlan); is {
				mode = map[netlink.IPVlanMode]string{netlink.IPVLAN_MODE_L2: "l2", netlink.IPVLAN_MODE_L3: "l3"}[v.Mode]
			}
			got := fmt.Sprintln(l.Index, l.Name, l.Kind, l.MAC, l.MTU, l.Up, l.Alias, l.Group, l.Peer, l.Mode)
			want := fmt.Sprintln(a.Index, a.Name, theirs[i].Type(), a.HardwareAddr.String(), a.MTU, a.RawFlags&1 != 0,
				a.Alias, a.Group, a.ParentIndex, mode)
			if got != want {
				t.Errorf("%s\nand not\n%s", got, want)
			}
			if one, err := n.LinkByName(l.Name); err != nil || !reflect.DeepEqual(one, l) {
				t.Errorf("by name: %+v, %v, and not %+v", one, err, l)
			}
		}
	}
}

// TestDelGroup: lo is in the group, and cannot be deleted. DelGroup takes lo out of the group, and deletes the other
// links.
func TestDelGroup(t *testing.T) {
	_, pod := two(t)
	before := nltest.Dump(t, pod)
	ip(t, pod, "link", "set", "lo", "group", "7")
	must(t, nl.Wiring{
		{pod, nl.Veth{Name: "a", Peer: "b", PeerNS: pod, Group: 7, PeerGroup: 7}},
		{pod, nl.Veth{Name: "c", Peer: "d", PeerNS: pod, Group: 7}},
	}.Add())
	must(t, pod.DelGroup(7))
	if after := nltest.Dump(t, pod); after != before {
		t.Errorf("left:\n%s\nand not\n%s", after, before)
	}
	if err := pod.DelGroup(8); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no link: %v", err)
	}
}

// TestIsPeer: a link with the right index, but in another namespace, is not the other end of a pair.
func TestIsPeer(t *testing.T) {
	host, pod := two(t)
	other, _ := nltest.NS(t, "other")
	ip(t, host, "link", "add", "bridge", "type", "bridge") // so that the ends have different indices
	must(t, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}.Add(host))
	near, err := host.LinkByName("veth1")
	must(t, err)
	ip(t, other, "link", "add", "index", fmt.Sprint(near.Peer), "name", "eth1", "type", "veth", "peer", "name", "veth1",
		"index", fmt.Sprint(near.Index))
	if !host.IsPeer(near, pod, near.Peer) {
		t.Error("the other end is not known for what it is")
	}
	if host.IsPeer(near, pod, near.Peer+1) {
		t.Error("another link is taken for the other end")
	}
	if host.IsPeer(near, other, near.Peer) {
		t.Error("a link of a namespace that has no ID is taken for the other end")
	}
	must(t, nl.Veth{Name: "veth2", Peer: "eth2", PeerNS: other}.Add(host)) // gives other a number in host
	if host.IsPeer(near, other, near.Peer) {
		t.Error("a link of another namespace is taken for the other end")
	}
	here, err := other.LinkByName("eth1")
	must(t, err)
	if other.IsPeer(here, pod, here.Peer) {
		t.Error("a pair in one namespace is taken for one in two")
	}
}

// TestOpenOther: OpenOther opens any namespace except its receiver's own.
func TestOpenOther(t *testing.T) {
	host, path := nltest.NS(t, "host")
	if n, err := host.OpenOther("pod", path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened %v: %v", n, err)
	}
	_, path = nltest.NS(t, "pod")
	pod, err := host.OpenOther("pod", path)
	must(t, err)
	must(t, pod.Close())
	if n, err := host.OpenOther("pod", "/run/netns/absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened %v: %v", n, err)
	}
}
