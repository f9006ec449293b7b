#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/yl2chen/cidranger v1.0.2, which finds the networks of an address, and addresses as netlink and CNI results have them.
#
# A good guess: an entry 10.0.1.5/24, which is an address with the mask of its subnet, counts as the network 10.0.1.0/24. Insert and Contains
# show this: the table has 10.0.1.77. Then Insert of the same entry again replaces it, as for a network. Remove with what was inserted removes
# it, and Contains is false. CoveredNetworks(10.0.1.1/24) lists the prefixes in this subnet.
#
# What happens: Insert and Contains cut the address to its network, but all other calls compare the whole address. Each further Insert adds one
# more entry, so the table grows, and ContainingNetworks returns each of them. Remove of the entry returns nil and no error, and removes
# nothing. Remove of the network removes one of the entries. Contains stays true. CoveredNetworks of an address lists nothing, without an error,
# although the subnet has prefixes. So a program that keeps the addresses of links in a table keeps those that are gone. The script needs Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/ranger\n\ngo 1.26\n\nrequire (\n\tgithub.com/yl2chen/cidranger v1.0.2\n\tgithub.com/containernetworking/cni v1.3.1\n)\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/yl2chen/cidranger"
)

func parse(s string) net.IPNet { // as libcni reads the address of a result
	n, err := types.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return *n
}

func main() {
	for _, s := range []string{"10.0.1.0/24", "10.0.1.5/24"} {
		r := cidranger.NewPCTrieRanger()
		n := parse(s)
		other := net.IP(append([]byte{}, n.IP...))
		other[len(other)-1] = 77
		for range 3 {
			_ = r.Insert(cidranger.NewBasicRangerEntry(n))
		}
		in, _ := r.Contains(other)
		all, _ := r.ContainingNetworks(other)
		fmt.Printf("%s, inserted three times: entries: %d, %v in it: %v, by %d\n", s, r.Len(), other, in, len(all))
		gone, err := r.Remove(n)
		in, _ = r.Contains(other)
		fmt.Printf("  Remove: found: %v, error: %v, entries: %d, %v in it: %v\n", gone != nil, err, r.Len(), other, in)
		gone, _ = r.Remove(net.IPNet{IP: n.IP.Mask(n.Mask), Mask: n.Mask})
		in, _ = r.Contains(other)
		fmt.Printf("  Remove of the network: found: %v, entries: %d, %v in it: %v\n", gone != nil, r.Len(), other, in)
	}
	r := cidranger.NewPCTrieRanger()
	_ = r.Insert(cidranger.NewBasicRangerEntry(parse("10.0.1.16/28")))
	_ = r.Insert(cidranger.NewBasicRangerEntry(parse("10.0.1.32/28")))
	for _, s := range []string{"10.0.1.0/24", "10.0.1.1/24"} {
		covered, err := r.CoveredNetworks(parse(s))
		fmt.Printf("prefixes in %s: %d, error: %v\n", s, len(covered), err)
	}
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/yl2chen/cidranger
go run . | tee seen
diff - seen <<'EOF'
10.0.1.0/24, inserted three times: entries: 1, 10.0.1.77 in it: true, by 1
  Remove: found: true, error: <nil>, entries: 0, 10.0.1.77 in it: false
  Remove of the network: found: false, entries: 0, 10.0.1.77 in it: false
10.0.1.5/24, inserted three times: entries: 3, 10.0.1.77 in it: true, by 3
  Remove: found: false, error: <nil>, entries: 3, 10.0.1.77 in it: true
  Remove of the network: found: true, entries: 2, 10.0.1.77 in it: true
prefixes in 10.0.1.0/24: 2, error: <nil>
prefixes in 10.0.1.1/24: 0, error: <nil>
EOF
