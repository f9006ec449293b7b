#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/jsimonetti/rtnetlink v2.3.0 (Linux 6.18): user ranges and tunnel keys of rules.
#
# A good guess: UIDRange of a rule has the first and the last user. TunID is the key of the tunnel. Both can be written, and Rule.Delete
# takes each rule of Rule.List. Start and End can hold users above 65535, which containers have.
#
# What happens: Start and End have 16 bits, and the kernel has two numbers of 32 bits. So Start is the lower half of the first user, and End
# is the upper half of the first user: 1000-2000 is read as 1000-0, and 70000-70010 as 4464-1. The last user is never read. No error says
# so. To write or delete a rule with a range fails: "numerical result out of range". TunID has the bytes of the kernel in the order of the
# machine: the key 5 is read as 360287970189639680, and a rule that is written with 5 has that key. A rule that is read and written again
# keeps its key, so a test that reads and writes finds nothing. The script needs root, Go, ip(8), and a little-endian machine.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/rules\n\ngo 1.26\n\nrequire github.com/jsimonetti/rtnetlink/v2 v2.3.0\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"

	"github.com/jsimonetti/rtnetlink/v2"
)

func main() {
	c, err := rtnetlink.Dial(nil)
	if err != nil {
		panic(err)
	}
	rules, err := c.Rule.List()
	if err != nil {
		panic(err)
	}
	for _, r := range rules {
		switch a := r.Attributes; {
		case a.UIDRange != nil:
			fmt.Printf("read: users %+v; delete: %v\n", *a.UIDRange, c.Rule.Delete(&r))
		case a.TunID != nil:
			fmt.Printf("read: tunnel %d; delete: %v; add: %v\n", *a.TunID, c.Rule.Delete(&r), c.Rule.Add(&r))
		}
	}
	priority, table, key := uint32(20), uint32(100), uint64(5)
	written := rtnetlink.RuleMessage{Family: 2, Action: 1, // AF_INET, to the table
		Attributes: &rtnetlink.RuleAttributes{Priority: &priority, Table: &table, TunID: &key}}
	fmt.Println("write tunnel 5:", c.Rule.Add(&written))
	written.Attributes.TunID, written.Attributes.UIDRange = nil, &rtnetlink.RuleUIDRange{Start: 1000, End: 2000}
	fmt.Println("write users 1000-2000:", c.Rule.Add(&written))
}
EOF
go mod tidy >/dev/null 2>&1
go list -m github.com/jsimonetti/rtnetlink/v2
go build -o probe .
cases() {
	ip rule add pref 10 uidrange 1000-2000 table 100 && ip rule add pref 11 uidrange 70000-70010 table 100
	ip rule add pref 12 tun_id 5 table 100 && ip rule | grep lookup.100 && ./probe && ip rule | grep lookup.100
}
export -f cases
unshare --net bash -euo pipefail -c cases | tr '\t' ' ' | sed 's/ $//' | tee seen
diff - seen <<'EOF'
10: from all uidrange 1000-2000 lookup 100
11: from all uidrange 70000-70010 lookup 100
12: from all tun_id 5 lookup 100
read: users {Start:1000 End:0}; delete: netlink receive: numerical result out of range
read: users {Start:4464 End:1}; delete: netlink receive: numerical result out of range
read: tunnel 360287970189639680; delete: <nil>; add: <nil>
write tunnel 5: <nil>
write users 1000-2000: netlink receive: numerical result out of range
10: from all uidrange 1000-2000 lookup 100
11: from all uidrange 70000-70010 lookup 100
12: from all tun_id 5 lookup 100
20: from all tun_id 360287970189639680 lookup 100
EOF
