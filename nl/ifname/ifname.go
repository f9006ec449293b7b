// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ifname checks names of links. [Fault] applies the kernel's rules. [Refused] also applies our rules for names
// that pods or requests choose. The package imports no other package of ours, so a program that only checks names
// contains no netlink.
package ifname

import (
	"slices"
	"strings"
	"unicode"
)

// Longest is the maximum length of a link name in bytes: IFNAMSIZ without the final zero byte.
const Longest = 15

// Egress is the beginning of the name of each link that package egress makes in a pod.
const Egress = "egress"

// Fault returns the reason why the kernel refuses a link name (dev_valid_name), for example "is too long". It returns
// "" for a valid name: 1 to 15 bytes without white space, slash and colon. Fault also refuses a zero byte, because the
// kernel would end the name there.
func Fault(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > Longest:
		return "is too long"
	case name == "." || name == "..":
		return "is . or .."
	case strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) }):
		return "contains / or : or whitespace characters"
	case strings.IndexByte(name, 0) >= 0:
		return "contains a zero byte"
	}
	return ""
}

// Wanted is a description of the names that Refused accepts, for messages.
const Wanted = "1 to 15 bytes of printable ASCII without /, : and %"

// Refused returns the reason why we refuse a name for a link of a pod, or "" if the name is allowed. Use it for all
// names that a pod or a request has chosen. It refuses names that Fault refuses, characters that could control a
// terminal, and names that the kernel or our plugins use.
func Refused(name string) string {
	if fault := Fault(name); fault != "" {
		return fault
	}
	switch {
	case strings.ContainsFunc(name, func(r rune) bool { return r < '!' || r > '~' }):
		return "contains a character that is not printable ASCII"
	case strings.Contains(name, "%"):
		return "contains %, which the kernel replaces by a number"
	case slices.Contains(kernelNames(), name):
		return "is one that the kernel uses itself"
	case strings.HasPrefix(name, Egress):
		return "begins with " + Egress + ", as the links of an egress do"
	}
	return ""
}

// kernelNames returns the names that the kernel itself uses in each namespace. The first three names are those of lo,
// and of the sysctl directories "all" and "default". The other names are those of the fallback devices of tunnels. When
// the kernel loads the module of a tunnel, the module makes the fallback device in each namespace. If any namespace has
// a link with the name of the fallback device, the kernel cannot load the module.
func kernelNames() []string {
	return []string{"lo", "all", "default", "tunl0", "ip6tnl0", "sit0", "gre0", "gretap0", "erspan0", "ip6gre0",
		"ip_vti0", "ip6_vti0"}
}
