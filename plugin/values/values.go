// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package values checks the values that operators write into configurations. Each kind of value has one rule and one
// message, the same for all plugins. A message names the key, the wrong value and the values that are allowed.
package values

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ifname"
)

// Mistakes collects the mistakes in a configuration.
type Mistakes struct {
	Within string // the part of the configuration that is checked: each message begins with its name
	all    []error
}

// Wrong adds a mistake.
func (m *Mistakes) Wrong(format string, args ...any) {
	m.all = append(m.all, fmt.Errorf("%s%w", m.Within, fmt.Errorf(format, args...)))
}

// Err returns all mistakes as one error, or nil.
func (m *Mistakes) Err() error { return errors.Join(m.all...) }

// Prefixes reads CIDRs. Like the original plugin, it also accepts a single address, and a CIDR such as 10.8.0.5/16,
// with bits beyond its mask. It returns each CIDR once.
func (m *Mistakes) Prefixes(key string, texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		p, ok := prefix(text)
		if !ok {
			m.Wrong("%s: %q: want a CIDR or an address, for example 10.8.0.0/16 or 10.8.0.5", key, text)
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
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped) // with a prefix length below 96, the result is invalid
	}
	return p.Masked(), err == nil && p.IsValid()
}

// Address reads an address.
func (m *Mistakes) Address(key, text string) (netip.Addr, bool) {
	a, ok := address(text)
	if !ok {
		m.Wrong("%s: %q: want an address, for example 10.8.0.5", key, text)
	}
	return a, ok
}

// address parses an address, and turns an IPv4 address inside an IPv6 address into IPv4. A zone is a mistake, because
// it has a meaning on one node only.
func address(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err == nil && a.Zone() == ""
}

// Link checks the name of a link that exists already. It accepts each name that the kernel allows, and an empty name.
func (m *Mistakes) Link(key, name string) {
	if fault := ifname.Fault(name); fault != "" && name != "" {
		m.Wrong("%s: %q: the name %s: want 1 to 15 bytes without white space, / and :", key, name, fault)
	}
}

// NewLink checks the name that a plugin gives to a link in each new pod. It accepts an empty name.
func (m *Mistakes) NewLink(key, name string) {
	if fault := ifname.Refused(name); fault != "" && name != "" {
		m.Wrong("%s: %q: the name %s: want %s", key, name, fault, ifname.Wanted)
	}
}

// IDs checks a list of EC2 IDs with a given prefix, for example sg.
func (m *Mistakes) IDs(key, prefix string, ids []string) {
	for _, id := range ids {
		if !IsID(id, prefix) {
			m.Wrong("%s: %q: want an ID, not a name, for example %s-0123456789abcdef0", key, id, prefix)
		}
	}
}

// IsID reports whether text has the form of an EC2 ID with a given prefix, for example eni
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/resource-ids.html). With a regular expression, each command
// would spend more time on compiling the expression than on decoding its input.
func IsID(text, prefix string) bool {
	rest, ok := strings.CutPrefix(text, prefix+"-")
	const long = 64 // a generous limit: EC2's present IDs have 17 digits
	strange := func(r rune) bool { return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') }
	return ok && rest != "" && len(rest) <= long && !strings.ContainsFunc(rest, strange)
}

// Namespaces checks names of Kubernetes namespaces. A star is allowed only at the end. With a star elsewhere, Narrowest
// of plugin.Namespaces could not decide which of two entries is narrower.
func (m *Mistakes) Namespaces(key string, names []string) {
	for _, name := range names {
		if i := strings.IndexByte(name, '*'); name == "" || i >= 0 && i != len(name)-1 {
			m.Wrong("%s: %q: want a namespace, or the beginning of a namespace with a * after it", key, name)
		}
	}
}

// OneOf reports whether a word is one of the allowed words. Any other word is a mistake. There must be two or more
// allowed words.
func (m *Mistakes) OneOf(key, word string, allowed ...string) bool {
	if slices.Contains(allowed, word) {
		return true
	}
	last := len(allowed) - 1
	m.Wrong("%s: %q: want %s or %s", key, word, strings.Join(allowed[:last], ", "), allowed[last])
	return false
}

// AtLeast returns *n, or fallback if n is nil. A number below minimum is a mistake.
func (m *Mistakes) AtLeast(key string, n *int, fallback, minimum int) int {
	if n == nil {
		return fallback
	}
	if *n < minimum {
		m.Wrong("%s: %d: want %d or more", key, *n, minimum)
	}
	return *n
}

// Between returns *n if it is from minimum to maximum, and otherwise fallback. A number out of the range is a mistake.
func (m *Mistakes) Between(key string, n *int, fallback, minimum, maximum int) int {
	if n == nil {
		return fallback
	}
	if *n < minimum || *n > maximum {
		m.Wrong("%s: %d: want %d to %d", key, *n, minimum, maximum)
		return fallback
	}
	return *n
}

// MTU checks the key "mtu". In the message about a mistake, zeroMeaning says what "mtu": 0 means.
func (m *Mistakes) MTU(n, minimum int, zeroMeaning string) {
	const most = 65535
	if n != 0 && (n < minimum || n > most) {
		m.Wrong("mtu: %d: want %d to %d bytes, or 0 for %s", n, minimum, most, zeroMeaning)
	}
}
