// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Rule is a rule of policy routing, ip-rule(8). Packets that match it use the routing table Table, unless Goto, Nop
// or Drop is set.
type Rule struct {
	Pref     int
	Family   Family // only for a rule without From and To; 0 is IPv4
	Not      bool   // invert the rule: it applies to packets that do not match the other fields
	From, To netip.Prefix
	OIF      string // match packets of the namespace's own sockets that are bound to this link
	// IIF: match packets that arrive through this link. The name "lo" stands for packets that the namespace itself
	// sends, and for the lookups of rp_filter.
	IIF   string
	Mark  uint32
	Mask  uint32 // 0 is all bits
	Table uint32 // 0: Add adds a rule without a table, and Del ignores the rule's table
	Goto  int    // the Pref of the rule with which the kernel continues
	Nop   bool   // the rule does nothing, but is the destination of rules with Goto
	Drop  bool   // the rule drops packets without an ICMP error (blackhole)
	// the rule ignores routes whose prefix is shorter than MinLen (suppress_prefixlength MinLen-1); 0: no routes
	MinLen   int
	Protocol int // 0: no protocol ("unspec" in ip(8))
}

func (r Rule) String() string {
	name := "ip rule add"
	if r.family() == IPv6 {
		name = "ip -6 rule add"
	}
	c := command(name).flag("not", r.Not).option("pref", strconv.Itoa(r.Pref))
	if r.From.IsValid() {
		c.option("from", r.From.String())
	}
	if r.To.IsValid() {
		c.option("to", r.To.String())
	}
	if r.hasMark() {
		c.option("fwmark", fmt.Sprintf("%#x/%#x", r.Mark, r.mask()))
	}
	c.option("iif", r.IIF).option("oif", r.OIF).option("lookup", tableName(r.Table)).number("goto", r.Goto)
	c.flag("nop", r.Nop).flag("blackhole", r.Drop)
	if r.MinLen > 0 {
		c.option("suppress_prefixlength", strconv.Itoa(r.MinLen-1))
	}
	return c.number("protocol", r.Protocol).String()
}

func (r Rule) family() Family {
	return cmp.Or(FamilyOf(r.From.Addr()), FamilyOf(r.To.Addr()), r.Family, IPv4)
}

func (r Rule) mask() uint32 { return cmp.Or(r.Mask, ^uint32(0)) }

// hasMark reports whether the rule compares the packet's mark. If Mask is set, Mark may be 0.
func (r Rule) hasMark() bool { return r.Mark != 0 || r.Mask != 0 }

func (r Rule) kernelAction() uint8 {
	switch {
	case r.Goto != 0:
		return unix.FR_ACT_GOTO
	case r.Nop:
		return unix.FR_ACT_NOP
	case r.Drop:
		return unix.FR_ACT_BLACKHOLE
	}
	return unix.FR_ACT_TO_TBL
}

// tableName returns a routing table as commands of ip(8) write it. Tables that every namespace has appear by name (see
// rt_tables of iproute2), and other tables by number. For 0, tableName returns "".
func tableName(t uint32) string {
	switch t {
	case 0:
		return ""
	case unix.RT_TABLE_LOCAL:
		return "local"
	case unix.RT_TABLE_MAIN:
		return "main"
	case unix.RT_TABLE_DEFAULT:
		return "default"
	}
	return strconv.FormatUint(uint64(t), 10)
}

// Add adds the rule. EEXIST means that the kernel has the rule, perhaps with another protocol (rule_exists). This is
// enough, so Add need not list the rules of all pods.
func (r Rule) Add(n *NS) error {
	err := r.sendMessage(n, unix.RTM_NEWRULE, addNew, r.kernelAction())
	if errors.Is(err, fs.ErrExist) {
		return errSame
	}
	return err
}

func (r Rule) Del(n *NS) error {
	action := uint8(0)
	if r.Goto != 0 { // the kernel deletes a rule with Goto only if the request contains the action
		action = r.kernelAction()
	}
	return r.sendMessage(n, unix.RTM_DELRULE, 0, action)
}

// DelRules deletes all rules with a given IIF. It does not list the rules first, because the list would contain several
// rules for each pod of the node.
func (n *NS) DelRules(iif string) error {
	if err := checkName(iif); err != nil { // without a name, the kernel would delete any rule
		return err
	}
	const most = 1000 // no link has so many rules
	for _, family := range Families {
		msg := &nl.RtMsg{}
		msg.Family = uint8(family)
		for range most {
			err := n.applyChange(unix.RTM_DELRULE, 0, msg, attrString(nl.FRA_IIFNAME, iif))
			if isNotExist(err) {
				break
			}
			if err != nil {
				return fmt.Errorf("%s: ip rule del iif %s: %w", n.Name, iif, err)
			}
		}
	}
	return nil
}

// sendMessage adds or deletes the rule. If sendMessage deletes, the action 0 matches rules with any action.
func (r Rule) sendMessage(n *NS, typ, flags int, action uint8) error {
	msg := &nl.RtMsg{}
	msg.Family, msg.Type = uint8(r.family()), action
	if r.Not {
		msg.Flags = unix.FIB_RULE_INVERT
	}
	attrs := []attribute{attr32(nl.FRA_PRIORITY, uint32(r.Pref))}
	if r.Table < unix.RT_TABLE_COMPAT {
		msg.Table = uint8(r.Table)
	} else {
		attrs = append(attrs, attr32(nl.FRA_TABLE, r.Table))
	}
	if r.From.IsValid() {
		msg.Src_len = uint8(r.From.Bits())
		attrs = append(attrs, attrAddr(nl.FRA_SRC, r.From.Addr()))
	}
	if r.To.IsValid() {
		msg.Dst_len = uint8(r.To.Bits())
		attrs = append(attrs, attrAddr(nl.FRA_DST, r.To.Addr()))
	}
	if r.Goto != 0 {
		attrs = append(attrs, attr32(nl.FRA_GOTO, uint32(r.Goto)))
	}
	if r.hasMark() {
		attrs = append(attrs, attr32(nl.FRA_FWMARK, r.Mark), attr32(nl.FRA_FWMASK, r.mask()))
	}
	if r.IIF != "" {
		attrs = append(attrs, attrString(nl.FRA_IIFNAME, r.IIF))
	}
	if r.OIF != "" {
		attrs = append(attrs, attrString(nl.FRA_OIFNAME, r.OIF))
	}
	if r.MinLen > 0 {
		attrs = append(attrs, attr32(nl.FRA_SUPPRESS_PREFIXLEN, uint32(r.MinLen-1)))
	}
	if r.Protocol != 0 {
		attrs = append(attrs, attr(nl.FRA_PROTOCOL, []byte{uint8(r.Protocol)}))
	}
	return n.applyChange(typ, flags, msg, attrs...)
}

// Check returns an error if the namespace does not have the rule. It ignores the protocol, so any program may have
// added the rule.
func (r Rule) Check(n *NS) error {
	r.Family, r.Protocol = r.family(), 0
	if r.hasMark() {
		r.Mask = r.mask()
	}
	has, err := n.hasRule(r)
	if err == nil && !has {
		err = fmt.Errorf("there is no such rule: %w", fs.ErrNotExist)
	}
	return err
}

// hasRule reports whether the namespace has the rule r with any protocol. r.Protocol must be 0.
func (n *NS) hasRule(r Rule) (bool, error) {
	if n.listCache != nil {
		list := n.listCache.rulesOf(n, r.Family)
		return list.set[r], list.err
	}
	found, err := n.requestRules(r.Family)
	return slices.ContainsFunc(found, func(f Rule) bool { f.Protocol = 0; return f == r }), err
}

// Rules lists the rules of both families, IPv4 first, in the order in which the kernel applies them.
func (n *NS) Rules() ([]Rule, error) {
	var all []Rule
	for _, family := range Families {
		found, err := n.listRules(family)
		if err != nil {
			return nil, fmt.Errorf("%s: list rules: %w", n.Name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// listRules returns the rules of a family. After [NS.List], listRules takes the rules from the listCache.
func (n *NS) listRules(family Family) ([]Rule, error) {
	if n.listCache != nil {
		list := n.listCache.rulesOf(n, family)
		return list.rules, list.err
	}
	return n.requestRules(family)
}

func (n *NS) requestRules(family Family) ([]Rule, error) {
	msgs, err := n.ruleMessages(family)
	rules := make([]Rule, 0, len(msgs))
	for _, m := range msgs {
		rules = append(rules, parseRule(m))
	}
	return rules, err
}

func (n *NS) ruleMessages(family Family) ([][]byte, error) {
	// a struct rtmsg can stand for a struct fib_rule_hdr here: both have the same size and the same first field
	msg := &nl.RtMsg{}
	msg.Family = uint8(family)
	msgs, err := n.sendRequest(unix.NETLINK_ROUTE, unix.RTM_GETRULE, unix.NLM_F_DUMP, unix.RTM_NEWRULE, msg)
	if isNotExist(err) {
		return nil, nil
	}
	return msgs, err
}

func parseRule(m []byte) Rule {
	msg := nl.DeserializeRtMsg(m)
	r := Rule{Family: Family(msg.Family), Not: msg.Flags&unix.FIB_RULE_INVERT != 0, Table: uint32(msg.Table),
		Nop: msg.Type == unix.FR_ACT_NOP, Drop: msg.Type == unix.FR_ACT_BLACKHOLE}
	for typ, value := range attrsOf(m[msg.Len():]) {
		switch typ {
		case nl.FRA_PRIORITY:
			r.Pref = int(nativeUint(value))
		case nl.FRA_SRC:
			r.From = netip.PrefixFrom(addrFrom(value), int(msg.Src_len))
		case nl.FRA_DST:
			r.To = netip.PrefixFrom(addrFrom(value), int(msg.Dst_len))
		case nl.FRA_IIFNAME:
			r.IIF = unix.ByteSliceToString(value)
		case nl.FRA_OIFNAME:
			r.OIF = unix.ByteSliceToString(value)
		case nl.FRA_FWMARK:
			r.Mark = nativeUint(value)
		case nl.FRA_FWMASK:
			r.Mask = nativeUint(value)
		case nl.FRA_TABLE:
			r.Table = nativeUint(value)
		case nl.FRA_GOTO:
			r.Goto = int(nativeUint(value))
		case nl.FRA_SUPPRESS_PREFIXLEN: // all rules have this attribute; -1: the rule ignores no routes
			r.MinLen = int(int32(nativeUint(value))) + 1
		case nl.FRA_PROTOCOL:
			r.Protocol = int(nativeUint(value))
		}
	}
	return r
}
