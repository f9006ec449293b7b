// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

const masterMAC, routerMAC = "0a:00:00:00:00:06", "0a:00:00:00:00:01"

// guardElement makes a node with the links ens6 and ens7, whose other ends are in the namespace outside.
func guardElement(t *testing.T) (node, outside *nl.NS) {
	nltest.Need(t, "root", "nftables")
	node, _ = nltest.NS(t, "node")
	outside, _ = nltest.NS(t, "outside")
	for i, dev := range []string{"ens6", "ens7"} {
		err := nl.Wiring{
			{NS: node, Object: nl.Veth{Name: dev, MAC: fmt.Sprintf("0a:00:00:00:00:%02x", 6+i), Peer: dev,
				PeerNS: outside}},
			{NS: node, Object: nl.Sysctl{Key: "net/ipv4/conf/" + dev + "/arp_accept", Value: "1"}},
		}.Add()
		if err != nil {
			t.Fatal(err)
		}
	}
	nltest.Shell(t, node, "ip addr add 10.0.1.5/24 dev ens6; ip addr add 10.0.2.5/24 dev ens7")
	return node, outside
}

// claim sends an ARP message in a frame from one MAC address to another. The message claims that the sender has the
// address.
func claim(t *testing.T, n *nl.NS, dev, to, from string, address [4]byte) {
	t.Helper()
	dst, _ := net.ParseMAC(to)
	src, _ := net.ParseMAC(from)
	frame := slices.Concat(dst, src, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, src, address[:], make([]byte, 6), address[:])
	l, err := n.LinkByName(dev)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Index})
	}); err != nil {
		t.Fatal(err)
	}
}

// TestGuard: frames whose source is the link's own MAC address, or the MAC address of a group, do not reach the node.
// Other frames do.
func TestGuard(t *testing.T) {
	node, outside := guardElement(t)
	g := nl.Guard{Link: "ens6"}
	w := nl.Wiring{{NS: node, Object: g}}
	if err := w.Check(); err == nil {
		t.Error("Check before Add: no error")
	}
	for range 2 {
		if err := w.Add(); err != nil {
			t.Fatal(err)
		}
		if err := w.Check(); err != nil {
			t.Fatal(err)
		}
	}
	const group, broadcast = "33:33:00:00:00:01", "ff:ff:ff:ff:ff:ff"
	for i, c := range []struct {
		dev, to, from string
		arrives       bool
	}{
		{"ens6", masterMAC, masterMAC, false},
		{"ens6", broadcast, masterMAC, false},
		{"ens6", broadcast, broadcast, false},
		{"ens6", group, group, false},
		{"ens7", broadcast, broadcast, false},
		{"ens6", masterMAC, routerMAC, true},
		{"ens6", broadcast, routerMAC, true},
		{"ens7", broadcast, masterMAC, true}, // an ENI reaches another ENI of its node in the same subnet
	} {
		address := [4]byte{10, 0, byte(1 + i%2), byte(100 + i)}
		if c.dev == "ens7" {
			address[2] = 2
		} else {
			address[2] = 1
		}
		claim(t, outside, c.dev, c.to, c.from, address)
		known := strings.Contains(nltest.Shell(t, node, "ip neigh show dev "+c.dev), net.IP(address[:]).String()+" ")
		if known != c.arrives {
			t.Errorf("%s: a frame to %s from %s: the node knows the neighbour: %v, want %v", c.dev, c.to, c.from,
				known, c.arrives)
		}
	}
	if listed := nltest.Shell(t, node, "nft list ruleset"); strings.Count(listed, `"ens6" . `+masterMAC) != 2 {
		t.Errorf("nft does not show the element in both tables:\n%s", listed)
	}
}

// TestGuardCheck changes the guards in several ways. Check must find each change, and Restore must undo it.
func TestGuardCheck(t *testing.T) {
	node, _ := guardElement(t)
	guards := []nl.Guard{{Link: "ens6"}, {Link: "ens7"}}
	for _, g := range guards {
		if err := (nl.Wiring{{NS: node, Object: g}}).Add(); err != nil {
			t.Fatal(err)
		}
	}
	table := nl.GuardTable
	for _, change := range []string{
		"nft flush ruleset",
		"nft delete table arp " + table,
		"nft delete table inet " + table,
		"nft flush chain inet " + table + " guard",
		"nft flush set arp " + table + " masters",
		"nft insert rule inet " + table + " guard accept",
		"nft add table arp " + table + " '{ flags dormant; }'",
		"ip link set ens6 down; ip link set ens6 address 0a:00:00:00:00:66 up",
	} {
		nltest.Shell(t, node, change)
		wrong := 0
		for _, g := range guards {
			if g.Check(node) != nil {
				wrong++
			}
		}
		if wrong == 0 {
			t.Errorf("%s: Check finds nothing", change)
		}
		for _, g := range guards {
			if err := g.Restore(node); err != nil {
				t.Errorf("%s: Restore: %v", change, err)
			}
		}
		for _, g := range guards {
			if err := g.Check(node); err != nil {
				t.Errorf("%s: Check after Restore: %v", change, err)
			}
		}
	}
	if removed, err := node.RemoveShared(); !removed || err != nil ||
		strings.Contains(nltest.Shell(t, node, "nft list tables"), table) {
		t.Errorf("RemoveShared: %v, %v", removed, err)
	}
}

// TestGuardAtOnce adds the guards of several links at the same time. No guard is lost, except those of deleted links.
func TestGuardAtOnce(t *testing.T) {
	node, _ := guardElement(t)
	var wg sync.WaitGroup
	var links []string
	for i := range 10 {
		name := fmt.Sprint("link", i)
		links = append(links, name)
		nltest.Shell(t, node, "ip link add "+name+" type veth peer name x"+name)
	}
	for _, name := range links {
		wg.Go(func() {
			if err := node.Do(func() error {
				own, err := nl.Node()
				if err != nil {
					return err
				}
				defer own.Close()
				return nl.Wiring{{NS: own, Object: nl.Guard{Link: name}}}.Add()
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, name := range links {
		if err := (nl.Guard{Link: name}).Check(node); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	nltest.Shell(t, node, "ip link del link0")
	if err := (nl.Wiring{{NS: node, Object: nl.Guard{Link: "ens6"}}}).Add(); err != nil {
		t.Fatal(err)
	}
	if listed := nltest.Shell(t, node, "nft -j list set inet "+nl.GuardTable+" masters"); strings.Count(listed,
		`"concat": [`) != len(links) {
		t.Errorf("want %d elements: those of the links that are there:\n%s", len(links), listed)
	}
}
