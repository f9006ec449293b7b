#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/vishvananda/netlink v1.3.1, github.com/jsimonetti/rtnetlink/v2 v2.3.0 (Linux 6.18): IPv6 routes that they list and write again.
#
# A good guess: a route of IPv6 may be for packets of one source subnet, as `from` of ip(8) says. The libraries list such a route, and can
# delete and replace it. They keep what a router's advertisement set: the preference and the lifetime.
#
# What happens: both libraries drop the source. If there is also a route for all sources by the same gateway, netlink's RouteDel of the listed
# route deletes this other one. Else it finds no route. RouteReplace of the listed route gives the other route its gateway. rtnetlink keeps
# the length of the source, and writes zeros for it: a route from ::/48, which no packet uses. netlink writes each route with the preference
# medium. Both write a route with an end as one that stays for ever. They report success. The script needs root, Go and ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT && cd "$dir"
printf 'module example.com/routes\n\ngo 1.26\n\nrequire (\n\tgithub.com/jsimonetti/rtnetlink/v2 v2.3.0\n\tgithub.com/vishvananda/netlink v1.3.1\n)\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/vishvananda/netlink"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func main() { // main HOW: reads the first route to 2001:db8::/48, and writes it
	_, to, _ := net.ParseCIDR("2001:db8::/48")
	listed := must(netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Dst: to}, netlink.RT_FILTER_DST))[0]
	conn := must(rtnetlink.Dial(nil))
	list := must(conn.Route.List())
	first := slices.IndexFunc(list, func(r rtnetlink.RouteMessage) bool { return to.IP.Equal(r.Attributes.Dst) })
	if err := map[string]func() error{
		"before":              func() error { return nil },
		"RouteDel":            func() error { return netlink.RouteDel(&listed) },
		"RouteReplace":        func() error { return netlink.RouteReplace(&listed) },
		"rtnetlink's Delete":  func() error { return conn.Route.Delete(&list[first]) },
		"rtnetlink's Replace": func() error { return conn.Route.Replace(&list[first]) },
	}[os.Args[1]](); err != nil {
		fmt.Print("error: ")
	}
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/jsimonetti/rtnetlink/v2 github.com/vishvananda/netlink && CGO_ENABLED=0 go build -o probe .
cases() {
	ip link add eth0 type veth peer name peer && ip link set eth0 up && ip link set peer up && ip addr add fd00::5/64 dev eth0 nodad
	# try ROUTE...: these routes to 2001:db8::/48, and what each function makes of the first
	try() {
		local how route
		for how in before RouteDel RouteReplace "rtnetlink's Delete" "rtnetlink's Replace"; do
			for route in "$@"; do xargs ip route add 2001:db8::/48 dev eth0 <<<"$route"; done
			echo -n "$how: $(./probe "$how")$(ip -6 route show 2001:db8::/48 | sed -E 's/^[^ ]* //; s/(dev|metric|pref medium) ?[^ ]* *//g; s/[0-9]*sec/soon/' | paste -sd+ | sed 's/ *+/ + /g; s/ *$/; /')"
			ip -6 route flush 2001:db8::/48
		done && echo
	}
	try 'from fd09::/48 via fd00::1' 'via fd00::1' && try 'from fd09::/48 via fd00::1' 'via fd00::2' && try 'via fd00::1 expires 600 pref high'
}
export -f cases
unshare --net bash -euo pipefail -c cases | sed 's/; $//' | tee seen
diff - seen <<'EOF'
before: from fd09::/48 via fd00::1 + via fd00::1; RouteDel: from fd09::/48 via fd00::1; RouteReplace: from fd09::/48 via fd00::1 + via fd00::1; rtnetlink's Delete: error: from fd09::/48 via fd00::1 + via fd00::1; rtnetlink's Replace: from ::/48 via fd00::1 + from fd09::/48 via fd00::1 + via fd00::1
before: from fd09::/48 via fd00::1 + via fd00::2; RouteDel: error: from fd09::/48 via fd00::1 + via fd00::2; RouteReplace: from fd09::/48 via fd00::1 + via fd00::1; rtnetlink's Delete: error: from fd09::/48 via fd00::1 + via fd00::2; rtnetlink's Replace: from ::/48 via fd00::1 + from fd09::/48 via fd00::1 + via fd00::2
before: via fd00::1 expires soon pref high; RouteDel: ; RouteReplace: via fd00::1; rtnetlink's Delete: ; rtnetlink's Replace: via fd00::1 pref high
EOF
