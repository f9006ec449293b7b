#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/vishvananda/netlink v1.3.1: IpsetListAll, for a set that has more entries than fit in one message of the kernel.
#
# A good guess: IpsetListAll returns what IpsetList returns, for each set: one IPSetResult with all entries of the set.
#
# What happens: the kernel sends a large set in several messages, each with the set's name. IpsetList joins them. IpsetListAll makes an
# IPSetResult of each message. So a set of 6000 addresses is returned as several sets of the same name. The first has the number of all
# entries (NumEntries) and a part of them. The next ones have further parts, the number 0, and no type, no family and no timeout. A program
# that puts the sets in a map by name keeps only the last part, as a set without a type. With few entries, as in tests, both calls agree.
# The script needs root, Go, and a kernel with ip_set.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/parts\n\ngo 1.26\n\nrequire github.com/vishvananda/netlink v1.3.1\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

func main() {
	for name, count := range map[string]int{"large": 6000, "small": 10} {
		if err := netlink.IpsetCreate(name, "hash:ip", netlink.IpsetCreateOptions{}); err != nil {
			panic(err)
		}
		for i := range count {
			if err := netlink.IpsetAdd(name, &netlink.IPSetEntry{IP: net.IPv4(10, 0, byte(i>>8), byte(i))}); err != nil {
				panic(err)
			}
		}
	}
	all, err := netlink.IpsetListAll()
	fmt.Println("IpsetListAll: two sets:", len(all) == 2, "error:", err)
	sum := map[string]int{}
	for _, set := range all {
		sum[set.SetName] += len(set.Entries)
		fmt.Printf("%s %q %d: a part, %v\n", set.SetName, set.TypeName, set.NumEntries, len(set.Entries) < 6000 && set.SetName == "large")
	}
	fmt.Println("entries:", sum)
	one, err := netlink.IpsetList("large")
	fmt.Printf("IpsetList: %s %q %d %d, error: %v\n", one.SetName, one.TypeName, one.NumEntries, len(one.Entries), err)
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/vishvananda/netlink
go build -o probe .
unshare --net ./probe 2>log | tee seen
diff - <(LC_ALL=C sort -u seen) <<'EOF'
IpsetList: large "hash:ip" 6000 6000, error: <nil>
IpsetListAll: two sets: false error: <nil>
entries: map[large:6000 small:10]
large "" 0: a part, true
large "hash:ip" 6000: a part, true
small "hash:ip" 10: a part, false
EOF
