#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/gopacket/gopacket v1.7.7, package routing: Route, on a node with more than one interface.
#
# A good guess: for a program that sends raw packets, Route returns the route that the kernel would choose for a packet of this machine.
# Perhaps Route does not know rules, and looks only at the main table. There the longest prefix wins, and then the lowest metric.
#
# What happens: the length of a prefix does not count. Of the routes that contain the destination, the route with the lowest metric wins,
# from any table: the policy table of a second ENI counts like the main table. IPv6 behaves in the same way. Of several default routes, the
# route with the highest metric wins, which the kernel would choose last. If a route prohibits the destination, or has several next hops,
# Route returns no error and no interface. The script needs root, Go and ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/route\n\ngo 1.26\n\nrequire github.com/gopacket/gopacket v1.7.7\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"
	"os"

	"github.com/gopacket/gopacket/routing"
)

func main() {
	r, err := routing.New()
	if err != nil {
		panic(err)
	}
	link, gateway, source, err := r.Route(net.ParseIP(os.Args[1]))
	name := "no interface"
	if link != nil {
		name = link.Name
	}
	fmt.Println(name, gateway, source, err)
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/gopacket/gopacket
CGO_ENABLED=0 go build -o probe .
cases() {
	local i
	ip link set lo up
	for i in 0 1; do
		ip link add eth$i type veth peer name peer$i && ip link set eth$i up && ip link set peer$i up
		ip addr add 10.$i.0.5/24 dev eth$i && ip addr add fd00:$i::5/64 dev eth$i nodad
	done
	route() { ip route add "$@"; }
	# ask DESTINATION WHAT: what the kernel and the package say.
	ask() { echo "$2: kernel: $(ip route get "$1" 2>&1 | grep -oE '(dev [a-z0-9]+|Permission denied)' | head -1); package: $(./probe "$1")"; }
	route 198.51.100.0/24 via 10.0.0.1 && route 198.51.100.7 via 10.1.0.1 metric 100
	ask 198.51.100.7 'a host route, metric 100, and one to its /24'
	route 203.0.113.0/24 via 10.0.0.1 metric 50 && route 203.0.113.0/24 via 10.1.0.1 table 100
	ask 203.0.113.7 'table main, and another table'
	ip -6 route add 2001:db8::/32 via fd00:0::1 dev eth0 metric 50 && ip -6 route add 2001:db8::/32 via fd00:1::1 dev eth1 metric 9 table 100
	ask 2001:db8::1 'the same, IPv6'
	route default via 10.0.0.1 metric 100 && route default via 10.1.0.1 metric 512
	ask 192.0.2.1 'two default routes, metrics 100 and 512'
	route prohibit 192.0.2.0/24
	ask 192.0.2.1 'prohibited'
	route 198.18.0.0/24 nexthop via 10.0.0.1 dev eth0 nexthop via 10.0.0.2 dev eth0
	ask 198.18.0.1 'two next hops on one link'
}
export -f cases
unshare --net bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
a host route, metric 100, and one to its /24: kernel: dev eth1; package: eth0 10.0.0.1 10.0.0.5 <nil>
table main, and another table: kernel: dev eth0; package: eth1 10.1.0.1 10.1.0.5 <nil>
the same, IPv6: kernel: dev eth0; package: eth1 fd00:1::1 fd00:1::5 <nil>
two default routes, metrics 100 and 512: kernel: dev eth0; package: eth1 10.1.0.1 10.1.0.5 <nil>
prohibited: kernel: Permission denied; package: no interface <nil> <nil> <nil>
two next hops on one link: kernel: dev eth0; package: no interface <nil> <nil> <nil>
EOF
