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

// Dump returns the state of namespaces as text. The text has one command of ip(8) or nft(8) for each link, address,
// route, rule and table of nftables. Tests compare the dumps of several runs. So Dump leaves out indices, MAC
// addresses, and the IPv6 addresses and routes that the kernel itself adds (see isKernelDerived). It also leaves out
// the tables of nl.Guard, because Guard.Del does not remove them.
func Dump(t testing.TB, namespaces ...*nl.NS) string {
	t.Helper()
	var b strings.Builder
	for _, n := range namespaces {
		lines, err := dumpLines(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lines {
			fmt.Fprintf(&b, "%s: %s\n", n.Name, l)
		}
	}
	return b.String()
}

func dumpLines(n *nl.NS) ([]string, error) {
	var all []string
	for _, list := range []func(*nl.NS) ([]string, error){linkLines, addrLines, routeLines, ruleLines, tableLines} {
		lines, err := list(n)
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	return all, nil
}

// linkLines returns a line for each link. The lines are sorted, because the order in which links were made does not
// matter.
func linkLines(n *nl.NS) ([]string, error) {
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

// addrLines returns a line for each address, sorted by link. The addresses of a link stay in the kernel's order: the
// first is the primary address.
func addrLines(n *nl.NS) ([]string, error) {
	found, err := n.Addrs("")
	slices.SortStableFunc(found, func(a, b nl.Addr) int { return strings.Compare(a.Dev, b.Dev) })
	var lines []string
	for _, a := range found {
		if !isKernelDerived(a.Prefix) {
			lines = append(lines, a.String())
		}
	}
	return lines, err
}

func routeLines(n *nl.NS) ([]string, error) {
	found, err := n.Routes(nl.RouteFilter{})
	var lines []string
	for _, r := range found {
		if !isKernelDerived(r.Dst) {
			lines = append(lines, r.String())
		}
	}
	slices.Sort(lines)
	return lines, err
}

// ruleLines returns a line for each rule. The rules stay in the kernel's order, because the kernel applies them in this
// order.
func ruleLines(n *nl.NS) ([]string, error) {
	found, err := n.Rules()
	lines := make([]string, len(found))
	for i, r := range found {
		lines[i] = r.String()
	}
	return lines, err
}

func tableLines(n *nl.NS) ([]string, error) {
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

// isKernelDerived reports whether a prefix is one of IPv6, and is link-local or multicast. The kernel itself adds
// addresses and routes with such prefixes when a link comes up.
func isKernelDerived(p netip.Prefix) bool {
	return p.Addr().Is6() && (p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast())
}
