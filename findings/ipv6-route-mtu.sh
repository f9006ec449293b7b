#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, by github.com/vishvananda/netlink v1.3.1: the MTU of an IPv6 route follows the MTU of its link.
#
# A good guess: the `mtu` of a route does not depend on its link, for IPv4 and for IPv6. A link with a lower MTU limits the packets. When
# the link has the greater MTU again, the MTU of the route is in force as before. So on a node with links of 9001 bytes, a default route
# with `mtu 1500` keeps packets for the Internet at 1500.
#
# What happens: for IPv4, the guess is right. For IPv6, the kernel writes the new MTU of a link into some routes of the link: into routes
# with a greater MTU, and into routes with the earlier MTU of the link. So if a link changes from 1500 to 9001, a route with `mtu 1500` gets
# 9001. If a link of 9001 has 1300 for a moment, a route with `mtu 1400` then has 9001. RouteList shows 9001, as if an operator had set it.
# A program that is subscribed to changes of routes gets no message. A route with `mtu lock` keeps its MTU, in all cases. The script needs
# root, Go and ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/mtu\n\ngo 1.26\n\nrequire github.com/vishvananda/netlink v1.3.1\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func main() {
	link, changes := must(netlink.LinkByName("v0")), make(chan netlink.RouteUpdate, 99)
	must(0, netlink.RouteSubscribe(changes, nil))
	for _, mtu := range os.Args[1:] {
		must(0, netlink.LinkSetMTU(link, must(strconv.Atoi(mtu))))
	}
	time.Sleep(time.Second / 2)
	filter := &netlink.Route{Protocol: 99}
	for _, r := range must(netlink.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL)) {
		fmt.Printf("%s mtu %d; ", r.Dst, r.MTU)
	}
	fmt.Println("changes of routes:", len(changes))
}
EOF
go mod tidy >/dev/null 2>&1 && go build -o probe .
cases() {
	echo "routes of $1, link of $2" && ip link add v0 mtu "${2%% *}" type veth && ip link set v0 up
	ip route add 203.0.113.0/24 dev v0 mtu "$1" proto 99
	ip route add 2001:db8:a::/64 dev v0 mtu "$1" proto 99 && ip route add 2001:db8:b::/64 dev v0 mtu lock "$1" proto 99
	# shellcheck disable=SC2086 # several numbers
	./probe ${2#* }
}
export -f cases && uname -sr
unshare --net bash -euo pipefail -c 'cases 1500 "1500 9001"' | tee seen
unshare --net bash -euo pipefail -c 'cases 1400 "9001 1300 9001"' | tee -a seen
diff - seen <<'EOF'
routes of 1500, link of 1500 9001
203.0.113.0/24 mtu 1500; 2001:db8:a::/64 mtu 9001; 2001:db8:b::/64 mtu 1500; changes of routes: 0
routes of 1400, link of 9001 1300 9001
203.0.113.0/24 mtu 1400; 2001:db8:a::/64 mtu 9001; 2001:db8:b::/64 mtu 1400; changes of routes: 0
EOF
