#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# iproute2 6.1 (Debian 12), github.com/vishvananda/netlink v1.3.1: routes with several next hops, looked for by a link or gateway.
#
# A good guess: `ip route show dev eth1` shows each route that sends packets by eth1. `via` shows each route by a gateway, and RouteList of
# a link shows each route by the link: the kernel itself can filter by a link. `ip route flush dev eth1` leaves no route by eth1.
#
# What happens: a route with two next hops is in none of these lists, although half of its packets leave by eth1. This is so for IPv6, too.
# ip and netlink compare the interface of the whole route, and such a route has no interface. So flush leaves the route, without an error.
# To a program that removes an ENI, the lists look complete. Only a list of all routes, or a search by destination, has the route. The
# script needs root, Go and ip(8).
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/hops\n\ngo 1.26\n\nrequire github.com/vishvananda/netlink v1.3.1\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

func main() {
	link, err := netlink.LinkByName("eth1")
	if err != nil {
		panic(err)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		for what, of := range map[string]netlink.Link{"RouteList of eth1": link, "RouteList": nil} {
			routes, err := netlink.RouteList(of, family)
			fmt.Printf("%s, family %d, %v:", what, family, err)
			for _, r := range routes {
				if r.Gw != nil || len(r.MultiPath) > 0 {
					fmt.Printf(" %v", r.Dst)
				}
			}
			fmt.Println()
		}
	}
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/vishvananda/netlink
CGO_ENABLED=0 go build -o probe .
cases() {
	local i
	ip link set lo up
	for i in 0 1; do
		ip link add eth$i type veth peer name peer$i && ip link set eth$i up && ip link set peer$i up
		ip addr add 10.$i.0.5/24 dev eth$i && ip addr add fd00:$i::5/64 dev eth$i nodad
	done
	ip route add 198.51.100.0/24 nexthop via 10.0.0.1 nexthop via 10.1.0.1 && ip route add 203.0.113.0/24 via 10.1.0.1
	ip route add 2001:db8:1::/48 nexthop via fd00:0::1 dev eth0 nexthop via fd00:1::1 dev eth1
	ip route add 2001:db8:2::/48 via fd00:1::1
	./probe
	# show WHAT WORDS: the routes to far away.
	show() { echo "ip ${*:2}, $1: $(ip "${@:2}" | grep -oE '^(198|203|2001)[^ ]*' | tr '\n' ' ')"; }
	show before route show dev eth1 && show before route show via 10.1.0.1 && show before -6 route show dev eth1
	ip route flush dev eth1 && ip -6 route flush dev eth1 && show 'after flush' route && show 'after flush' -6 route
	echo "packets by eth1: $(for i in $(seq 60); do ip route get "198.51.100.$i"; done | grep -c 'dev eth1' | sed 's/^[1-9].*/some/')"
}
export -f cases
unshare --net bash -euo pipefail -c cases | sed 's/ $//' | tee seen
diff - <(LC_ALL=C sort seen) <<'EOF'
RouteList of eth1, family 10, <nil>: 2001:db8:2::/48
RouteList of eth1, family 2, <nil>: 203.0.113.0/24
RouteList, family 10, <nil>: 2001:db8:1::/48 2001:db8:2::/48
RouteList, family 2, <nil>: 198.51.100.0/24 203.0.113.0/24
ip -6 route show dev eth1, before: 2001:db8:2::/48
ip -6 route, after flush: 2001:db8:1::/48
ip route show dev eth1, before: 203.0.113.0/24
ip route show via 10.1.0.1, before: 203.0.113.0/24
ip route, after flush: 198.51.100.0/24
packets by eth1: some
EOF
