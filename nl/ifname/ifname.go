// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ifname holds the rules for the name of a link: the kernel's rules, and our rules for a name that pods or
// requests choose. The package imports nothing else of ours, so a program that only checks names does not contain
// netlink.
package ifname

import (
	"slices"
	"strings"
	"unicode"
)

// Longest is the number of bytes that a name may have: IFNAMSIZ without the final zero byte.
const Longest = 15

// Egress is the beginning of the names of the links that package egress makes in a pod.
const Egress = "egress"

// Fault says why the kernel refuses a name for a link (dev_valid_name). Fault returns "" for a name that the kernel
// accepts: 1 to 15 bytes without white space, / and :. A zero byte would end the name.
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

// Wanted describes the names that Refused allows, for messages.
const Wanted = "1 to 15 bytes of printable ASCII without /, : and %"

// Refused says why neither a pod nor a request may choose a name for a link of a pod. Refused returns "" for a name
// that they may choose. Our code checks all names that come from pods and from requests with Refused. Refused refuses
// names with characters that would control a terminal, and names that belong to the kernel or to us.
func Refused(name string) string {
	if fault := Fault(name); fault != "" {
		return fault
	}
	switch {
	case strings.ContainsFunc(name, func(r rune) bool { return r < '!' || r > '~' }):
		return "contains a character that is not printable ASCII"
	case strings.Contains(name, "%"):
		return "contains %, which the kernel replaces by a number"
	case slices.Contains(ofKernel(), name):
		return "is one that the kernel uses itself"
	case strings.HasPrefix(name, Egress):
		return "begins with " + Egress + ", as the links of an egress do"
	}
	return ""
}

// ofKernel are names that the kernel uses in each namespace. Each namespace has the link lo, and all and default are
// names of sysctls. The other names are the names of fallback devices of tunnels. If a link of any namespace has such a
// name, the kernel cannot load the module of the tunnel.
func ofKernel() []string {
	return []string{"lo", "all", "default", "tunl0", "ip6tnl0", "sit0", "gre0", "gretap0", "erspan0", "ip6gre0",
		"ip_vti0", "ip6_vti0"}
}
