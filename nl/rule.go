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

// A Rule sends packets to the routes of a table.
type Rule struct {
	Pref     int
	Family   Family // only for a rule without From and To; 0 is IPv4
	Not      bool   // for packets that do not match
	From, To netip.Prefix
	OIF      string // for packets of the namespace's own sockets that are bound to this link
	IIF      string // "lo" for packets that the namespace itself sends, and for the check of sources (rp_filter)
	Mark     uint32
	Mask     uint32 // 0 is all bits
	Table    uint32 // 0 if the rule leads to no table; to delete a rule, 0 is any table
	Goto     int    // the Pref of the rule to continue with
	Nop      bool   // the rule does nothing: other rules go to it
	Drop     bool   // the rule drops the packets that it matches, without an ICMP error (blackhole)
	// the kernel ignores routes with shorter prefixes than MinLen (suppress_prefixlength MinLen-1); 0: it ignores none
	MinLen   int
	Protocol int // 0 is kernel, as with ip(8)
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
	if r.marked() {
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

// marked reports whether the rule is for packets with a mark. With a mask the mark may be 0.
func (r Rule) marked() bool { return r.Mark != 0 || r.Mask != 0 }

// action returns the kernel's number for the effect of the rule.
func (r Rule) action() uint8 {
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

// tableName returns the name of a table if every host has this table (see rt_tables of iproute2), and otherwise its
// number.
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

// Add adds the rule. The kernel refuses the rule only if the kernel already has the same rule. Two rules that differ
// only in the protocol are the same rule (rule_exists). So Add need not list and compare the rules of all pods.
func (r Rule) Add(n *NS) error {
	err := r.change(n, unix.RTM_NEWRULE, addNew, r.action())
	if errors.Is(err, fs.ErrExist) {
		return errSame
	}
	return err
}

// Del deletes the rule.
func (r Rule) Del(n *NS) error {
	action := uint8(0)
	if r.Goto != 0 { // the kernel refuses to delete a rule with Goto without this action
		action = r.action()
	}
	return r.change(n, unix.RTM_DELRULE, 0, action)
}

// DelRules deletes all rules about packets that arrive by a link. DelRules does not list the rules, because a node has
// several rules for each pod.
func (n *NS) DelRules(iif string) error {
	if err := checkName(iif); err != nil { // without a name the kernel deletes any rule
		return err
	}
	const most = 1000 // no link has so many rules
	for _, family := range Families {
		msg := &nl.RtMsg{}
		msg.Family = uint8(family)
		for range most {
			err := n.change(unix.RTM_DELRULE, 0, msg, attrString(nl.FRA_IIFNAME, iif))
			if absent(err) {
				break
			}
			if err != nil {
				return fmt.Errorf("%s: ip rule del iif %s: %w", n.Name, iif, err)
			}
		}
	}
	return nil
}

// change sends a message about the rule. In a message that deletes a rule, action 0 stands for any action.
func (r Rule) change(n *NS, typ, flags int, action uint8) error {
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
	if r.marked() {
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
	return n.change(typ, flags, msg, attrs...)
}

// Check returns an error if there is no such rule. Any program may have added the rule.
func (r Rule) Check(n *NS) error {
	r.Family, r.Protocol = r.family(), 0
	if r.marked() {
		r.Mask = r.mask()
	}
	has, err := n.hasRule(r)
	if err == nil && !has {
		err = fmt.Errorf("there is no such rule: %w", fs.ErrNotExist)
	}
	return err
}

// hasRule reports whether the namespace has a rule, from any program.
func (n *NS) hasRule(r Rule) (bool, error) {
	if n.listed != nil {
		list := n.listed.rulesOf(n, r.Family)
		return list.has[r], list.err
	}
	found, err := n.askRules(r.Family)
	return slices.ContainsFunc(found, func(f Rule) bool { f.Protocol = 0; return f == r }), err
}

// Rules lists the rules, IPv4 first, in the order in which the kernel applies them.
func (n *NS) Rules() ([]Rule, error) {
	var all []Rule
	for _, family := range Families {
		found, err := n.rules(family)
		if err != nil {
			return nil, fmt.Errorf("%s: list rules: %w", n.Name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// rules returns the rules of a family. After [NS.List], it reads them from the listing.
func (n *NS) rules(family Family) ([]Rule, error) {
	if n.listed != nil {
		list := n.listed.rulesOf(n, family)
		return list.rules, list.err
	}
	return n.askRules(family)
}

func (n *NS) askRules(family Family) ([]Rule, error) {
	msgs, err := n.ruleMessages(family)
	rules := make([]Rule, 0, len(msgs))
	for _, m := range msgs {
		rules = append(rules, parseRule(m))
	}
	return rules, err
}

// ruleMessages are the kernel's messages about all rules of a family.
func (n *NS) ruleMessages(family Family) ([][]byte, error) {
	// struct fib_rule_hdr has the size and the first field of struct rtmsg.
	msg := &nl.RtMsg{}
	msg.Family = uint8(family)
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETRULE, unix.NLM_F_DUMP, unix.RTM_NEWRULE, msg)
	if absent(err) {
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
			r.Pref = int(number(value))
		case nl.FRA_SRC:
			r.From = netip.PrefixFrom(addrFrom(value), int(msg.Src_len))
		case nl.FRA_DST:
			r.To = netip.PrefixFrom(addrFrom(value), int(msg.Dst_len))
		case nl.FRA_IIFNAME:
			r.IIF = unix.ByteSliceToString(value)
		case nl.FRA_OIFNAME:
			r.OIF = unix.ByteSliceToString(value)
		case nl.FRA_FWMARK:
			r.Mark = number(value)
		case nl.FRA_FWMASK:
			r.Mask = number(value)
		case nl.FRA_TABLE:
			r.Table = number(value)
		case nl.FRA_GOTO:
			r.Goto = int(number(value))
		case nl.FRA_SUPPRESS_PREFIXLEN: // each rule has it; -1 is none
			r.MinLen = int(int32(number(value))) + 1
		case nl.FRA_PROTOCOL:
			r.Protocol = int(number(value))
		}
	}
	return r
}
