// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package simtest

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// A Node is an instance with a registry and a network namespace. The namespace has a link for each ENI. If a method of
// the Node fails, the test fails.
type Node struct {
	testing.TB
	*ec2sim.Instance
	EC2  *ec2sim.Sim
	Host *nl.NS // the namespace of the node
	Path string // the path of the namespace
	Dir  string // the directory of the registry, on a tmpfs as on a real node

	macs  uint16
	mu    sync.Mutex
	ended bool // the test has ended, so Plug must ignore ENIs that EC2 attaches later
}

// NewNode makes a node that has no instance yet. A test with a bubble of testing/synctest must call NewNode outside of
// the bubble, and [Node.Launch] inside.
func NewNode(t testing.TB) *Node {
	t.Helper()
	nltest.Need(t, "root", "netns")
	n := &Node{TB: t, Dir: filepath.Join(Memory(t), "state"), macs: uint16(macRange.Add(1))}
	n.Host, n.Path = nltest.NS(t, "node")
	t.Cleanup(n.end)
	return n
}

// Here does what [NewNode] does, but the node is in the network namespace of this process. Tests that call Here must
// run one after the other, because their nodes share this namespace. The link of the boot ENI has the ENI's address, as
// after DHCP. The cleanup of the test deletes all links in the namespace except the loopback.
func Here(t testing.TB) *Node {
	t.Helper()
	n := &Node{TB: t, Dir: filepath.Join(Memory(t), "state"), Path: ownNetNS}
	var err error
	n.Host, err = nl.Node()
	n.must(err)
	t.Cleanup(func() {
		n.end()
		links, err := n.Host.Links()
		n.must(err)
		for _, l := range links {
			if l.Name != "lo" {
				err = errors.Join(err, nl.Wiring{{NS: n.Host, Object: nl.Veth{Name: l.Name}}}.Del())
			}
		}
		n.must(errors.Join(err, n.Host.Close()))
	})
	return n
}

func (n *Node) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
}

// Launch starts EC2, and launches the node's instance. If a method of the node fails later, the test t fails.
func (n *Node) Launch(t testing.TB, c ec2sim.Config, run ec2sim.RunInstance) {
	t.Helper()
	c.MACs = n.macs
	n.TB, n.EC2 = t, startSim(t, c)
	n.EC2.OnChange(n.Plug)
	var err error
	if n.Instance, err = n.EC2.RunInstance(run); err != nil {
		t.Fatal(err)
	}
}

const ownNetNS = "/proc/self/ns/net"

// Plug is a listener for changes in EC2. When EC2 attaches an ENI to the node, Plug adds the ENI's link to the node's
// namespace. When EC2 detaches the ENI, Plug deletes the link.
func (n *Node) Plug(c ec2sim.Change) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended || n.Instance != nil && c.Instance != n.ID {
		return
	}
	host, err := nl.Open("node", n.Path) // not n.Host, because Plug may run in another goroutine than the test
	if err != nil {
		n.Error(err)
		return
	}
	defer host.Close()
	link := nl.Veth{Name: "vpc" + c.ENI.ID[len(c.ENI.ID)-4:], Peer: fmt.Sprintf("eth%d", 100*c.ENI.Card+c.ENI.Index),
		PeerMAC: c.ENI.MAC, PeerNS: host, MTU: 1500}
	w := nl.Wiring{{NS: host, Object: link}}
	if c.ENI.Boot && n.Path == ownNetNS {
		link.MTU = 9001
		w = nl.Wiring{{NS: host, Object: link}, {NS: host, Object: nl.Addr{Dev: link.Peer,
			Prefix: netip.PrefixFrom(c.ENI.Addrs[0], c.ENI.CIDR.Bits())}}}
	}
	switch c.Kind {
	case ec2sim.Attached:
		err = w.Add()
	case ec2sim.Detached:
		err = link.Del(host)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the test may already have deleted the link
		n.Errorf("%s %s: %v", c.Kind, link, err)
	}
}

// Operate calls EC2 as an operator or another program does. The parameters are a name, its value, the next name and so
// on.
func (n *Node) Operate(action string, parameters ...string) {
	n.Helper()
	form := map[string]string{}
	for i := 0; i < len(parameters); i += 2 {
		form[parameters[i]] = parameters[i+1]
	}
	n.must(n.EC2.Operate(action, form))
}

// ENI returns the state of an ENI in EC2.
func (n *Node) ENI(id string) ec2sim.ENI {
	n.Helper()
	all := n.EC2.ENIs()
	i := slices.IndexFunc(all, func(e ec2sim.ENI) bool { return e.ID == id })
	if i < 0 {
		n.Fatalf("%s is gone", id)
	}
	return all[i]
}

// Registry opens the registry again, as each process on a real node does.
func (n *Node) Registry() *registry.Registry {
	n.Helper()
	r, err := registry.Open(n.Dir)
	n.must(err)
	return r
}

// State returns the state of the registry.
func (n *Node) State() *registry.State {
	n.Helper()
	s, err := n.Registry().View()
	n.must(err)
	return s
}

// Edit changes the registry.
func (n *Node) Edit(f func(*registry.State)) {
	n.Helper()
	n.must(n.Registry().Change(n.Context(), f))
}

// Lose removes the directory of the registry, as if the node had lost it.
func (n *Node) Lose() {
	n.Helper()
	n.must(os.RemoveAll(n.Dir))
}

// Forgive removes the records of EC2's refusals from the registry, as if they had expired.
func (n *Node) Forgive() {
	n.Helper()
	n.Edit(func(s *registry.State) { clear(s.Refusals) })
}

// Age sets times in the registry back by the duration d, so that the registry's entries look older.
func (n *Node) Age(d time.Duration) {
	n.Helper()
	n.Edit(func(s *registry.State) {
		for a, since := range s.Free.All() {
			s.Free.Set(a, since.Add(-d))
		}
		for a, when := range s.Gone {
			s.Gone[a] = when.Add(-d)
		}
		for token, i := range s.Intents {
			i.Since = i.Since.Add(-d)
			s.Intents[token] = i
		}
		if !s.Rebuilt.Since.IsZero() {
			s.Rebuilt.Since = s.Rebuilt.Since.Add(-d)
		}
		for id, e := range s.ENIs {
			e.Grown = e.Grown.Add(-d)
			if !e.Detaching.IsZero() {
				e.Detaching = e.Detaching.Add(-d)
			}
			for i := range e.Prefixes {
				e.Prefixes[i].Since = e.Prefixes[i].Since.Add(-d)
			}
			s.ENIs[id] = e
		}
		for a, l := range s.Leases.All() {
			if !l.MissingSince.IsZero() {
				l.MissingSince = l.MissingSince.Add(-d)
				s.Leases.Set(a, l)
			}
		}
	})
}

func (n *Node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}
