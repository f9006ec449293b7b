// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestListsChanging lists a node's rules, and its IPv6 routes, while those of other pods come and go before them. The
// kernel sends such a list in parts, and does not mark it as interrupted. What stays is in each list once.
func TestListsChanging(t *testing.T) {
	t.Run("rules", func(t *testing.T) { listWhileChanging(t, ruleAt, (*nl.NS).Rules) })
	t.Run("routes", func(t *testing.T) {
		listWhileChanging(t, routeAt, func(n *nl.NS) ([]nl.Route, error) {
			return n.Routes(nl.RouteFilter{Family: nl.IPv6, Protocol: nl.RouteProtocol})
		})
	})
}

// listWhileChanging makes each list by a socket of its own, as a process does. The first of a socket has small parts.
func listWhileChanging[T nl.Object](t *testing.T, at func(int) T, list func(*nl.NS) ([]T, error)) {
	const lists = 600
	host, path := nltest.NS(t, "host")
	kept := objectsAt(host, 1000, 200, at)
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

// TestManyRules lists more rules than fit in the largest part.
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
		if got := rules[1+i]; got != s.Object { // the first is of the table local
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

// place is where ruleAt and routeAt have put an object. The kernel adds a metric to a route.
func place(o any) string {
	if r, is := o.(nl.Route); is {
		return r.Dst.String()
	}
	return fmt.Sprint(o.(nl.Rule).Pref)
}
