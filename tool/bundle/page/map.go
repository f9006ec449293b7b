// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package page

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/bundle"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// A kind is a state of an address. The class and the letter show this state in the page's map of addresses.
type kind struct{ Class, Letter, Name, Means string }

var kinds = []kind{
	{view.StateBound, "L", "leased", "a pod has the address"},
	{view.StateReserved, "R", "reserved", "a lease names the address, and no process has seen it in the pod yet"},
	{view.StateFree, "F", "free", "for the next pod"},
	{view.StateCooling, "C", "cooling", "the last lease has ended, and no pod gets the address yet"},
	{"unconfirmed", "?", "unconfirmed", "metadata or EC2 may be behind, so no pod gets the address yet"},
	{view.StateNode, "N", "node", "the node itself uses the address"},
}

// A cell is an address in the map.
type cell struct {
	kind
	Addr, Short string
	Pod         string // the pod that has the address, or how long the address still cools
	To          string // anchor of the pod on the page
	Wrong       bool   // the sources disagree about the address
	Text        string // the cell in words
}

// A block is a prefix, or the single addresses of an ENI.
type block struct {
	Name  string
	Note  string
	Cells []cell
}

// An eni is an ENI with the map of its addresses.
type eni struct {
	ID, Anchor, Link, Slot, Pool, State, Why, Subnet string
	Boot, Wrong                                      bool
	Counts                                           []kindCount
	Blocks                                           []block
	Next                                             string // anchor of the place after the ENI's map
}

type kindCount struct {
	kind
	N int
}

// eniMaps returns the ENIs, sorted by card and device index. If there are addresses on no ENI, the last element has
// them.
func eniMaps(b *bundle.Bundle, held []view.Holding, d difference) (all []eni) {
	links := map[string]string{}
	if b.Observed != nil {
		links = b.Observed.Links
	}
	status := view.StatusOf(b.State, b.Conflists.MostENIs(b.State), b.Conflists.ReuseWait, b.Conflists.Misfit,
		linkNames(links, b.State), b.Made)
	by := map[string][]view.Holding{}
	for _, h := range held {
		by[h.ENI] = append(by[h.ENI], h)
	}
	for _, s := range status.ENIs {
		e := b.State.ENIs[s.ID]
		one := eni{ID: s.ID, Anchor: "eni-" + fmt.Sprint(len(all)), Link: cmp.Or(s.Iface, "no link yet"),
			Slot: fmt.Sprintf("card %d, index %d", s.Card, s.Index), Pool: s.Pool, State: s.State, Why: s.Why,
			Subnet: e.Subnet, Boot: e.IsBoot(), Wrong: d.about[s.ID]}
		if e.CIDR.IsValid() {
			one.Subnet += " " + e.CIDR.String()
		}
		one.Blocks = blocks(b.Made, b.State, e, by[s.ID], d)
		one.Counts = kindCounts(one.Blocks)
		all = append(all, one)
	}
	if stray := by[""]; len(stray) > 0 {
		lost := eni{ID: "on no ENI", Anchor: "eni-none", Link: "", Slot: "no ENI in the registry has these addresses",
			State: "lost", Wrong: true, Blocks: []block{cells(b.Made, "addresses", "", b.State, stray, d)}}
		lost.Counts = kindCounts(lost.Blocks)
		all = append(all, lost)
	}
	for i := range all {
		if all[i].Next = "differences"; i+1 < len(all) {
			all[i].Next = all[i+1].Anchor
		}
	}
	return all
}

// linkNames returns the names of links by MAC address. If the parameter links is empty, linkNames returns the names in
// the registry.
func linkNames(links map[string]string, s *registry.State) map[string]string {
	if len(links) > 0 {
		return links
	}
	known := map[string]string{}
	for _, e := range s.ENIs {
		known[e.MAC] = e.Link
	}
	return known
}

// blocks returns the single addresses of an ENI as one block, and then a block for each prefix.
func blocks(made time.Time, s *registry.State, e registry.ENI, held []view.Holding, d difference) (all []block) {
	of := func(in func(netip.Addr) bool) (some []view.Holding) {
		for _, h := range held {
			if in(h.Addr) {
				some = append(some, h)
			}
		}
		return some
	}
	prefixed := func(a netip.Addr) bool {
		return slices.ContainsFunc(e.Prefixes, func(p registry.Prefix) bool { return p.CIDR.Contains(a) })
	}
	single := of(func(a netip.Addr) bool { return !prefixed(a) })
	if len(single) > 0 {
		all = append(all, cells(made, "addresses", "", s, single, d))
	}
	for _, p := range e.Prefixes {
		note := ""
		if p.CIDR.Addr().Is6() {
			note = "only addresses that pods have or had"
		}
		all = append(all, cells(made, "prefix "+p.CIDR.String(), note, s, of(p.CIDR.Contains), d))
	}
	for i := range all {
		all[i].Name = strings.TrimSpace(all[i].Name)
	}
	return all
}

func cells(made time.Time, name, note string, s *registry.State, held []view.Holding, d difference) block {
	b := block{Name: name, Note: note}
	for _, h := range held {
		b.Cells = append(b.Cells, cellOf(made, s, h, d))
	}
	return b
}

func cellOf(made time.Time, s *registry.State, h view.Holding, d difference) cell {
	state := h.State
	if _, unconfirmed := s.Unconfirmed(); unconfirmed && (state == view.StateFree || state == view.StateCooling) {
		state = "unconfirmed"
	}
	c := cell{Addr: h.Addr.String(), Short: shortAddr(h.Addr), Wrong: d.about[h.Addr.String()]}
	for _, k := range kinds {
		if k.Class == state {
			c.kind = k
		}
	}
	c.Text = c.Addr + ", " + c.Name
	if h.Leased() {
		c.Pod, c.To = cmp.Or(h.Pod, h.Owner(), "unknown"), anchor(c.Addr)
		c.Text += " by " + cmp.Or(h.Owner(), "an unknown pod")
	}
	if h.Until != nil {
		c.Pod = "for " + view.Brief(h.Until.Sub(made))
		c.Text += " until " + timeText(*h.Until)
	}
	if c.Wrong {
		c.Text += "; the sources disagree about this address"
	}
	return c
}

// shortAddr returns the last number of an address, with the separator before this number.
func shortAddr(a netip.Addr) string {
	text := a.String()
	return text[strings.LastIndexAny(text, ".:"):]
}

func kindCounts(blocks []block) (all []kindCount) {
	for _, k := range kinds {
		n := 0
		for _, b := range blocks {
			for _, c := range b.Cells {
				if c.Class == k.Class {
					n++
				}
			}
		}
		if n > 0 {
			all = append(all, kindCount{k, n})
		}
	}
	return all
}
