// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nltest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// Dump prints what namespaces hold, a line for each link, address, route, rule and table of nftables, in the words of
// ip(8) and nft(8). The same content gives the same text. So the text has no indexes, no MAC addresses, and nothing of
// IPv6 that the kernel derives from MAC addresses. The text also leaves out the tables of nl.Guard, because Del of a
// Guard does not remove them.
func Dump(t testing.TB, namespaces ...*nl.NS) string {
	t.Helper()
	var b strings.Builder
	for _, n := range namespaces {
		lines, err := dump(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lines {
			fmt.Fprintf(&b, "%s: %s\n", n.Name, l)
		}
	}
	return b.String()
}

func dump(n *nl.NS) ([]string, error) {
	var all []string
	for _, list := range []func(*nl.NS) ([]string, error){links, addrs, routes, rules, tables} {
		lines, err := list(n)
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	return all, nil
}

// links lists the links, sorted by name, because the order in which they were made does not matter.
func links(n *nl.NS) ([]string, error) {
	found, err := n.Links()
	lines := make([]string, len(found))
	for i, l := range found {
		lines[i] = l.String()
		for _, name := range l.Names()[1:] {
			lines[i] += " altname " + name
		}
		if l.Alias != "" {
			lines[i] += fmt.Sprintf(" alias %q", l.Alias)
		}
		if l.Up {
			lines[i] += " up"
		}
	}
	slices.Sort(lines)
	return lines, err
}

// addrs lists the addresses, sorted by link. The addresses of one link stay in the kernel's order, because the first
// address is the primary address.
func addrs(n *nl.NS) ([]string, error) {
	found, err := n.Addrs("")
	slices.SortStableFunc(found, func(a, b nl.Addr) int { return strings.Compare(a.Dev, b.Dev) })
	var lines []string
	for _, a := range found {
		if !derived(a.Prefix) {
			lines = append(lines, a.String())
		}
	}
	return lines, err
}

func routes(n *nl.NS) ([]string, error) {
	found, err := n.Routes(nl.RouteFilter{})
	var lines []string
	for _, r := range found {
		if !derived(r.Dst) {
			lines = append(lines, r.String())
		}
	}
	slices.Sort(lines)
	return lines, err
}

// rules lists the rules in the kernel's order, because the kernel takes the first rule that matches.
func rules(n *nl.NS) ([]string, error) {
	found, err := n.Rules()
	lines := make([]string, len(found))
	for i, r := range found {
		lines[i] = r.String()
	}
	return lines, err
}

func tables(n *nl.NS) ([]string, error) {
	found, err := n.Tables()
	var lines []string
	for _, name := range found {
		if !strings.HasSuffix(name, " "+nl.GuardTable) {
			lines = append(lines, "nft add table "+name)
		}
	}
	slices.Sort(lines)
	return lines, err
}

// derived reports whether the kernel itself adds addresses or routes with such a prefix, for each link that is up.
func derived(p netip.Prefix) bool {
	return p.Addr().Is6() && (p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast())
}
