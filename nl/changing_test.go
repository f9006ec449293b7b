// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestListsChanging lists rules and IPv6 routes. At the same time, it adds and deletes other rules and routes, which
// come earlier in the lists. The kernel sends such a list in parts, and does not mark it as interrupted. Each unchanged
// object must be in each list once.
func TestListsChanging(t *testing.T) {
	t.Run("rules", func(t *testing.T) { listWhileChanging(t, 200, ruleAt, (*nl.NS).Rules) })
	t.Run("routes", func(t *testing.T) { // so few routes that one large part has room for all
		listWhileChanging(t, 120, routeAt, func(n *nl.NS) ([]nl.Route, error) {
			return n.Routes(nl.RouteFilter{Family: nl.IPv6, Protocol: nl.RouteProtocol})
		})
	})
}

// listWhileChanging makes each list with a new socket, as a process does. The first part that a socket gets is small.
func listWhileChanging[T nl.Object](t *testing.T, keep int, at func(int) T, list func(*nl.NS) ([]T, error)) {
	const lists = 600
	host, path := nltest.NS(t, "host")
	kept := objectsAt(host, 1000, keep, at)
	if err := kept.Add(); err != nil {
		t.Fatal(err)
	}
	change(t, path, at)
	for range lists {
		n, err := nl.Open("node", path)
		if err != nil {
			t.Fatal(err)
		}
		all, err := list(n)
		n.Close()
		if err != nil {
			t.Fatal(err)
		}
		count := map[string]int{}
		for _, o := range all {
			count[place(o)]++
		}
		for _, s := range kept {
			if c := count[place(s.Object)]; c != 1 {
				t.Fatalf("%s is in the list %d times", s.Object, c)
			}
		}
	}
}

// change adds and deletes objects until the test ends.
func change[T nl.Object](t *testing.T, path string, at func(int) T) {
	n, err := nl.Open("other", path)
	if err != nil {
		t.Fatal(err)
	}
	stop, result := make(chan struct{}), make(chan error, 1)
	t.Cleanup(func() {
		close(stop)
		if err := errors.Join(<-result, n.Close()); err != nil {
			t.Error(err)
		}
	})
	go func() {
		w := objectsAt(n, 100, 60, at)
		for {
			err := errors.Join(w.Add(), w.Del())
			select {
			case <-stop:
			default:
				if err == nil {
					continue
				}
			}
			result <- err
			return
		}
	}()
}

// TestRuleDeletedMeanwhile deletes the first rule after the kernel has written the first part of a list. It repeats
// this with different numbers of rules. The list must have all other rules, or count as interrupted. With one of the
// numbers, exactly one rule does not fit into the first part.
func TestRuleDeletedMeanwhile(t *testing.T) {
	host, _ := nltest.NS(t, "host")
	const last = 40000 // after the kernel's own rules
	first := ruleAt(1)
	whole, interrupted := 0, 0
	for i := range 100 {
		if err := errors.Join(first.Add(host), ruleAt(last+i).Add(host)); err != nil {
			t.Fatal(err)
		}
		listed, err := host.Paused(unix.RTM_GETRULE, unix.RTM_NEWRULE, func() error { return first.Del(host) })
		switch {
		case errors.Is(err, netlink.ErrDumpInterrupted):
			interrupted++
			continue
		case err != nil:
			t.Fatal(err)
		}
		whole++
		for k := range i + 1 {
			if !slices.Contains(nl.ParseRules(listed), ruleAt(last+k)) {
				t.Errorf("of %d rules, %s is not in the list", i+1, ruleAt(last+k))
			}
		}
	}
	if whole == 0 || interrupted == 0 {
		t.Errorf("%d lists are whole, and %d are interrupted", whole, interrupted)
	}
}

// TestTableGrows makes the kernel's table of neighbours grow after the first part of a list. The list then counts as
// interrupted, and Neighbours reads it again.
func TestTableGrows(t *testing.T) {
	const few, many = 100, 2000
	host, pod := two(t)
	w := nl.Wiring{{NS: host, Object: nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}}}
	if err := append(w, objectsAt(host, 0, few, neighAt)...).Add(); err != nil {
		t.Fatal(err)
	}
	_, err := host.Paused(unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, objectsAt(host, few, many, neighAt).Add)
	if !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("the list's error is %v", err)
	}
	all, err := host.Neighbours()
	index := slices.Collect(maps.Keys(all))
	if err != nil || len(index) != 1 || len(all[index[0]]) != few+many {
		t.Errorf("%d links have neighbours, want 1 with %d; %v", len(index), few+many, err)
	}
}

// TestManyRules lists more rules than the largest part of a list can have.
func TestManyRules(t *testing.T) {
	host, _ := nltest.NS(t, "host")
	own, err := host.Rules()
	kept := objectsAt(host, 1000, 1000, ruleAt)
	if err := errors.Join(err, kept.Add()); err != nil {
		t.Fatal(err)
	}
	rules, err := host.Rules()
	if err != nil || len(rules) != len(own)+len(kept) {
		t.Fatalf("%d rules, want %d; %v", len(rules), len(own)+len(kept), err)
	}
	for i, s := range kept {
		if got := rules[1+i]; got != s.Object { // the first rule is that of the table local
			t.Fatalf("rule %d: %s, want %s", i, got, s.Object)
		}
	}
}

func objectsAt[T nl.Object](n *nl.NS, first, count int, at func(int) T) (w nl.Wiring) {
	for i := range count {
		w = append(w, nl.Step{NS: n, Object: at(first + i)})
	}
	return w
}

func ruleAt(pref int) nl.Rule {
	return nl.Rule{Pref: pref, Family: nl.IPv4, Table: 100, Protocol: nl.RouteProtocol}
}

func routeAt(last int) nl.Route {
	dst := netip.MustParsePrefix(fmt.Sprintf("fd00::%d/128", last))
	return nl.Route{Dst: dst, Dev: "lo", Protocol: nl.RouteProtocol}
}

func neighAt(last int) nl.Neigh {
	a := netip.AddrFrom4([4]byte{10, 0, byte(last >> 8), byte(last)})
	return nl.Neigh{Addr: a, MAC: "02:00:00:00:00:01", Dev: "veth1"}
}

// place returns the part of an object that ruleAt or routeAt has chosen. Routes cannot be compared as a whole, because
// the kernel adds a metric.
func place(o any) string {
	if r, is := o.(nl.Route); is {
		return r.Dst.String()
	}
	return fmt.Sprint(o.(nl.Rule).Pref)
}
