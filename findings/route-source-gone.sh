#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, by github.com/vishvananda/netlink v1.3.1: a route whose preferred source (`src`) is no address of the node any more.
#
# A good guess: the kernel refuses to add a route whose source no link has. So when an address goes, the kernel removes the routes with this
# source, or removes only the source. It does the same in each table, and however the address goes. And a socket can use the route that
# RouteGet shows.
#
# What happens, IPv4: routes of the main table go with the address. Routes of another table stay, with the source that no link has. Then
# RouteGet (as `ip route get`) shows such a route and that source, but a socket that connects gets "network is unreachable". Nodes with
# several ENIs have such tables. IPv6: no route goes. If the address is deleted, each route loses its source, in all tables. But if the
# address goes with its link, each route keeps the source, and a socket that connects uses this source. The script needs root, Go and ip(8).
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && printf 'module example.com/source\n\ngo 1.26\n\nrequire github.com/vishvananda/netlink v1.3.1\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
)

func main() {
	got, err := netlink.RouteGet(net.ParseIP(os.Args[1]))
	if err == nil {
		fmt.Print("  RouteGet: ", got[0].Src)
	}
	conn, err := net.Dial("udp", net.JoinHostPort(os.Args[1], "9"))
	if err == nil {
		fmt.Println("  a socket has", conn.LocalAddr().(*net.UDPAddr).IP)
	} else {
		fmt.Println(" ", err)
	}
}
EOF
go mod tidy >/dev/null 2>&1 && go build -o probe .
world() {
	ip link add dx type veth peer name ex && ip link add v0 type veth peer name v1 && for l in dx ex v0 v1 lo; do ip link set $l up; done
	ip addr add 192.0.2.1/24 dev v0 && ip addr add 2001:db8::1/64 dev v0 nodad
	ip addr add 198.51.100.1/24 dev dx && ip addr add 2001:db8:7::1/64 dev dx nodad
	ip route add 203.0.113.0/24 via 192.0.2.2 src 198.51.100.1 table "$1" proto 99
	ip route add 2001:db8:f::/64 via 2001:db8::2 src 2001:db8:7::1 table "$1" proto 99
	ip rule add pref 9 table "$1" && ip -6 rule add pref 9 table "$1"
}
cases() {
	world "$1" && eval "$2" && echo "table $1, $2"
	ip route show proto 99 table "$1" && ./probe 203.0.113.1 && ip -6 route show proto 99 table "$1" && ./probe 2001:db8:f::1
}
export -f world cases && uname -sr
for how in 'ip addr del 198.51.100.1/24 dev dx; ip addr del 2001:db8:7::1/64 dev dx' 'ip link del dx'; do
	for table in 254 100; do unshare --net bash -euo pipefail -c 'cases "$@"' - "$table" "$how"; done
done | sed 's/ $//' | tee seen
diff - seen <<'EOF'
table 254, ip addr del 198.51.100.1/24 dev dx; ip addr del 2001:db8:7::1/64 dev dx
  dial udp 203.0.113.1:9: connect: network is unreachable
2001:db8:f::/64 via 2001:db8::2 dev v0 metric 1024 pref medium
  RouteGet: 2001:db8::1  a socket has 2001:db8::1
table 100, ip addr del 198.51.100.1/24 dev dx; ip addr del 2001:db8:7::1/64 dev dx
203.0.113.0/24 via 192.0.2.2 dev v0 src 198.51.100.1
  RouteGet: 198.51.100.1  dial udp 203.0.113.1:9: connect: network is unreachable
2001:db8:f::/64 via 2001:db8::2 dev v0 metric 1024 pref medium
  RouteGet: 2001:db8::1  a socket has 2001:db8::1
table 254, ip link del dx
  dial udp 203.0.113.1:9: connect: network is unreachable
2001:db8:f::/64 via 2001:db8::2 dev v0 src 2001:db8:7::1 metric 1024 pref medium
  RouteGet: 2001:db8:7::1  a socket has 2001:db8:7::1
table 100, ip link del dx
203.0.113.0/24 via 192.0.2.2 dev v0 src 198.51.100.1
  RouteGet: 198.51.100.1  dial udp 203.0.113.1:9: connect: network is unreachable
2001:db8:f::/64 via 2001:db8::2 dev v0 src 2001:db8:7::1 metric 1024 pref medium
  RouteGet: 2001:db8:7::1  a socket has 2001:db8:7::1
EOF
