// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package compare

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// A form stands for the text of a field. The comparison compares forms and not texts, because some texts always differ,
// for example IDs. A missing field has the zero form.
type form struct {
	shown string // what the table shows: the text, with names or descriptions in place of IDs, addresses and times
	kind  string // what the text is, for example "a number"; for an unknown sort of text, the same as "shown"
}

// names has a name for each known text of one side, for example for the ID of the new ENI. The name is the same on both
// sides.
type names map[string]string

func (n names) addName(text, name string) {
	if text != "" {
		n[text] = "{" + name + "}"
	}
}

// replaceNames replaces all known texts in a text by their names. It begins with the longest known text, because a
// known text can contain a shorter known text.
func (n names) replaceNames(text string) string {
	for _, known := range slices.SortedFunc(knownTexts(n), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b))
	}) {
		text = strings.ReplaceAll(text, known, n[known])
	}
	return text
}

func knownTexts(n names) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range n {
			if !yield(k) {
				return
			}
		}
	}
}

// forms describe the texts that are never the same on both sides, such as times and MAC addresses.
var forms = []struct {
	like *regexp.Regexp
	form string
}{
	{regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$`), "a time"},
	{regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`), "a UUID"},
	{regexp.MustCompile(`^([0-9a-f]{2}:){5}[0-9a-f]{2}/?$`), "a MAC address"},
	{regexp.MustCompile(`^([0-9a-f]+:)+:?([0-9a-f]+)?$`), "an IPv6 address"},
}

var (
	idPattern     = regexp.MustCompile(`^([a-z]+(-[a-z]+)*-)[0-9a-f]{8,17}$`)
	dnsName       = regexp.MustCompile(`\bip-\d+-\d+-\d+-\d+\b`)
	numberPattern = regexp.MustCompile(`^-?\d+(\.\d+)?$`)
)

// formOf returns the form of a text.
func (n names) formOf(text string) form {
	if text == "" {
		return form{"(empty)", "empty"}
	}
	if name, ok := n[text]; ok {
		return form{name, name}
	}
	for _, f := range forms {
		if f.like.MatchString(text) {
			return form{f.form, f.form}
		}
	}
	if m := idPattern.FindStringSubmatch(text); m != nil {
		return form{"an ID " + m[1], m[1]}
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		return form{"an IPv4 address", "an IPv4 address"}
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		kind := fmt.Sprintf("a block /%d", p.Bits())
		return form{kind, kind}
	}
	if numberPattern.MatchString(text) {
		return form{text, "a number"}
	}
	shown := n.replaceNames(dnsName.ReplaceAllString(text, "ip-ADDRESS"))
	return form{shown, shown}
}
