#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# iproute2 6.15.0, github.com/vishvananda/netlink v1.3.1, jsimonetti/rtnetlink v2.3.0: a route by a nexthop object is listed, but the
# listing cannot remove or restore it.
#
# A good guess: `ip route flush` removes what `ip route show` lists. `ip route restore` takes what `ip route save` wrote. In Go, RouteDel
# (Route.Delete) takes each route of RouteList (Route.List), or refuses it for both families.
#
# What happens: the kernel lists such a route with the object's number and also with the gateway and the link. It refuses a message that has
# both ("mutually exclusive"). So `ip route flush` of a table with one such route fails, for IPv4 and for IPv6: the other routes go, and
# this route stays. `ip route restore` stops at this route: no later route comes back. The Go libraries leave out the number. Then the
# kernel removes the IPv6 route, but does not find the IPv4 route: "no such process" for a route that is there. Routing daemons and
# systemd-networkd make nexthop objects. The script needs root, Go, Debian 12 or later. Seen with Linux 6.18.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status=/dev/null -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
apt-get "${options[@]}" download iproute2=6.15.0-1 libbpf1 libcap2 libelf1t64 libmnl0 libselinux1 libpcre2-8-0 libzstd1 zlib1g libc6
for deb in *.deb; do dpkg -x "$deb" root; done

printf 'module example.com/nexthop\n\ngo 1.26\n\nrequire (\n%s\n%s\n)\n' 'github.com/vishvananda/netlink v1.3.1' \
	'github.com/jsimonetti/rtnetlink/v2 v2.3.0' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/vishvananda/netlink"
)

func main() {
	c, _ := rtnetlink.Dial(nil)
	listed, _ := c.Route.List()
	for _, r := range listed {
		if r.Protocol == 99 {
			fmt.Println("rtnetlink:", r.Attributes.Dst, c.Route.Delete(&r))
			_ = c.Route.Add(&r)
		}
	}
	routes, _ := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: 99}, netlink.RT_FILTER_PROTOCOL)
	for _, r := range routes {
		fmt.Println("netlink:", r.Dst, netlink.RouteDel(&r))
	}
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/vishvananda/netlink github.com/jsimonetti/rtnetlink/v2
go build -o probe .
cases() {
	ip() { "$(echo root/usr/lib/*/ld-linux-*)" --library-path "$(echo root/usr/lib/*-linux-gnu)" root/usr/sbin/ip "$@" 2>&1 || :; }
	ip -V && ip link add v0 type veth peer name v1 && ip link set v1 up && ip link set v0 up
	ip addr add 192.0.2.1/24 dev v0 && ip addr add 2001:db8::1/64 dev v0 nodad
	ip nexthop add id 4 via 192.0.2.9 dev v0 && ip nexthop add id 6 via 2001:db8::9 dev v0
	ip route add 203.0.113.0/25 proto 99 nhid 4 && ip route add 203.0.113.128/25 proto 99 via 192.0.2.8
	ip route add 2001:db8:1::/64 proto 99 nhid 6
	ip route save proto 99 >saved && ip route flush proto 99 && ip -6 route flush proto 99 && ip route show proto 99
	ip route del 203.0.113.0/25 nhid 4 && ip route restore <saved && ip route show proto 99
	ip route add 203.0.113.0/25 proto 99 nhid 4 && ./probe
}
export -f cases && unshare --net bash -euo pipefail -c cases | tee seen
diff - <(sed '1d; s/ $//' seen) <<'EOF'
Failed to send flush request: Invalid argument
Failed to send flush request: Invalid argument
203.0.113.0/25 nhid 4 via 192.0.2.9 dev v0
Error: Nexthop specification and nexthop id are mutually exclusive.
rtnetlink: 203.0.113.0 netlink receive: no such process
rtnetlink: 2001:db8:1:: <nil>
netlink: 203.0.113.0/25 no such process
netlink: 2001:db8:1::/64 <nil>
EOF
