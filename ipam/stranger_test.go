// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A stranger is a process without privileges, with a namespace of its own.
type stranger struct {
	*nl.NS
	path string
}

func newStranger(t *testing.T) stranger {
	t.Helper()
	ns, path := nltest.Stranger(t)
	return stranger{ns, path}
}

// claim adds addresses to the stranger's links lo, ens5 and eth0 in turn. ens5 has the MAC address of the ENI, and eth0
// is a slave of ens5.
func (s stranger) claim(t *testing.T, mac string, addrs ...netip.Addr) {
	t.Helper()
	must(t, nl.Veth{Name: "ens5", MAC: mac, Peer: "far", PeerNS: s.NS}.Add(s.NS))
	addSlave(t, s.NS, "ens5", s.path, "eth0")
	for i, a := range addrs {
		dev := []string{"lo", "ens5", "eth0"}[i%3]
		must(t, nl.Addr{Prefix: netip.PrefixFrom(a, a.BitLen()), Dev: dev, NoDAD: a.Is6()}.Add(s.NS))
	}
}

// TestStranger: a process without privileges gives its own links the addresses and the MAC address of an ENI. No
// address of the ENI or of its prefixes counts as used because of this, in the old registry or in a rebuilt one.
func TestStranger(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("registry lost %v", lost), func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			w.policy.Batch = 6
			a := w.mustAcquire(1)
			w.runPod(a)
			w.Age(time.Hour)
			w.collect()
			e := w.EC2.ENIs()[1]
			s := newStranger(t)
			s.claim(t, e.MAC, e.Addrs...)
			if lost {
				w.Lose()
			}
			w.collect()
			state := w.State()
			for b, l := range state.Leases.All() {
				if b != a {
					t.Errorf("%s is leased: %+v", b, l)
				}
			}
			if !state.Leases.Has(a) {
				t.Errorf("%s of a pod is not leased", a)
			}
			w.consistent()
		})
	}
}

// TestStrangerLeases: an earlier release has made leases for the addresses that a stranger claims. A collection ends
// these leases.
func TestStrangerLeases(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 4
	a := w.mustAcquire(1)
	w.collect()
	e := w.EC2.ENIs()[1]
	s := newStranger(t)
	s.claim(t, e.MAC, e.Addrs...)
	free := 0
	w.Edit(func(state *registry.State) {
		for _, b := range e.Addrs {
			if b != a {
				state.Found(b, registry.Lease{NetNS: s.path, ENI: e.ID, Bound: true, Since: time.Now()})
				free++
			}
		}
	})
	c := less.Collection{FreeAfter: 24 * time.Hour, Max: -1}
	must1(w.pool().Collect(t.Context(), c))(t)
	w.Age(2 * time.Minute)
	done := must1(w.pool().Collect(t.Context(), c))(t)
	if len(done.Ended) < free {
		t.Errorf("the leases of %v have ended, of %d without a pod", done.Ended, free)
	}
}

// TestStrangerChanges: a stranger changes its links and addresses all the time, so that no list of the kernel is
// complete. A collection still ends the lease of a pod that is gone, and releases its address.
func TestStrangerChanges(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 4
	a := w.mustAcquire(1)
	w.mustAcquire(2)
	e := w.EC2.ENIs()[1]
	s := newStranger(t)
	s.claim(t, e.MAC)
	for i := range 200 { // so many that a list of the kernel has several parts
		must(t, nl.Veth{Name: fmt.Sprint("v", i), Peer: fmt.Sprint("w", i), PeerNS: s.NS}.Add(s.NS))
	}
	// With this pair, the kernel has an ID for the node's namespace in the stranger's namespace, as in a pod's.
	must(t, nl.Veth{Name: "vpair", Peer: "pair", PeerNS: s.NS}.Add(w.Host))
	own, err := nl.Open("stranger", s.path)
	must(t, err)
	defer own.Close()
	end := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		v := nl.Veth{Name: "x0", Peer: "x1", PeerNS: own}
		at := nl.Addr{Prefix: netip.PrefixFrom(a, 32), Dev: "lo"}
		for {
			select {
			case <-end:
				return
			default:
				_, _, _, _ = v.Add(own), at.Add(own), at.Del(own), v.Del(own)
			}
		}
	})
	defer changes.Wait()
	defer close(end)
	c := less.Collection{FreeAfter: time.Minute, Max: -1}
	for range 4 {
		must1(w.pool().Collect(t.Context(), c))(t)
		w.Age(2 * time.Minute)
	}
	if s := w.State(); s.Leases.Len() > 0 {
		t.Errorf("after four collections, %d leases of pods that are gone have not ended", s.Leases.Len())
	}
	if n := len(w.ENIs()); n != 1 {
		t.Errorf("the node has %d ENIs, and no pod", n)
	}
}

// TestStrangerLink: the link of an ENI is not on the node. A stranger has a link with the ENI's MAC address, but this
// link is not a network card, so a collection deletes the ENI. (The ENIs of this test are veths, so the stranger's link
// is of another kind.)
func TestStrangerLink(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.mustAcquire(1)
	w.end(1)
	e := w.EC2.ENIs()[1]
	s := newStranger(t)
	s.claim(t, "02:00:00:00:00:aa")
	addSlaveWith(t, s.NS, "ens5", s.path, "eth1", e.MAC)
	must(t, nl.Veth{Name: "vpc" + e.ID[len(e.ID)-4:], Peer: "x", PeerNS: w.Host}.Del(w.Host))
	w.Age(2 * time.Hour)
	if c := w.collect(); len(c.Deleted) != 1 {
		t.Errorf("the collection has deleted %v, want %s", c.Deleted, e.ID)
	}
}

// TestPodTakesMore: a pod adds addresses of a prefix to its own links. At most mostOfPrefix of them count as used.
func TestPodTakesMore(t *testing.T) {
	w := newWorld6(t, "m5.large")
	w.policy.Families, w.policy.Prefixes = dual[1:], true
	a := w.mustAcquire(1)
	e := w.EC2.ENIs()[1]
	path, _ := startPod(t)
	l, err := w.Host.FindMAC(e.MAC)
	must(t, err)
	addSlave(t, w.Host, l.Name, path, l.Name)
	ns, err := nl.Open("pod", path)
	must(t, err)
	defer ns.Close()
	const many, most = 300, 64
	for i, b := 0, e.IPv6Prefixes[0].Addr().Next(); i < many; i, b = i+1, b.Next() {
		must(t, nl.Addr{Prefix: netip.PrefixFrom(b, 128), Dev: l.Name, NoDAD: true}.Add(ns))
	}
	w.Age(time.Hour)
	w.collect()
	if n := w.State().Leases.Len(); n < most || n > most+1 {
		t.Errorf("there are %d leases, of which one is of %s", n, a)
	}
}
