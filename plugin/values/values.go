// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package values checks the values that operators write into configurations. For each kind of value it has one rule and
// one message, whichever plugin has the key. A message names the key, the wrong value and what is wanted.
package values

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ifname"
)

// Mistakes collects what is wrong with a configuration.
type Mistakes struct {
	Within string // the part of the configuration that is looked at, which begins each message
	all    []error
}

// Wrong adds a mistake.
func (m *Mistakes) Wrong(format string, args ...any) {
	m.all = append(m.all, fmt.Errorf("%s%w", m.Within, fmt.Errorf(format, args...)))
}

// Err returns all mistakes as one error, or nil.
func (m *Mistakes) Err() error { return errors.Join(m.all...) }

// Prefixes reads CIDRs. A single address is one, too, and a CIDR may have bits that its mask does not cover: the
// original plugin accepts these. What is there twice is returned once.
func (m *Mistakes) Prefixes(key string, texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		p, ok := prefix(text)
		if !ok {
			m.Wrong("%s: %q: want a CIDR or an address, 10.8.0.0/16 or 10.8.0.5 for example", key, text)
			continue
		}
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

func prefix(text string) (netip.Prefix, bool) {
	if !strings.Contains(text, "/") {
		a, ok := address(text)
		return netip.PrefixFrom(a, a.BitLen()), ok
	}
	p, err := netip.ParsePrefix(text)
	const mapped = 96 // bits of an IPv6 address before the IPv4 address in it
	if p.Addr().Is4In6() {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped) // invalid if it has more than IPv4 addresses
	}
	return p.Masked(), err == nil && p.IsValid()
}

// Address reads an address.
func (m *Mistakes) Address(key, text string) (netip.Addr, bool) {
	a, ok := address(text)
	if !ok {
		m.Wrong("%s: %q: want an address, 10.8.0.5 for example", key, text)
	}
	return a, ok
}

// address takes the IPv4 address out of an IPv6 address that has one. A zone belongs to one node.
func address(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err == nil && a.Zone() == ""
}

// Link checks the name of a link that is there already: whatever the kernel allows. No name is no mistake here.
func (m *Mistakes) Link(key, name string) {
	if fault := ifname.Fault(name); fault != "" && name != "" {
		m.Wrong("%s: %q: the name %s: want 1 to 15 bytes without white space, / and :", key, name, fault)
	}
}

// NewLink checks the name that a link of pods gets. No name is no mistake here.
func (m *Mistakes) NewLink(key, name string) {
	if fault := ifname.Refused(name); fault != "" && name != "" {
		m.Wrong("%s: %q: the name %s: want %s", key, name, fault, ifname.Wanted)
	}
}

// IDs checks IDs of EC2, which have a prefix such as sg.
func (m *Mistakes) IDs(key, prefix string, ids []string) {
	for _, id := range ids {
		if !IsID(id, prefix) {
			m.Wrong("%s: %q: want an ID and no name, %s-0123456789abcdef0 for example", key, id, prefix)
		}
	}
}

// IsID reports whether text has the form of an ID of EC2 with the prefix, such as eni
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/resource-ids.html). It uses no regular
// expression: to compile one costs each command of a plugin more than to decode its input.
func IsID(text, prefix string) bool {
	rest, ok := strings.CutPrefix(text, prefix+"-")
	const long = 64 // an ID has 17 digits
	strange := func(r rune) bool { return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') }
	return ok && rest != "" && len(rest) <= long && !strings.ContainsFunc(rest, strange)
}

// Namespaces checks names of Kubernetes namespaces. A star is allowed only at the end: otherwise it would not be clear
// which of two entries is the narrower one.
func (m *Mistakes) Namespaces(key string, names []string) {
	for _, name := range names {
		if i := strings.IndexByte(name, '*'); name == "" || i >= 0 && i != len(name)-1 {
			m.Wrong("%s: %q: want a namespace, or the beginning of one and a *", key, name)
		}
	}
}

// OneOf checks a word. It reports whether the word is one of all. The list all has two or more words.
func (m *Mistakes) OneOf(key, word string, all ...string) bool {
	if slices.Contains(all, word) {
		return true
	}
	last := len(all) - 1
	m.Wrong("%s: %q: want %s or %s", key, word, strings.Join(all[:last], ", "), all[last])
	return false
}

// AtLeast returns *n, or the default if n is nil.
func (m *Mistakes) AtLeast(key string, n *int, otherwise, least int) int {
	if n == nil {
		return otherwise
	}
	if *n < least {
		m.Wrong("%s: %d: want %d or more", key, *n, least)
	}
	return *n
}

// Between returns *n, or the default if n is nil or out of the range.
func (m *Mistakes) Between(key string, n *int, otherwise, least, most int) int {
	if n == nil {
		return otherwise
	}
	if *n < least || *n > most {
		m.Wrong("%s: %d: want %d to %d", key, *n, least, most)
		return otherwise
	}
	return *n
}

// MTU checks the key mtu. The argument zero is the meaning of "mtu": 0, for the message.
func (m *Mistakes) MTU(n, least int, zero string) {
	const most = 65535
	if n != 0 && (n < least || n > most) {
		m.Wrong("mtu: %d: want 0, for %s, or %d to %d", n, zero, least, most)
	}
}
