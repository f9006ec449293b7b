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

// A Node is an instance with a network namespace, which has a link for each of its ENIs, and with a registry. It is the
// test's, too: what its methods cannot do fails the test.
type Node struct {
	testing.TB
	*ec2sim.Instance
	EC2  *ec2sim.Sim
	Host *nl.NS // its namespace
	Path string // of that
	Dir  string // where its registry will be, on a tmpfs as on a node

	macs  uint16
	mu    sync.Mutex
	ended bool // the test has: an attachment may come later
}

// NewNode makes the namespace. Launch may be called in a bubble of synctest, whose processes do not outlive it.
func NewNode(t testing.TB) *Node {
	t.Helper()
	nltest.Need(t, "root", "netns")
	n := &Node{TB: t, Dir: filepath.Join(Memory(t), "state"), macs: uint16(simulations.Add(1))}
	n.Host, n.Path = nltest.NS(t, "node")
	t.Cleanup(n.end)
	return n
}

// Here is a node in the namespace of this process, for tests that run in turn. Its boot ENI is as DHCP leaves it. The
// namespace has no links but the loopback, before the test and after it.
func Here(t testing.TB) *Node {
	t.Helper()
	n := &Node{TB: t, Dir: filepath.Join(Memory(t), "state"), Path: own}
	var err error
	n.Host, err = nl.Node()
	n.ok(err)
	t.Cleanup(func() {
		n.end()
		links, err := n.Host.Links()
		n.ok(err)
		for _, l := range links {
			if l.Name != "lo" {
				err = errors.Join(err, nl.Wiring{{NS: n.Host, Object: nl.Veth{Name: l.Name}}}.Del())
			}
		}
		n.ok(errors.Join(err, n.Host.Close()))
	})
	return n
}

func (n *Node) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
}

// Launch starts EC2, and launches the instance. From now on the node is that test's.
func (n *Node) Launch(t testing.TB, c ec2sim.Config, run ec2sim.RunInstance) {
	t.Helper()
	c.MACs = n.macs
	n.TB, n.EC2 = t, started(t, c)
	n.EC2.OnChange(n.Plug)
	var err error
	if n.Instance, err = n.EC2.RunInstance(run); err != nil {
		t.Fatal(err)
	}
}

// own is the path of this process' namespace.
const own = "/proc/self/ns/net"

// Plug gives an ENI that is attached to the node its link, and takes it away again.
func (n *Node) Plug(c ec2sim.Change) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended || n.Instance != nil && c.Instance != n.ID {
		return
	}
	host, err := nl.Open("node", n.Path) // an NS serves one goroutine, and this one may answer a process
	if err != nil {
		n.Error(err)
		return
	}
	defer host.Close()
	link := nl.Veth{Name: "vpc" + c.ENI.ID[len(c.ENI.ID)-4:], Peer: fmt.Sprintf("eth%d", 100*c.ENI.Card+c.ENI.Index),
		PeerMAC: c.ENI.MAC, PeerNS: host, MTU: 1500}
	w := nl.Wiring{{NS: host, Object: link}}
	if c.ENI.Boot && n.Path == own {
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
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the test may have taken it away before
		n.Errorf("%s %s: %v", c.Kind, link, err)
	}
}

// Operate makes a call of EC2 as an operator or another program, with names and values of parameters in turn.
func (n *Node) Operate(action string, parameters ...string) {
	n.Helper()
	form := map[string]string{}
	for i := 0; i < len(parameters); i += 2 {
		form[parameters[i]] = parameters[i+1]
	}
	n.ok(n.EC2.Operate(action, form))
}

// ENI returns what EC2 has of an ENI.
func (n *Node) ENI(id string) ec2sim.ENI {
	n.Helper()
	all := n.EC2.ENIs()
	i := slices.IndexFunc(all, func(e ec2sim.ENI) bool { return e.ID == id })
	if i < 0 {
		n.Fatalf("%s is gone", id)
	}
	return all[i]
}

// Registry opens the registry, as each process does for itself.
func (n *Node) Registry() *registry.Registry {
	n.Helper()
	r, err := registry.Open(n.Dir)
	n.ok(err)
	return r
}

// State returns what the registry has.
func (n *Node) State() *registry.State {
	n.Helper()
	s, err := n.Registry().View()
	n.ok(err)
	return s
}

// Edit changes the registry.
func (n *Node) Edit(f func(*registry.State)) {
	n.Helper()
	n.ok(n.Registry().Change(n.Context(), f))
}

// Lose removes the registry.
func (n *Node) Lose() {
	n.Helper()
	n.ok(os.RemoveAll(n.Dir))
}

// Forgive makes the node forget what EC2 has refused, as when the time of these refusals has passed.
func (n *Node) Forgive() {
	n.Helper()
	n.Edit(func(s *registry.State) { clear(s.Refusals) })
}

// Age makes all that is free in the registry free for longer, what is gone gone for longer, and what is begun begun for
// longer.
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

func (n *Node) ok(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}
