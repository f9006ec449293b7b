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

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// A kernel is a node's namespace and some namespaces for pods, which one history after
// another uses: to make a namespace takes longer than a history.
type kernel struct {
	host     *nl.NS
	node     string          // the path of the node's namespace
	links    *netlink.Handle // of the node
	dir      string          // where the names of the namespaces in use are
	netSlots []*netSlot

	mu    sync.Mutex // processes that run at once plug in and look
	cards []*card
}

// A card is a link of the node for one ENI at a time. While it has none it has another MAC
// address, and is down, which stands for its absence.
type card struct {
	veth nl.Veth
	eni  string
}

// A netSlot is a namespace for one pod at a time, and a veth pair to it. The pair is out of
// our group and down while no pod is wired, which stands for its absence: to delete a link
// takes longer than a history.
type netSlot struct {
	ns    *nl.NS
	path  string
	veth  nl.Veth
	table uint32
	pod   string // that has it; empty: none
	wired bool   // by us; a pod of the original plugin has nothing that bears our marks
	has   nl.Wiring
}

// shared is what the plugins install on a node for all pods.
var shared = []nl.Object{
	nl.Table{Family: "inet", Name: nl.OwnTable},
	nl.Rule{Pref: 512, Mark: 0x2000, Mask: 0x2000, Table: 254, Protocol: nl.RouteProtocol},
}

// newKernel makes namespaces for so many pods, whose node looks at these alone.
func newKernel(t *testing.T, pods int) *kernel {
	t.Helper()
	nltest.Need(t, "root", "netns", "nftables")
	host, path := nltest.NS(t, "model-node")
	k := &kernel{host: host, node: path, dir: t.TempDir()}
	must(t, host.Do(func() (err error) { k.links, err = netlink.NewHandle(); return err }))
	t.Cleanup(k.links.Close)
	for i := range pods {
		ns, path := nltest.NS(t, "model-pod")
		s := &netSlot{ns: ns, path: path, table: uint32(300 + i)}
		s.veth = nl.Veth{Name: fmt.Sprintf("veth%08x", i), Peer: "eth1", PeerNS: ns, Alias: "cni-ipvlan-vpc-k8s net model eth0"}
		k.netSlots = append(k.netSlots, s)
		k.park(t, s)
	}
	world, _ := nltest.NS(t, "model-vpc")
	for i := range 6 { // more ENIs than a node can have here
		c := &card{veth: nl.Veth{Name: fmt.Sprint("ens", i), MAC: fmt.Sprintf("02:00:00:00:00:%02x", i), Peer: fmt.Sprint("ens", i), PeerNS: world}}
		must(t, c.veth.Add(host))
		k.cards = append(k.cards, c)
	}
	return k
}

// path is where the namespace of a pod is, if it has one.
func (k *kernel) path(pod string) string { return filepath.Join(k.dir, pod) }

func (k *kernel) netSlot(pod string) *netSlot {
	if i := slices.IndexFunc(k.netSlots, func(s *netSlot) bool { return s.pod == pod }); i >= 0 {
		return k.netSlots[i]
	}
	return nil
}

// start makes a namespace for a pod, as the runtime does before an ADD; false if there is none left.
func (k *kernel) start(t *testing.T, pod string) bool {
	s := k.netSlot("")
	if s == nil {
		return false
	}
	s.pod = pod
	must(t, os.Symlink(s.path, k.path(pod)))
	return true
}

// wire gives the addresses to the pod, and the node what leads to it, as the other plugins
// do: a veth pair, a rule, routes, and what serves all pods. (The addresses are on lo, as
// this kernel may not have ipvlan.) A pod of the original plugin bears none of our marks. So many
// addresses are of the pod's first interface: the node has no routes to others.
func (k *kernel) wire(t *testing.T, pod string, addrs []netip.Addr, ofFirst int, original bool) {
	s, group, protocol := k.netSlot(pod), nl.OwnGroup, nl.RouteProtocol
	if original {
		group, protocol = 0, 0
	}
	must(t, s.has.Del())
	s.has = nil
	k.bring(t, s, group)
	if s.wired = !original; s.wired {
		for _, o := range shared {
			must(t, nl.Wiring{{NS: k.host, Object: o}}.Add())
		}
		s.has = append(s.has, nl.Step{NS: k.host, Object: nl.Rule{Pref: 1024, IIF: s.veth.Name, Table: s.table, Protocol: protocol}})
	}
	for i, a := range addrs {
		host := netip.PrefixFrom(a, a.BitLen())
		s.has = append(s.has, nl.Step{NS: s.ns, Object: nl.Addr{Prefix: host, Dev: "lo", NoDAD: a.Is6()}})
		if i >= ofFirst {
			continue
		}
		for _, table := range []uint32{0, s.table} {
			s.has = append(s.has, nl.Step{NS: k.host, Object: nl.Route{Dst: host, Dev: s.veth.Name, Table: table, Protocol: protocol}})
		}
	}
	if err := s.has.Add(); err != nil {
		t.Fatalf("wire %s: %v", pod, err)
	}
}

// bring sets the pair of a netSlot up, in a group.
func (k *kernel) bring(t *testing.T, s *netSlot, group int) {
	l, err := k.links.LinkByName(s.veth.Name)
	must(t, err)
	must(t, k.links.LinkSetGroup(l, group))
	must(t, k.links.LinkSetUp(l))
}

// park takes the pair out of our group. If somebody has deleted it, there is another.
func (k *kernel) park(t *testing.T, s *netSlot) {
	l, err := k.links.LinkByName(s.veth.Name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		must(t, s.veth.Add(k.host))
		l, err = k.links.LinkByName(s.veth.Name)
	}
	must(t, err)
	must(t, k.links.LinkSetDown(l))
	must(t, k.links.LinkSetGroup(l, 0))
}

// stop ends a pod without a DEL: its addresses, its links, its routes, its namespace are gone.
func (k *kernel) stop(t *testing.T, pod string) {
	s := k.netSlot(pod)
	if s == nil {
		return
	}
	must(t, s.has.Del())
	if s.has != nil {
		k.park(t, s)
	}
	s.pod, s.has, s.wired = "", nil, false
	if err := os.Remove(k.path(pod)); !errors.Is(err, fs.ErrNotExist) {
		must(t, err)
	}
}

// lost is what pods that run do not have any more of what was made for them.
func (k *kernel) lost() (err error) {
	running := false
	for _, s := range k.netSlots {
		if err = errors.Join(err, s.has.Check()); !s.wired {
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
func (k *kernel) plug(t *testing.T, e ec2sim.ENI) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.cards, func(c *card) bool { return c.eni == "" })
	k.cards[i].eni = e.ID
	k.change(t, k.cards[i], e.MAC)
}

// unplug takes it away.
func (k *kernel) unplug(t *testing.T, eni string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.cards {
		if c.eni == eni {
			c.eni = ""
			k.change(t, c, c.veth.MAC)
		}
	}
}

func (k *kernel) change(t *testing.T, c *card, mac string) {
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

// clear stops all, and takes away what serves all pods.
func (k *kernel) clear(t *testing.T) {
	for _, s := range k.netSlots {
		if s.pod != "" {
			k.stop(t, s.pod)
		}
	}
	for _, o := range shared {
		must(t, nl.Wiring{{NS: k.host, Object: o}}.Del())
	}
}

// end is clear, and takes the ENIs away, too.
func (k *kernel) end(t *testing.T) {
	k.clear(t)
	for _, c := range k.cards {
		if c.eni != "" {
			k.unplug(t, c.eni)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("the test itself: %w", err))
	}
}
