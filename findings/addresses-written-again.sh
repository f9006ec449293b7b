#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/vishvananda/netlink v1.3.1, github.com/jsimonetti/rtnetlink/v2 v2.3.0 (Linux 6.18): addresses that they list and write again.
#
# A good guess: a program moves an address to another link, or restores it. It writes what AddrList returned, and the address is as before.
# AddrReplace with a listed address changes nothing.
#
# What happens: netlink does not know the metric of an address. Its AddrReplace of a listed address takes the metric away from the route of
# the subnet. The route then has the metric 0, which wins over all others. AddrDel and AddrAdd do the same, and set a broadcast address that
# was not there. An IPv4 address that is deprecated, but valid for ever, is preferred again. So it may be the source of new connections. With
# IPv6, it stays deprecated. rtnetlink reads all lifetimes, and writes none: an address with an end stays for ever, and a deprecated one is
# preferred. The script needs root, Go and ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT && cd "$dir"
printf 'module example.com/addresses\n\ngo 1.26\n\nrequire (\n\tgithub.com/jsimonetti/rtnetlink/v2 v2.3.0\n\tgithub.com/vishvananda/netlink v1.3.1\n)\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"os"
	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/vishvananda/netlink"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func main() { // main HOW: reads the first address of eth0, and writes it
	link := must(netlink.LinkByName("eth0"))
	if os.Args[1] != "rtnetlink" {
		addr := must(netlink.AddrList(link, netlink.FAMILY_ALL))[0]
		if os.Args[1] == "replace" {
			must(0, netlink.AddrReplace(link, &addr))
		} else {
			must(0, netlink.AddrDel(link, &addr))
			must(0, netlink.AddrAdd(link, &addr))
		}
		return
	}
	conn := must(rtnetlink.Dial(nil))
	for _, addr := range must(conn.Address.List()) {
		if addr.Index == uint32(link.Attrs().Index) {
			must(0, conn.Address.Delete(&addr))
			must(0, conn.Address.New(&addr))
		}
	}
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/jsimonetti/rtnetlink/v2 github.com/vishvananda/netlink && CGO_ENABLED=0 go build -o probe .
cases() {
	try() { # try ADDRESS WORDS: the address as ip(8) shows it, before and after each way
		local how && echo -n "$1"
		for how in before replace again rtnetlink; do
			ip link add eth0 type veth peer name peer && ip link set eth0 addrgenmode none && ip link set eth0 up && ip link set peer up
			xargs ip addr add dev eth0 <<<"$1"
			[[ $how == before ]] || ./probe "$how"
			echo -n "; $how: $(ip addr show dev eth0 | grep inet | grep -oE 'brd [0-9.]*|dynamic|deprecated' | tr '\n' ' ' || :)"
			ip route show dev eth0 | grep -oE 'metric [0-9]*' | sed 's/^/route with /' | tr -d '\n' || :
			ip link del eth0
		done && echo
	}
	try '192.0.2.5/24 metric 512' && try '192.0.2.5/24 preferred_lft 0' && try 'fd00::5/64 nodad preferred_lft 0' && try '192.0.2.5/24 valid_lft 600 preferred_lft 300'
}
export -f cases
unshare --net bash -euo pipefail -c cases | sed 's/ *;/;/g; s/: *;/: plain;/g; s/: *$/: plain/; s/ *$//' | tee seen
diff - seen <<'EOF'
192.0.2.5/24 metric 512; before: route with metric 512; replace: plain; again: brd 192.0.2.255; rtnetlink: route with metric 512
192.0.2.5/24 preferred_lft 0; before: deprecated; replace: plain; again: brd 192.0.2.255; rtnetlink: plain
fd00::5/64 nodad preferred_lft 0; before: deprecated; replace: deprecated; again: deprecated; rtnetlink: plain
192.0.2.5/24 valid_lft 600 preferred_lft 300; before: dynamic; replace: dynamic; again: brd 192.0.2.255 dynamic; rtnetlink: plain
EOF
