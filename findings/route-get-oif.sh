#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, github.com/vishvananda/netlink v1.3.1: a route for packets that leave by one link, as sockets bound to it and `oif` ask for.
#
# A good guess: a node has two ENIs. The default route of the main table is by eth0. A rule for the address of eth1 has a table with a
# default route by eth1. Without this rule, nothing far away is reachable by eth1: `ip route get 198.51.100.9 oif eth1` fails. With the rule,
# the answer is the gateway of eth1. A ping bound to eth1 does likewise.
#
# What happens: IPv4 never says that there is no route. If a link is given, and no route is by this link, the kernel takes the destination
# for a neighbour. The answer has no gateway, and netlink shows the table 0. A ping bound to eth1 sends ARP requests for the far address.
# The rule does not help: the kernel looks for a route before it chooses a source address, so no rule by source matches. If the source is
# given, the answer is the gateway. So with the rule, `ping -I ADDRESS` works, and `ping -I eth1` fails. For IPv6, the answer is "Network is
# unreachable", and the rule does not help, either. For both, a second default route in the main table helps, with a higher metric. The
# script needs root, Go, ip(8) and ping(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT && cd "$dir"
printf 'module example.com/oif\n\ngo 1.26\n\nrequire github.com/vishvananda/netlink v1.3.1\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

func main() {
	routes, err := netlink.RouteGetWithOptions(net.ParseIP("198.51.100.9"), &netlink.RouteGetOptions{Oif: "eth1"})
	if err != nil {
		panic(err)
	}
	fmt.Printf("gateway %v, table %d", routes[0].Gw, routes[0].Table)
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/vishvananda/netlink && CGO_ENABLED=0 go build -o probe . && uname -sr
cases() {
	for i in 0 1; do
		ip link add eth$i type veth peer name peer$i && ip link set eth$i up && ip link set peer$i up
		ip addr add 10.$i.0.5/24 dev eth$i && ip addr add fd00:$i::5/64 dev eth$i nodad
	done
	ip route add default via 10.0.0.1 && ip -6 route add default via fd00:0::1
	look() {
		echo "$1: $(ip route get 198.51.100.9 oif eth1 | head -1)netlink: $(./probe)"
		echo "$1, from: $(ip route get 198.51.100.9 from 10.1.0.5 oif eth1 | head -1)"
		echo "$1, IPv6: $(ip -6 route get 2001:db8::9 oif eth1 2>&1 | grep -oE 'via [^ ]*|Network.*')"
		for i in eth1 10.1.0.5; do ping -c 1 -W 1 -I $i 198.51.100.9 >/dev/null || :; done
		echo "$1, ARP by eth1 for: $(ip neigh show dev eth1 | grep -oE '^[0-9.]+' | sort | tr '\n' ' ')"
		ip neigh flush dev eth1
	}
	look 'without a rule'
	ip route add default via 10.1.0.1 table 7 && ip rule add from 10.1.0.5 lookup 7
	ip -6 route add default via fd00:1::1 table 7 && ip -6 rule add from fd00:1::5 lookup 7
	look 'with a rule'
	ip route add default via 10.1.0.1 metric 100 && ip -6 route add default via fd00:1::1 metric 2000
	look 'with a second default route'
}
export -f cases
unshare --net bash -euo pipefail -c cases | sed 's/ *$//' | tee seen
diff - seen <<'EOF'
without a rule: 198.51.100.9 dev eth1 src 10.1.0.5 uid 0 netlink: gateway <nil>, table 0
without a rule, from: 198.51.100.9 from 10.1.0.5 dev eth1 uid 0
without a rule, IPv6: Network is unreachable
without a rule, ARP by eth1 for: 198.51.100.9
with a rule: 198.51.100.9 dev eth1 src 10.1.0.5 uid 0 netlink: gateway <nil>, table 0
with a rule, from: 198.51.100.9 from 10.1.0.5 via 10.1.0.1 dev eth1 table 7 uid 0
with a rule, IPv6: Network is unreachable
with a rule, ARP by eth1 for: 10.1.0.1 198.51.100.9
with a second default route: 198.51.100.9 via 10.1.0.1 dev eth1 src 10.1.0.5 uid 0 netlink: gateway 10.1.0.1, table 254
with a second default route, from: 198.51.100.9 from 10.1.0.5 via 10.1.0.1 dev eth1 table 7 uid 0
with a second default route, IPv6: via fd00:1::1
with a second default route, ARP by eth1 for: 10.1.0.1
EOF
