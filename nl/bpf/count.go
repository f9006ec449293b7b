// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bpf

// Count is the program of a Limit, which matches what counts: all that passes; or, of what
// goes out, what the namespace sends itself.
func Count(own bool) []byte {
	const ingressIfindex = 36 // in struct __sk_buff: 0 if the packet was made here
	const all, none = -1, 0   // what a filter with an action makes of it
	a := newAsm()
	if own {
		a.load(size4, r0, r1, ingressIfindex)
		a.when(r0, equals, 0, "own")
		a.leave(none)
		a.label("own")
	}
	a.leave(all)
	return a.assemble()
}
