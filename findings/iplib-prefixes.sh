#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/c-robinson/iplib v1.0.8, a library for IP networks: prefixes of an ENI, and the free parts of a subnet.
#
# A good guess: Enumerate(3, 0) lists the first three addresses of any network. NewNetBetween gives "the largest netblock that can fit between"
# two addresses, "exclusive of the IP's themselves". RandomIP gives a usable address. IsGlobal of a public address is true.
#
# What happens: Enumerate lists nothing for IPv6 networks from /66 to /96. This includes the /80 that EC2 delegates to an ENI, and the /96 of
# NAT64. With an offset of 1, the same call lists addresses. The library cuts the number of addresses to 32 bits, and so takes it for zero.
# NewNetBetween looks only at blocks around the lower address. For the free part of a /24 after EC2's four reserved addresses, it returns a /30.
# A /26 fits. It returns a block with the lower address in it, and says that a block does not fit exactly when it does. RandomIP of an IPv4
# network returns the network's own address, and never its last usable one. For an IPv4 address from net.ParseIP, IsGlobal is always false and
# IsReserved always true: the address counts as IPv4-mapped. For the same address in four bytes, as netlink gives it, both are right.
# The script needs Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/prefixes\n\ngo 1.26\n\nrequire github.com/c-robinson/iplib v1.0.8\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"

	"github.com/c-robinson/iplib"
	"github.com/c-robinson/iplib/iana"
)

func main() {
	for _, bits := range []int{64, 65, 66, 80, 96, 97, 112} {
		n := iplib.NewNet6(net.ParseIP("2001:db8::"), bits, 0)
		fmt.Printf("Enumerate of a /%d with %v addresses: %d; with an offset: %d\n", bits, n.Count(), len(n.Enumerate(3, 0)), len(n.Enumerate(3, 1)))
	}
	for _, ends := range [][2]string{{"10.0.0.3", "10.0.0.255"}, {"10.0.0.16", "10.0.0.32"}, {"10.0.0.15", "10.0.0.32"}, {"2001:db8::f", "2001:db8::1:0:0:0"}} {
		n, exact, err := iplib.NewNetBetween(net.ParseIP(ends[0]), net.ParseIP(ends[1]))
		fmt.Println("between", ends, n, exact, err)
	}
	prefix := iplib.Net4FromStr("10.0.1.16/28")
	seen := map[string]bool{}
	for range 10000 {
		seen[prefix.RandomIP().String()] = true
	}
	fmt.Println("RandomIP:", len(seen), "addresses, first:", seen["10.0.1.16"], seen["10.0.1.17"], "last:", seen["10.0.1.29"], seen["10.0.1.30"])
	for _, s := range []string{"52.95.110.1", "10.0.1.16"} {
		for _, ip := range []net.IP{net.ParseIP(s), net.ParseIP(s).To4()} {
			n := iplib.NewNet(ip, 32)
			fmt.Printf("%v in %d bytes: global: %v, reserved: %v\n", n, len(ip), iana.IsGlobal(n), iana.IsReserved(n))
		}
	}
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/c-robinson/iplib
go run . | tee seen
diff - seen <<'EOF'
Enumerate of a /64 with 18446744073709551616 addresses: 3; with an offset: 3
Enumerate of a /65 with 9223372036854775808 addresses: 3; with an offset: 3
Enumerate of a /66 with 4611686018427387904 addresses: 0; with an offset: 3
Enumerate of a /80 with 281474976710656 addresses: 0; with an offset: 3
Enumerate of a /96 with 4294967296 addresses: 0; with an offset: 3
Enumerate of a /97 with 2147483648 addresses: 3; with an offset: 3
Enumerate of a /112 with 65536 addresses: 3; with an offset: 3
between [10.0.0.3 10.0.0.255] 10.0.0.4/30 false <nil>
between [10.0.0.16 10.0.0.32] 10.0.0.16/28 false <nil>
between [10.0.0.15 10.0.0.32] 10.0.0.16/28 false <nil>
between [2001:db8::f 2001:db8::1:0:0:0] 2001:db8::10/124 false <nil>
RandomIP: 14 addresses, first: true true last: true false
52.95.110.1/32 in 16 bytes: global: false, reserved: true
52.95.110.1/32 in 4 bytes: global: true, reserved: false
10.0.1.16/32 in 16 bytes: global: false, reserved: true
10.0.1.16/32 in 4 bytes: global: false, reserved: false
EOF
