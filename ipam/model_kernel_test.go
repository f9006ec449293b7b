// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// A kernel is a node's namespace and some namespaces for pods. Several histories use the same kernel, one after
// another, because to make a namespace takes longer than to play a history.
type kernel struct {
	host     *nl.NS
	node     string          // the path of the node's namespace
	links    *netlink.Handle // of the node
	dir      string          // the directory with a symlink for each namespace in use
	netSlots []*netSlot

	carrier   func(netip.Addr) string // returns the ENI of the node that has an address
	adversary *adversary

	mu    sync.Mutex // for processes that run at once, and call plug and linked
	cards []*card
}

// A card is a link of the node for one ENI at a time. Without an ENI, the link is down and has another MAC address, so
// processes take the ENI's link for missing.
type card struct {
	veth nl.Veth
	eni  string
}

// A netSlot is a namespace for one pod at a time, and a veth pair to it. While the slot has no wired pod, the pair is
// down and not in our group, so processes take it for missing. No history deletes the pair, because this would take
// longer than the history.
type netSlot struct {
	ns    *nl.NS
	path  string
	veth  nl.Veth
	table uint32
	pod   string            // the pod that has the namespace; empty: none
	pair  string            // the attachment that has the pair; empty: none
	wired bool              // the pair is in our group; the pair of a pod of the original plugin is not
	has   map[string]*wired // by attachment

	slaves map[*card]string // the name of the pod's slave on each card's link
}

// wired is what an attachment has in the kernel.
type wired struct {
	nl.Wiring
	further bool // the pod already had an attachment: this one has no pair, and no routes on the node
}

// shared is what the plugins install on a node for all pods.
var shared = []nl.Object{
	nl.Table{Family: "inet", Name: nl.OwnTable},
	nl.Rule{Pref: 512, Mark: 0x2000, Mask: 0x2000, Table: 254, Protocol: nl.RouteProtocol},
}

// newKernel makes the namespaces of a node and of its pods; the argument pods is the number of the pods' namespaces.
// The node's processes look at no other namespaces.
func newKernel(t *testing.T, pods int) *kernel {
	t.Helper()
	nltest.Need(t, "root", "netns", "nftables")
	host, path := nltest.NS(t, "model-node")
	k := &kernel{host: host, node: path, dir: t.TempDir()}
	must(t, host.Do(func() (err error) { k.links, err = netlink.NewHandle(); return err }))
	t.Cleanup(k.links.Close)
	for i := range pods {
		ns, path := nltest.NS(t, "model-pod")
		s := &netSlot{ns: ns, path: path, table: uint32(300 + i), has: map[string]*wired{}, slaves: map[*card]string{}}
		s.veth = nl.Veth{Name: fmt.Sprintf("veth%08x", i), Peer: "eth1", PeerNS: ns,
			Alias: "cni-ipvlan-vpc-k8s net model eth0"}
		k.netSlots = append(k.netSlots, s)
		k.park(t, s)
	}
	world, _ := nltest.NS(t, "model-vpc")
	for i := range 9 { // more ENIs than a node can have here
		c := &card{veth: nl.Veth{Name: fmt.Sprint("ens", i), MAC: fmt.Sprintf("02:00:00:00:00:%02x", i),
			Peer: fmt.Sprint("ens", i), PeerNS: world}}
		must(t, c.veth.Add(host))
		k.cards = append(k.cards, c)
	}
	k.adversary = newAdversary(t, k)
	return k
}

// of returns a node on this kernel, without an instance: the history launches the instance later.
func (k *kernel) of(t testing.TB, dir string) *simtest.Node {
	return &simtest.Node{TB: t, Host: k.host, Path: k.node, Dir: dir}
}

// path returns the path of a pod's namespace. While the pod has no namespace, nothing is at this path.
func (k *kernel) path(pod string) string { return filepath.Join(k.dir, pod) }

func (k *kernel) netSlot(pod string) *netSlot {
	if i := slices.IndexFunc(k.netSlots, func(s *netSlot) bool { return s.pod == pod }); i >= 0 {
		return k.netSlots[i]
	}
	return nil
}

// start makes a namespace for a pod, as the runtime does before an ADD. It returns false if all namespaces are in use.
func (k *kernel) start(t testing.TB, pod string) bool {
	s := k.netSlot("")
	if s == nil {
		return false
	}
	s.pod = pod
	must(t, os.Symlink(s.path, k.path(pod)))
	return true
}

// wire adds what the other plugins add: a slave of the ENI's link, with the addresses, and a veth pair, a rule and
// routes. It also adds the objects that serve all pods. If original is true, these objects do not have our marks. The
// first addresses are those of the pod's first interface, and get routes on the node; ofFirst is their number. A second
// attachment gets nothing on the node.
func (k *kernel) wire(t testing.TB, pod, attachment string, addrs []netip.Addr, ofFirst int, original bool) {
	s, group, protocol := k.netSlot(pod), nl.OwnGroup, nl.RouteProtocol
	if original {
		group, protocol = 0, 0
	}
	w := s.has[attachment]
	if w == nil {
		w = &wired{further: len(s.has) > 0}
		s.has[attachment] = w
	}
	must(t, w.Del())
	w.Wiring = nil
	if w.further {
		ofFirst = 0
	} else {
		s.pair, s.wired = attachment, !original
		k.bring(t, s, group)
	}
	if !w.further && !original {
		for _, o := range shared {
			must(t, nl.Wiring{{NS: k.host, Object: o}}.Add())
		}
		w.Wiring = append(w.Wiring, nl.Step{NS: k.host, Object: nl.Rule{Pref: 1024, IIF: s.veth.Name, Table: s.table,
			Protocol: protocol}})
	}
	for i, a := range addrs {
		host := netip.PrefixFrom(a, a.BitLen())
		w.Wiring = append(w.Wiring, nl.Step{NS: s.ns, Object: nl.Addr{Prefix: host, Dev: k.slave(t, s, a),
			NoDAD: a.Is6()}})
		if i >= ofFirst {
			continue
		}
		for _, table := range []uint32{0, s.table} {
			w.Wiring = append(w.Wiring, nl.Step{NS: k.host, Object: nl.Route{Dst: host, Dev: s.veth.Name, Table: table,
				Protocol: protocol}})
		}
	}
	if err := w.Add(); err != nil {
		t.Fatalf("wire %s of %s: %v", attachment, pod, err)
	}
}

// slave returns the name of the pod's slave whose master is the link of the ENI with the address. It makes a missing
// slave. If no ENI has the address any more, the master is another ENI's link, and the slave is useless.
func (k *kernel) slave(t testing.TB, s *netSlot, a netip.Addr) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	eni := k.carrier(a)
	i := max(0, slices.IndexFunc(k.cards, func(c *card) bool { return c.eni != "" && c.eni == eni }))
	c := k.cards[i]
	if s.slaves[c] == "" {
		addSlave(t, k.host, c.veth.Name, s.path, c.veth.Name)
		s.slaves[c] = c.veth.Name
	}
	return s.slaves[c]
}

// unwire removes the addresses, routes and rules of one attachment. If the pair is this attachment's, unwire parks the
// pair. The pod continues to run.
func (k *kernel) unwire(t testing.TB, pod, attachment string) {
	s := k.netSlot(pod)
	if s == nil || s.has[attachment] == nil {
		return
	}
	must(t, s.has[attachment].Del())
	delete(s.has, attachment)
	if s.pair == attachment {
		s.pair, s.wired = "", false
		k.park(t, s)
	}
}

// attachments counts the attachments of a pod.
func (k *kernel) attachments(pod string) int {
	if s := k.netSlot(pod); s != nil {
		return len(s.has)
	}
	return 0
}

// addrs returns the addresses in namespaces and in host routes of the node, with their attachments.
func (k *kernel) addrs() map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for _, s := range k.netSlots {
		for of, w := range s.has {
			for _, step := range w.Wiring {
				switch o := step.Object.(type) {
				case nl.Addr:
					all[o.Prefix.Addr()] = of
				case nl.Route:
					all[o.Dst.Addr()] = of
				}
			}
		}
	}
	return all
}

// linkedTo reports whether the attachment has as many addresses in its namespace as addrs has.
func (k *kernel) linkedTo(pod, attachment string, addrs []netip.Addr) bool {
	s := k.netSlot(pod)
	if s == nil || s.has[attachment] == nil {
		return false
	}
	n := 0
	for _, step := range s.has[attachment].Wiring {
		if _, is := step.Object.(nl.Addr); is {
			n++
		}
	}
	return n == len(addrs)
}

// bring puts the pair of a netSlot into a group, and sets it up.
func (k *kernel) bring(t testing.TB, s *netSlot, group int) {
	l, err := k.links.LinkByName(s.veth.Name)
	must(t, err)
	must(t, k.links.LinkSetGroup(l, group))
	must(t, k.links.LinkSetUp(l))
}

// park removes the pair from our group. If a process has deleted the pair, park makes another.
func (k *kernel) park(t testing.TB, s *netSlot) {
	l, err := k.links.LinkByName(s.veth.Name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		must(t, s.veth.Add(k.host))
		l, err = k.links.LinkByName(s.veth.Name)
	}
	must(t, err)
	must(t, k.links.LinkSetDown(l))
	must(t, k.links.LinkSetGroup(l, 0))
}

// stop ends a pod without a DEL: it removes the pod's addresses, routes and rules, and frees its namespace.
func (k *kernel) stop(t testing.TB, pod string) {
	s := k.netSlot(pod)
	if s == nil {
		return
	}
	for attachment := range s.has {
		k.unwire(t, pod, attachment)
	}
	s.pod = ""
	if err := os.Remove(k.path(pod)); !errors.Is(err, fs.ErrNotExist) {
		must(t, err)
	}
}

// lost returns an error that names the objects that running pods have lost.
func (k *kernel) lost() (err error) {
	running := false
	for _, s := range k.netSlots {
		for _, w := range s.has {
			err = errors.Join(err, w.Check())
		}
		if !s.wired {
			continue
		}
		running = true
		if l, e := k.links.LinkByName(s.veth.Name); e != nil {
			err = errors.Join(err, fmt.Errorf("%s of %s: %w", s.veth.Name, s.pod, e))
		} else if l.Attrs().Group != nl.OwnGroup || l.Attrs().Flags&1 == 0 {
			err = errors.Join(err, fmt.Errorf("%s of %s is down or in group %d", s.veth.Name, s.pod, l.Attrs().Group))
		}
	}
	if running {
		for _, o := range shared {
			err = errors.Join(err, nl.Wiring{{NS: k.host, Object: o}}.Check())
		}
	}
	return err
}

// plug gives the node the link of an ENI.
func (k *kernel) plug(t testing.TB, e ec2sim.ENI) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.cards, func(c *card) bool { return c.eni == "" })
	k.cards[i].eni = e.ID
	k.change(t, k.cards[i], e.MAC)
}

// unplug removes the link of an ENI from the node.
func (k *kernel) unplug(t testing.TB, eni string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.cards {
		if c.eni == eni {
			c.eni = ""
			k.change(t, c, c.veth.MAC)
		}
	}
}

// slavesGo calls the function of with each address of a pod. If the result is true, it removes the address from the
// pod. The kernel does so when it deletes an ENI's link, because it also deletes the slaves of this link. The pods'
// pairs, and the routes through them, stay.
func (k *kernel) slavesGo(t testing.TB, of func(netip.Addr) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.netSlots {
		for _, w := range s.has {
			gone := func(step nl.Step) bool { a, is := step.Object.(nl.Addr); return is && of(a.Prefix.Addr()) }
			for _, step := range w.Wiring {
				if gone(step) {
					must(t, nl.Wiring{step}.Del())
				}
			}
			w.Wiring = slices.DeleteFunc(w.Wiring, gone)
		}
	}
}

func (k *kernel) change(t testing.TB, c *card, mac string) {
	l, err := k.links.LinkByName(c.veth.Name)
	must(t, err)
	hw, err := net.ParseMAC(mac)
	must(t, err)
	must(t, k.links.LinkSetDown(l))
	must(t, k.links.LinkSetHardwareAddr(l, hw))
}

// linked reports whether the node has the link of an ENI.
func (k *kernel) linked(eni string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.cards, func(c *card) bool { return c.eni == eni })
}

// clear stops all pods, and removes the shared objects.
func (k *kernel) clear(t testing.TB) {
	for _, s := range k.netSlots {
		if s.pod != "" {
			k.stop(t, s.pod)
		}
	}
	for _, o := range shared {
		must(t, nl.Wiring{{NS: k.host, Object: o}}.Del())
	}
}

// end does what clear does, and removes the links of the ENIs.
func (k *kernel) end(t testing.TB) {
	k.clear(t)
	for _, c := range k.cards {
		if c.eni != "" {
			k.unplug(t, c.eni)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("the test itself: %w", err))
	}
}
