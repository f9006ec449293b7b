// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

// names has words of a command, each with the kernel's number for it. The type is a slice and not a map, because each
// process would have to fill a map before main.
type names []struct {
	name   string
	number uint32
}

// number returns the number of a name.
func (n names) number(name string) (number uint32, ok bool) {
	for _, e := range n {
		if e.name == name {
			return e.number, true
		}
	}
	return 0, false
}

// name returns the name of a number, or "" if the number has no name.
func (n names) name(number uint32) string {
	for _, e := range n {
		if e.number == number {
			return e.name
		}
	}
	return ""
}
