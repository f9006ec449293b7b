// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

// A nameTable has names of ip(8) or nft(8), and the kernel's numbers for these names. It is a slice and not a map,
// because each process would have to fill the map before main.
type nameTable []struct {
	name   string
	number uint32
}

func (n nameTable) numberOf(name string) (number uint32, ok bool) {
	for _, e := range n {
		if e.name == name {
			return e.number, true
		}
	}
	return 0, false
}

func (n nameTable) nameOf(number uint32) string {
	for _, e := range n {
		if e.number == number {
			return e.name
		}
	}
	return ""
}
