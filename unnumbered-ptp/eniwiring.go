// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// eniWiring lists the objects that the routed pods of an ENI share, and that all routed pods of the node share. ADD
// makes it, and a collection deletes it when the node has no routed pods, or when the link of the ENI is gone.
func (s *scene) eniWiring(p pair) nl.Wiring {
	c, n, dev := s.Config, s.node.of(p), s.eni.Name
	c.IPMasq = true // the node must forward
	objects := forwarding(c, n)
	if p.has(nl.IPv6) {
		objects = append(objects, nl.Sysctl{Key: conf6(dev) + "disable_ipv6", Value: "0"})
	}
	objects = append(objects, intact{routedTable(s.request)})
	objects = append(objects, rules(n, nl.Rule{Pref: prefLoopless, Not: true, IIF: "lo", Table: tableLoopless,
		Protocol: nl.RouteProtocol})...)
	if dev == c.HostInterface {
		objects = append(objects, intact{strays(dev, s.node)})
	} else {
		objects = append(objects, rules(n, nl.Rule{Pref: prefStray, IIF: dev, Drop: true,
			Protocol: nl.RouteProtocol})...)
	}
	arrives := s.sender.IsValid() && dev != c.HostInterface
	if arrives {
		objects = append(objects, accepts(dev)...)
		objects = append(objects, intact{asks(dev, s.sender)})
	}
	objects = append(objects, s.eniRoutes(p)...)
	return steps(s.nodeNS, append(objects, eniMark{s.eni.Index, n.families(), arrives}))
}

// accepts lets the node accept by the ENI's link what the VPC sends to pods. The check of sources (rp_filter) honours
// the mark that such a packet has, and so it finds the ENI at once.
//
// Another program may have taken the mark away. The node's own way to the VPC is the boot ENI, so a strict check drops
// what has no mark. The loose check looks for a way by this link in each table. It drops all of it at a link without an
// address of IPv4 (__fib_validate_source: no_addr). So the link has one that means nothing, and that no packet gets.
func accepts(eni string) []nl.Object {
	return []nl.Object{nl.Sysctl{Key: conf4(eni) + "rp_filter", Value: "2"},
		nl.Sysctl{Key: conf4(eni) + "src_valid_mark", Value: "1"}, nl.RoutedAddr(eni)}
}

// asks is the table that lets the node ask for the VPC router with an address of the ENI. The node has no address at
// the ENI's link: without this table, the kernel would ask with the address of the boot ENI. EC2 need not answer a
// request that an ENI sends with another ENI's address. What slaves ask does not pass the table.
func asks(eni string, a netip.Addr) nl.Table {
	return nl.Table{Family: "arp", Name: nl.AskTable(eni), Chains: []nl.Chain{{
		Name: "output", Type: "filter", Hook: "output",
		Rules: []nl.NFRule{{nl.OIFName(eni), nl.SetARPSender(a)}}}}}
}

// families are the families of the node's addresses.
func (n node) families() []nl.Family {
	return slices.DeleteFunc(slices.Clone(nl.Families), func(f nl.Family) bool { return !n.has(f) })
}

// eniRoutes lead to what the pods reach by the ENI. Destinations of hostCIDRs are left to the main table, also if the
// CIDR of a peer is the same. The configuration may have changed since the last pod.
func (s *scene) eniRoutes(p pair) (objects []nl.Object) {
	table := nl.RoutedTable(s.eni.Index)
	for _, dst := range byENI(s.request, p) {
		f := nl.FamilyOf(dst.Addr())
		if gw := s.gateway(f); p.has(f) && gw.IsValid() && !slices.Contains(s.Config.hostCIDRs, dst) {
			objects = append(objects, nl.Route{Dst: dst, Via: gw, Dev: s.eni.Name, OnLink: f == nl.IPv4, Table: table,
				Protocol: nl.RouteProtocol, Replace: true})
		}
	}
	for _, dst := range p.byNode(s.Config) {
		objects = append(objects, nl.Route{Dst: dst, Type: "throw", Table: table, Protocol: nl.RouteProtocol,
			Replace: true})
	}
	return objects
}

// routedTable is the network's table for routed pods: whose address they may send with, and what gets the node's
// address.
func routedTable(r *request) nl.Table {
	senders := nl.Chain{Name: "senders", Type: "nat", Hook: "prerouting", Priority: -110, Rules: []nl.NFRule{
		{nl.IIFRouted(), nl.ToLocal(), nl.Accept()},
		{nl.IIFRouted(), nl.NoRouteBack(), nl.Count(), nl.Drop()},
	}}
	t := nl.Table{Family: "inet", Name: nl.RoutedTableOf(r.Network), Chains: []nl.Chain{senders}}
	if chain := routedPostrouting(r); len(chain.Rules) > 0 {
		t.Chains, t.Of = append(t.Chains, chain), chain.Name // the rules vary, and not whether there are some
	}
	return t
}

// routedPostrouting gives packets of routed pods the node's address, unless the destination is reached by their ENI.
// The ENI may be the boot ENI, so the link by which a packet leaves does not tell.
//
// What leaves by another ENI keeps the pod's address, also where kube-proxy would masquerade it later: at a NodePort of
// the node. To other pods of the node kube-proxy may: a pod that calls itself needs that.
func routedPostrouting(r *request) nl.Chain {
	chain := nl.Chain{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 99, Varies: true}
	if !r.Config.IPMasq {
		return chain
	}
	for _, toPods := range []nl.Term{nl.OIFRouted(), nl.OIFGroup(nl.OwnGroup)} {
		chain.Rules = append(chain.Rules, nl.NFRule{nl.IIFRouted(), toPods, nl.Accept()})
	}
	leaves := nl.NFRule{nl.IIFRouted(), nl.OIFName(r.Config.HostInterface)}
	for _, f := range nl.Families {
		if host := ofFamily(f, r.Config.hostCIDRs); len(host) > 0 {
			chain.Rules = append(chain.Rules, append(slices.Clip(leaves), nl.DAddr(host...), nl.Masquerade()))
		}
		direct := ofFamily(f, byENI(r, pair{addrs: r.addrs}))
		if len(direct) > 0 && !slices.Contains(direct, f.Everywhere()) {
			chain.Rules = append(chain.Rules, append(slices.Clip(leaves), nl.NotDAddr(direct...), nl.Masquerade()))
		}
	}
	chain.Rules = append(chain.Rules, append(slices.Clip(leaves), nl.Accept()))
	for _, proto := range []string{"tcp", "udp"} {
		chain.Rules = append(chain.Rules, nl.NFRule{nl.IIFRouted(), nl.CTStatusDNAT(), nl.L4Proto(proto),
			nl.SNATPorts(1, 65535)})
	}
	return chain
}

// An intact table is one whose rules follow from the CIDRs that the VPC had when the last pod was made. So they are not
// compared.
type intact struct{ nl.Table }

func (t intact) Check(n *nl.NS) error { return t.Intact(n) }

// ENIMarks are the bits of a packet's mark that stand for the ENI of a routed pod. kube-proxy (0xc000), Calico
// (0xffff0000) and nodePortMark use other bits.
const ENIMarks = 0xff << markShift

const (
	markShift = 5
	mostENIs  = ENIMarks >> markShift
)

// The priorities of the rules for routed pods. All these rules come before the rules of other pods, which are one rule
// for each pod. The first, prefLoopless, finds a pod of the node.
//
// A packet that arrives by an ENI for no pod of the node is for a pod that has ended. The main table, or the ENI's
// table, would lead the packet back to the VPC, with the sender's address. The VPC router would send it to the ENI
// again.
//
// What has no mark goes past the rules for marks: otherwise each of its packets would be compared with each ENI. The
// kernel looks with a mark and "iif lo" for the way back to a pod: a check of its source does if src_valid_mark is 1,
// an answer of the node if tcp_fwmark_accept is. prefToPod finds the pod before the ENI. The node's own packets without
// a mark must not use it, see [nodeWiring].
const (
	prefStray    = 1015
	prefUnmarked = 1016
	prefToPod    = 1017
	prefENI      = 1018
	prefAfter    = 1019
)

// eniTable is the table of nftables that sets the marks. The table has a branch for each ENI.
func eniTable() nl.Table {
	return nl.Table{Family: "inet", Name: nl.ENITable, More: true, Chains: []nl.Chain{{
		Name: "prerouting", Type: "filter", Hook: "prerouting", Priority: mangle,
		Rules: []nl.NFRule{{nl.ByIIFGroup()}, {nl.ByIIF()}}}}}
}

// markChain is the beginning of the names of the branches' chains.
const markChain = "mark_"

// An eniMark is the way from the link of a routed pod to the routing table of its ENI. It consists of a branch of an
// nftables table, which sets a mark, and a rule for the mark in each family. What arrives by the ENI has the mark, too,
// for the check of its source, see accepts. By the boot ENI, packets come for others than routed pods.
//
// The chain's name has the number of the mark. So the kernel gives a number to one ENI, even if two processes ask for
// it. The index of the ENI's link says where to begin.
type eniMark struct {
	eni      int // index of the link
	families []nl.Family
	arrives  bool // what arrives by the ENI is for routed pods
}

// branch is the branch of the ENI with a number.
func (m eniMark) branch(number uint32) nl.Branch {
	mark := nl.NFRule{nl.SetMarkBits(number<<markShift, ENIMarks)}
	b := nl.Branch{Table: eniTable(), Group: nl.RoutedGroup(m.eni), Link: m.eni,
		Chain: markChain + strconv.Itoa(int(number)),
		Rules: []nl.NFRule{{nl.CTReply(), nl.CTStatusDNAT(), nl.Accept()}, mark}}
	if m.arrives {
		b.Arrived = []nl.NFRule{mark}
	}
	return b
}

// shared are the rules that all ENIs share.
func (m eniMark) shared() (w []nl.Rule) {
	for _, f := range m.families {
		w = append(w,
			nl.Rule{Pref: prefUnmarked, Family: f, Mask: ENIMarks, Goto: prefAfter, Protocol: nl.RouteProtocol},
			nl.Rule{Pref: prefToPod, Family: f, IIF: "lo", Table: tableLoopless, Protocol: nl.RouteProtocol},
			nl.Rule{Pref: prefAfter, Family: f, Nop: true, Protocol: nl.RouteProtocol})
	}
	return w
}

func (m eniMark) rules(number uint32) (w []nl.Rule) {
	for _, f := range m.families {
		w = append(w, nl.Rule{Pref: prefENI, Family: f, Mark: number << markShift, Mask: ENIMarks,
			Table: nl.RoutedTable(m.eni), Protocol: nl.RouteProtocol})
	}
	return w
}

// numbers are the numbers of marks, in the order in which the ENI tries them.
func (m eniMark) numbers() (all []uint32) {
	for i := range uint32(mostENIs) {
		all = append(all, (uint32(m.eni)+i)%mostENIs+1)
	}
	return all
}

// String shows the first number.
func (m eniMark) String() string {
	number := m.numbers()[0]
	text := eniTable().String() + "\n\t" + m.branch(number).String()
	for _, r := range append(m.rules(number), m.shared()...) {
		text += "\n\t" + r.String()
	}
	return text
}

// Add claims a number, and adds the rules for it. If the number is another one then, because another process has
// replaced the table meanwhile, Add begins again.
func (m eniMark) Add(n *nl.NS) error {
	const tries = 5
	for range tries {
		number, fresh, err := m.claim(n)
		if err != nil {
			return err
		}
		for _, r := range append(m.rules(number), m.shared()...) {
			if err := r.Add(n); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		if !fresh {
			return nil
		}
		if now, err := m.number(n); err == nil && now == number {
			return m.forget(n, number)
		}
	}
	return fmt.Errorf("another program changes the table inet %s all the time", eniTable().Name)
}

// forget deletes the rules of the ENI for other numbers than its own.
func (m eniMark) forget(n *nl.NS, number uint32) error {
	rules, err := n.Rules()
	for _, r := range rules {
		if eni, is := ofENI(r); is && eni == m.eni && r.Mark != number<<markShift {
			if e := r.Del(n); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

// claim returns the number of the ENI, whose branch it adds. fresh reports that there was none.
func (m eniMark) claim(n *nl.NS) (number uint32, fresh bool, err error) {
	if err := eniTable().Add(n); err != nil && !errors.Is(err, fs.ErrExist) {
		return 0, false, err
	}
	if number, err = m.number(n); errors.Is(err, fs.ErrNotExist) {
		fresh = true
		if err = m.restoreAll(n); err == nil {
			number, err = m.number(n)
		}
	}
	switch {
	case err == nil && m.branch(number).Check(n) != nil: // another program has changed its rules
		err = m.branch(number).Put(n)
	case fresh && errors.Is(err, fs.ErrNotExist):
		number, err = m.free(n)
	}
	return number, fresh, err
}

// restoreAll puts back the branches of all ENIs that another program has deleted, as the rules for their marks say. It
// puts back the own one last: once that is there, no later Add of this ENI looks for the others. What arrives by an ENI
// has a mark if there is the rule that drops the rest of it.
func (m eniMark) restoreAll(n *nl.NS) error {
	rules, err := n.Rules()
	arrives := map[int]bool{}
	for _, r := range rules {
		if r.Pref == prefStray && r.Drop && r.Protocol == nl.RouteProtocol {
			l, _ := n.LinkByName(r.IIF) // a rule whose link is gone is about no ENI
			arrives[l.Index] = true
		}
	}
	for _, own := range []bool{false, true} {
		for _, r := range rules {
			if eni, is := ofENI(r); is && (eni == m.eni) == own {
				err = errors.Join(err, eniMark{eni: eni, arrives: arrives[eni]}.restore(n, r.Mark>>markShift))
			}
		}
	}
	return err
}

// restore puts back the branch of an ENI that has lost it. A number that is taken is not the ENI's any more.
func (m eniMark) restore(n *nl.NS, number uint32) error {
	if _, lost := m.number(n); !errors.Is(lost, fs.ErrNotExist) || !n.HasLink(m.eni) {
		return nil
	}
	_, err := m.branch(number).Restore(n)
	return err
}

// free adds a branch with a number that is free. It is not while a rule leads it to another ENI.
func (m eniMark) free(n *nl.NS) (uint32, error) {
	rules, err := n.Rules()
	if err != nil {
		return 0, err
	}
	led := map[uint32]bool{}
	for _, r := range rules {
		eni, is := ofENI(r)
		led[r.Mark>>markShift] = led[r.Mark>>markShift] || is && n.HasLink(eni)
	}
	for _, number := range m.numbers() {
		if led[number] {
			continue
		}
		if chain, taken, err := m.branch(number).Claim(n); !taken {
			return numberOf(chain), err
		}
	}
	return 0, fmt.Errorf("all %d marks for ENIs are in use: see 'nft list table inet %s' and 'ip rule show pref %d'",
		mostENIs, eniTable().Name, prefENI)
}

// number is the number that the ENI has. The error is fs.ErrNotExist if it has none.
func (m eniMark) number(n *nl.NS) (uint32, error) {
	chain, err := eniTable().Branch(n, nl.RoutedGroup(m.eni))
	return numberOf(chain), err
}

// numberOf is the number of a chain, or 0 if another program has made it.
func numberOf(chain string) uint32 {
	number, err := strconv.ParseUint(strings.TrimPrefix(chain, markChain), 10, 8)
	if err != nil {
		return 0
	}
	return uint32(number)
}

// ofENI returns the index of the link of the ENI if a rule is one of ours for its mark.
func ofENI(r nl.Rule) (eni int, is bool) {
	eni, is = nl.OfRoutedTable(r.Table)
	return eni, is && r.Pref == prefENI && r.Protocol == nl.RouteProtocol
}

// Check looks for the branch of the ENI and its rules.
func (m eniMark) Check(n *nl.NS) error {
	number, err := m.number(n)
	if err != nil {
		return fmt.Errorf("no table of nftables marks what the pods of the ENI send: %w", err)
	}
	err = errors.Join(eniTable().Check(n), m.branch(number).Check(n))
	for _, r := range append(m.rules(number), m.shared()...) {
		if wrong := r.Check(n); wrong != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", r, wrong))
		}
	}
	return err
}

// Del does nothing: other pods may use it.
func (eniMark) Del(*nl.NS) error { return nil }
