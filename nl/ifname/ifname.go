// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ifname holds the kernel's rules for the name of a link. It depends on nothing, so
// that what reads a name need not link netlink.
package ifname

import (
	"strings"
	"unicode"
)

// Longest is how many bytes a name may have: IFNAMSIZ without the final zero byte.
const Longest = 15

// Fault says why the kernel refuses a name for a link (dev_valid_name). It is "" for a name
// that the kernel takes: 1 to 15 bytes without white space, / and :.
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
	}
	return ""
}
