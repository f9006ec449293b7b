// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import "strings"

// Namespaces are Kubernetes namespaces in a configuration. Each entry is a name, or the beginning of a name and a *.
type Namespaces []string

// Narrowest returns the length of the longest entry that matches a namespace. A full name counts as longer than any
// beginning. Without a match, Narrowest returns -1.
func (all Namespaces) Narrowest(namespace string) int {
	width := -1
	for _, g := range all {
		start, open := strings.CutSuffix(g, "*")
		switch {
		case namespace == "":
		case !open && g == namespace:
			width = len(g) + 1
		case open && strings.HasPrefix(namespace, start):
			width = max(width, len(start))
		}
	}
	return width
}

// Has reports whether an entry matches a namespace.
func (all Namespaces) Has(namespace string) bool { return all.Narrowest(namespace) >= 0 }
