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

// eniWiring lists the objects that the routed pods of an ENI share, and the objects that all routed pods of the node
// share. An ADD makes them, see [scene.installENIWiring]. A collection deletes them when the node has no routed pods,
// or when the ENI's link is gone.
func (s *scene) eniWiring(p pair) nl.Wiring {
	objects := s.eniObjects(p)
	for _, f := range p.families() {
		for _, r := range s.eniRoutes(p, s.eni, s.gateway(f), f) {
			objects = append(objects, r)
		}
	}
	return nl.Steps(s.nodeNS, append(objects, s.eniMark(p), intactTable{routedTable(s.request)}))
}

// eniObjects returns the objects of eniWiring that come before the routes.
func (s *scene) eniObjects(p pair) []nl.Object {
	c, n, dev := s.Config, s.node.forPod(p), s.eni.Name
	c.IPMasq = true // the node must forward for routed pods, even without ipMasq
	objects := forwardingSysctls(c, n)
	if p.hasFamily(nl.IPv6) {
		objects = append(objects, nl.Sysctl{Key: conf6(dev) + "disable_ipv6", Value: "0"})
	}
	objects = append(objects, nodePortRules(c, n)...)
	objects = append(objects, familyRules(n, nl.Rule{Pref: prefLoopless, Not: true, IIF: "lo", Table: tableLoopless,
		Protocol: nl.RouteProtocol})...)
	if dev == c.HostInterface {
		objects = append(objects, intactTable{strayTable(dev, s.node)})
	} else {
		objects = append(objects, familyRules(n, nl.Rule{Pref: prefStray, IIF: dev, Drop: true,
			Protocol: nl.RouteProtocol})...)
	}
	if s.onlyForRouted() {
		if !s.eni.Forwards {
			objects = append(objects, forwards4(dev))
		}
		objects = append(objects, acceptObjects(dev)...)
		objects = append(objects, intactTable{arpSenderTable(dev, s.sender)})
	}
	return objects
}

func (s *scene) eniMark(p pair) eniMark {
	return eniMark{s.eni.Index, s.node.forPod(p).families(), s.onlyForRouted()}
}

// onlyForRouted reports whether all packets that arrive through the ENI are for routed pods. This is so for each ENI
// except the boot ENI. The objects that depend on onlyForRouted are for IPv4 (see acceptObjects and arpSenderTable). So
// onlyForRouted returns false if prevResult has no IPv4 address.
func (s *scene) onlyForRouted() bool {
	return s.sender.IsValid() && s.eni.Name != s.Config.HostInterface
}

// acceptObjects returns objects for the ENI's link. Without these objects, the node would drop packets from the VPC to
// routed pods. These packets have the ENI's mark (see eniMark). With src_valid_mark, the check of sources (rp_filter)
// uses the mark, and finds the route through this link in the ENI's table.
//
// If another program has removed the chain that sets the mark, the check finds another route to the source, through the
// boot ENI. A strict check would then drop the packets. So the check is loose (2): it looks in each table for a route
// through this link. But if the link has no IPv4 address, a loose check drops all packets without a mark
// (__fib_validate_source: no_addr). So the link gets an address that has no other purpose.
func acceptObjects(eni string) []nl.Object {
	return []nl.Object{nl.Sysctl{Key: conf4(eni) + "rp_filter", Value: "2"},
		nl.Sysctl{Key: conf4(eni) + "src_valid_mark", Value: "1"}, nl.RoutedAddr(eni)}
}

// arpSenderTable returns the nftables table for the node's ARP requests through the ENI's link. The table sets the
// sender of these requests to an address of the ENI. The link does not have this address, so the kernel would take the
// address of the boot ENI as the sender. EC2 perhaps does not answer an ARP request with another ENI's address. The ARP
// requests of slaves do not change, because slaves are in the namespaces of pods.
func arpSenderTable(eni string, a netip.Addr) nl.Table {
	return nl.Table{Family: "arp", Name: nl.AskTable(eni), Chains: []nl.Chain{{
		Name: "output", Type: "filter", Hook: "output",
		Rules: []nl.NFRule{{nl.OIFName(eni), nl.SetARPSender(a)}}}}}
}

func (n node) families() []nl.Family {
	return slices.DeleteFunc(slices.Clone(nl.Families), func(f nl.Family) bool { return !n.hasFamily(f) })
}

// routedTable returns the network's nftables table for routed pods. The table drops packets whose source is not the
// address of the routed pod that sends them. It also decides which packets get the node's address as their source.
func routedTable(r *request) nl.Table {
	t := nl.Table{Family: "inet", Name: nl.RoutedTableOf(r.Network),
		Chains: senderChains(nl.IIFRouted(), r.Config.mark)}
	if chain := routedPostrouting(r); len(chain.Rules) > 0 {
		// nl.Table.Lasting leaves out this chain, but keeps Of. So the seal of the Lasting table also shows that the
		// kernel has accepted this chain.
		t.Chains, t.Of = append(t.Chains, chain), chain.Name
	}
	return t
}

// routedPostrouting returns the chain that makes the node's address the source of routed pods' packets. It does not do
// this if the pods reach the destination through their ENI. The link alone does not show how a pod reaches the
// destination, because the ENI may be the boot ENI.
//
// A packet that leaves through another ENI than the boot ENI keeps the pod's address. This is true even for a call to a
// NodePort of the node, because the last rules prevent kube-proxy's later masquerade. The rules do not prevent this
// masquerade for packets to pods of the node, because a pod that calls itself through a Service needs the masquerade.
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
		if host := sortedPrefixes(f, r.Config.hostCIDRs); len(host) > 0 {
			chain.Rules = append(chain.Rules, append(slices.Clip(leaves), nl.DAddr(host...), nl.Masquerade()))
		}
		direct := sortedPrefixes(f, dstsByENI(r, pair{addrs: r.addrs}))
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

// An intactTable is a table whose Check does not compare the rules, because the rules depend on the VPC's CIDRs at the
// time of the last ADD.
type intactTable struct{ nl.Table }

func (t intactTable) Check(n *nl.NS) error { return t.Intact(n) }

// ENIMarks are the bits of a packet's mark that stand for a routed pod's ENI. kube-proxy (0xc000), Calico (0xffff0000)
// and nodePortMark use other bits.
const ENIMarks = 0xff << markShift

const (
	markShift = 5
	mostENIs  = ENIMarks >> markShift
)

// The priorities of the rules for routed pods. Each pod that is not routed has a rule of its own. The rules for routed
// pods come first, so the kernel need not compare packets of routed pods with the rules of other pods. The rule with
// prefLoopless comes before all these rules.
//
// prefStray: the rule drops packets that arrive through an ENI for a pod that has ended. Without the rule, the node
// would send such a packet back to the VPC, and the VPC router would send it to the ENI again.
//
// prefUnmarked: packets without a mark skip the rules for marks. Each ENI has one rule for its mark.
//
// prefToPod: some lookups of the route to a pod match "iif lo" and have the mark of the pod's ENI. With this rule, such
// a lookup finds the pod and not the ENI. Two kinds of lookups are like this. The first is the check of a source, if
// src_valid_mark is 1. The second is the lookup for the node's answer to a pod's call, if tcp_fwmark_accept is 1. The
// node's own packets without a mark must not use this rule, see [nodeWiring].
const (
	prefStray    = 1015
	prefUnmarked = 1016
	prefToPod    = 1017
	prefENI      = 1018
	prefAfter    = 1019
)

// eniTable returns the nftables table that sets the marks, with a branch for each ENI.
func eniTable() nl.Table {
	return nl.Table{Family: "inet", Name: nl.ENITable, More: true, Chains: []nl.Chain{{
		Name: "prerouting", Type: "filter", Hook: "prerouting", Priority: nl.PriorityMangle,
		Rules: []nl.NFRule{{nl.ByIIFGroup()}, {nl.ByIIF()}}}}}
}

// markChain is the name of a branch's chain, without the number of the mark.
const markChain = "mark_"

// An eniMark leads packets from the links of routed pods to the routing table of their ENI. An nftables table has
// a chain for each ENI, and this chain sets the mark: see [nl.Branch]. In each family, a rule leads packets with the
// mark to the ENI's routing table. Packets that arrive through the ENI also get the mark, for the check of sources:
// see acceptObjects. Packets that arrive through the boot ENI do not get the mark, because some of them are not for
// routed pods.
//
// The name of the ENI's chain contains the mark's number. So if two processes ask for the same number at the same time,
// the kernel accepts only one chain. The search for a free number begins at a number that follows from the index of the
// ENI's link.
type eniMark struct {
	eni           int // index of the link
	families      []nl.Family
	onlyForRouted bool // packets that arrive through the ENI are for routed pods only
}

func (m eniMark) branch(number uint32) nl.Branch {
	mark := nl.NFRule{nl.SetMarkBits(number<<markShift, ENIMarks)}
	b := nl.Branch{Table: eniTable(), Group: nl.RoutedGroup(m.eni), Link: m.eni,
		Chain: markChain + strconv.Itoa(int(number)),
		Rules: []nl.NFRule{{nl.CTReply(), nl.CTStatusDNAT(), nl.Accept()}, mark,
			dropForgedSegments(nl.NoRouteBackByMark())}}
	if m.onlyForRouted {
		b.Arrived = []nl.NFRule{mark}
	}
	return b
}

func (m eniMark) sharedRules() (w []nl.Rule) {
	for _, f := range m.families {
		w = append(w,
			nl.Rule{Pref: prefUnmarked, Family: f, Mask: ENIMarks, Goto: prefAfter, Protocol: nl.RouteProtocol},
			nl.Rule{Pref: prefToPod, Family: f, IIF: "lo", Table: tableLoopless, Protocol: nl.RouteProtocol},
			nl.Rule{Pref: prefAfter, Family: f, Nop: true, Protocol: nl.RouteProtocol})
	}
	return w
}

func (m eniMark) markRules(number uint32) (w []nl.Rule) {
	for _, f := range m.families {
		w = append(w, nl.Rule{Pref: prefENI, Family: f, Mark: number << markShift, Mask: ENIMarks,
			Table: nl.RoutedTable(m.eni), Protocol: nl.RouteProtocol})
	}
	return w
}

// numbersToTry returns the numbers of all marks, in the order in which claimFree tries them.
func (m eniMark) numbersToTry() (all []uint32) {
	for i := range uint32(mostENIs) {
		all = append(all, (uint32(m.eni)+i)%mostENIs+1)
	}
	return all
}

// String shows the commands for the number that claimFree tries first.
func (m eniMark) String() string {
	number := m.numbersToTry()[0]
	text := eniTable().String() + "\n\t" + m.branch(number).String()
	for _, r := range append(m.markRules(number), m.sharedRules()...) {
		text += "\n\t" + r.String()
	}
	return text
}

// Add claims a mark's number for the ENI, and adds the rules for this mark. If another process replaces the nftables
// table meanwhile, the ENI may have another number, or none. Add then begins again.
func (m eniMark) Add(n *nl.NS) error {
	const tries = 5
	for range tries {
		number, fresh, err := m.claim(n)
		if err != nil {
			return err
		}
		for _, r := range append(m.markRules(number), m.sharedRules()...) {
			if err := r.Add(n); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		if !fresh {
			return nil
		}
		if now, err := m.number(n); err == nil && now == number {
			return m.delOtherRules(n, number)
		}
	}
	return fmt.Errorf("another program changes the table inet %s all the time", eniTable().Name)
}

// delOtherRules deletes those rules of the ENI whose mark has another number.
func (m eniMark) delOtherRules(n *nl.NS, number uint32) error {
	rules, err := n.Rules()
	for _, r := range rules {
		if eni, is := eniOfRule(r); is && eni == m.eni && r.Mark != number<<markShift {
			if e := r.Del(n); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

// claim returns the number of the ENI's mark. If the ENI has no branch, claim adds a branch, and fresh is true.
func (m eniMark) claim(n *nl.NS) (number uint32, fresh bool, err error) {
	if err := eniTable().Add(n); err != nil && !errors.Is(err, fs.ErrExist) {
		return 0, false, err
	}
	if number, err = m.number(n); errors.Is(err, fs.ErrNotExist) {
		fresh = true
		if err = m.restoreBranches(n); err == nil {
			number, err = m.number(n)
		}
	}
	switch {
	case err == nil && m.branch(number).Check(n) != nil: // another program has changed the branch's rules
		err = m.branch(number).Put(n)
	case fresh && errors.Is(err, fs.ErrNotExist):
		number, err = m.claimFree(n)
	}
	return number, fresh, err
}

// restoreBranches puts back all branches that another program has deleted. The rules for marks show the numbers of the
// branches. The branch of the eniMark's own ENI comes last. So if this process is killed, this branch is still missing,
// and a later Add calls restoreBranches again. If the node has a rule with prefStray for an ENI, packets that arrive
// through this ENI also get the mark. The boot ENI has no such rule.
func (m eniMark) restoreBranches(n *nl.NS) error {
	rules, err := n.Rules()
	onlyForRouted := map[int]bool{}
	for _, r := range rules {
		if r.Pref == prefStray && r.Drop && r.Protocol == nl.RouteProtocol {
			l, _ := n.LinkByName(r.IIF) // if the link is gone, l.Index is 0, which is the index of no ENI
			onlyForRouted[l.Index] = true
		}
	}
	for _, own := range []bool{false, true} {
		for _, r := range rules {
			if eni, is := eniOfRule(r); is && (eni == m.eni) == own {
				mark := eniMark{eni: eni, onlyForRouted: onlyForRouted[eni]}
				err = errors.Join(err, mark.restoreBranch(n, r.Mark>>markShift))
			}
		}
	}
	return err
}

// restoreBranch puts back the lost branch of an ENI, unless another ENI has the number now.
func (m eniMark) restoreBranch(n *nl.NS, number uint32) error {
	if _, lost := m.number(n); !errors.Is(lost, fs.ErrNotExist) || !n.HasLink(m.eni) {
		return nil
	}
	_, err := m.branch(number).Restore(n)
	return err
}

// claimFree adds a branch with a free number, and returns the number. A number is taken if the rule for its mark
// belongs to an ENI that still has its link. claimFree takes a mark that a rule of another program catches only if all
// other marks are taken.
func (m eniMark) claimFree(n *nl.NS) (uint32, error) {
	rules, err := n.Rules()
	if err != nil {
		return 0, err
	}
	led := map[uint32]bool{}
	for _, r := range rules {
		eni, is := eniOfRule(r)
		led[r.Mark>>markShift] = led[r.Mark>>markShift] || is && n.HasLink(eni)
	}
	for _, anyway := range []bool{false, true} {
		for _, number := range m.numbersToTry() {
			if led[number] || isCaught(rules, number) != anyway {
				continue
			}
			if chain, taken, err := m.branch(number).Claim(n); !taken {
				return numberOf(chain), err
			}
		}
	}
	return 0, fmt.Errorf("all %d marks for ENIs are in use: see 'nft list table inet %s' and 'ip rule show pref %d'",
		mostENIs, eniTable().Name, prefENI)
}

// isCaught reports whether a rule of another program comes before the rules for ENIs, and matches the mark with this
// number. For example, Cilium has rules for the bits 0xf00.
func isCaught(rules []nl.Rule, number uint32) bool {
	return slices.ContainsFunc(rules, func(r nl.Rule) bool {
		return r.Protocol != nl.RouteProtocol && r.Pref < prefENI && r.Mask&ENIMarks != 0 && !r.Not &&
			number<<markShift&r.Mask == r.Mark
	})
}

// number returns the number of the ENI's mark. The error is fs.ErrNotExist if the ENI has no branch.
func (m eniMark) number(n *nl.NS) (uint32, error) {
	chain, err := eniTable().Branch(n, nl.RoutedGroup(m.eni))
	return numberOf(chain), err
}

// numberOf returns the mark's number in the name of a branch's chain, or 0 if another program has made the chain.
func numberOf(chain string) uint32 {
	number, err := strconv.ParseUint(strings.TrimPrefix(chain, markChain), 10, 8)
	if err != nil {
		return 0
	}
	return uint32(number)
}

// eniOfRule returns the index of the ENI's link if a rule is ours and is for the mark of an ENI.
func eniOfRule(r nl.Rule) (eni int, is bool) {
	eni, is = nl.OfRoutedTable(r.Table)
	return eni, is && r.Pref == prefENI && r.Protocol == nl.RouteProtocol
}

func (m eniMark) Check(n *nl.NS) error {
	number, err := m.number(n)
	if err != nil {
		return fmt.Errorf("no rule in the table inet %s marks the packets of the ENI's pods: %w", eniTable().Name, err)
	}
	err = errors.Join(eniTable().Check(n), m.branch(number).Check(n))
	for _, r := range append(m.markRules(number), m.sharedRules()...) {
		if wrong := r.Check(n); wrong != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", r, wrong))
		}
	}
	return err
}

// Del does nothing: other pods may use the mark.
func (eniMark) Del(*nl.NS) error { return nil }
