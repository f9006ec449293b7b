#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/vishvananda/netlink v1.3.1, github.com/ti-mo/conntrack v0.6.0 (Linux 6.18): changes of a listed connection.
#
# A good guess: ConntrackTableList reads a connection with its zone. A program sets another mark, and ConntrackUpdate changes this
# connection. ConntrackCreate makes a deleted connection again. In the other library, Update with the mark 0 clears the mark.
#
# What happens: ConntrackUpdate and ConntrackCreate do not write the zone. Connections in two zones can have the same addresses and ports.
# Then an update of the one in zone 7 changes the mark of the one in zone 0, with success. If zone 0 has no such connection, the update
# fails. A connection of zone 7 that is made again is in zone 0, without its reply. The other library writes the zone. But it leaves a mark
# of 0 out: the update succeeds, and the old mark stays. Nodes with several ENIs route by these marks. The script needs root, and Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/zones\n\ngo 1.26\n\nrequire (\n\tgithub.com/ti-mo/conntrack v0.6.0\n\tgithub.com/vishvananda/netlink v1.3.1\n)\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net/netip"

	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netlink"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func main() {
	c := must(conntrack.Dial(nil))
	from, to := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	add := func(zone uint16, mark uint32) {
		f := conntrack.NewFlow(17, conntrack.StatusConfirmed|conntrack.StatusSeenReply, from, to, 1001, 53, 600, mark)
		f.Zone = zone
		must(0, c.Create(f))
	}
	look := func(what string, results ...any) { // prints the connection of each zone
		fmt.Print(what, " ", results)
		for _, zone := range []uint16{0, 7} {
			for _, f := range must(c.DumpFilter(conntrack.NewFilter().Zone(zone), nil)) {
				fmt.Printf("; zone %d: mark %d, reply %v", f.Zone, f.Mark, f.Status.SeenReply())
			}
		}
		fmt.Println()
	}
	add(7, 2)
	f := must(netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4))[0]
	look("listed with zone", f.Zone)
	f.Mark = 77
	look("netlink, mark 77:", netlink.ConntrackUpdate(netlink.ConntrackTable, netlink.FAMILY_V4, f))
	add(0, 1)
	look("netlink, mark 77:", netlink.ConntrackUpdate(netlink.ConntrackTable, netlink.FAMILY_V4, f))
	must(0, c.Flush())
	look("netlink, made again:", netlink.ConntrackCreate(netlink.ConntrackTable, netlink.FAMILY_V4, f))
	must(0, c.Flush())
	add(7, 2)
	g := must(c.Dump(nil))[0]
	g.Mark = 0
	look("conntrack, mark 0:", c.Update(g))
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/vishvananda/netlink github.com/ti-mo/conntrack && go build -o probe .
unshare --net ./probe | tee seen
diff - seen <<'EOF'
listed with zone [7]; zone 7: mark 2, reply true
netlink, mark 77: [no such file or directory]; zone 7: mark 2, reply true
netlink, mark 77: [<nil>]; zone 0: mark 77, reply true; zone 7: mark 2, reply true
netlink, made again: [<nil>]; zone 0: mark 77, reply false
conntrack, mark 0: [<nil>]; zone 7: mark 2, reply true
EOF
