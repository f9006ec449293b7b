// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

// names are the words of a command, and the kernel's numbers for them. Each process would fill a map before main.
type names []struct {
	name   string
	number uint32
}

// number is the number of a name.
func (n names) number(name string) (number uint32, ok bool) {
	for _, e := range n {
		if e.name == name {
			return e.number, true
		}
	}
	return 0, false
}

// name is the name of a number, or nothing.
func (n names) name(number uint32) string {
	for _, e := range n {
		if e.number == number {
			return e.name
		}
	}
	return ""
}
