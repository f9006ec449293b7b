#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/vishvananda/netlink v1.3.1 (Linux 6.18): u32 filters with the action mirred, as FilterList returns them.
#
# A good guess: FilterList reads a filter with its actions. FilterReplace of this filter, or FilterDel and FilterAdd, leaves the filter as
# it was. A program that changes the priority of a filter, or restores it, needs no more than this.
#
# What happens: the library writes one more action before those of the filter, which redirects packets to the same link. FilterList sets the
# field RedirIndex for each mirred action, also for a mirror. The three functions add a redirect for this field. So a filter that copies
# packets to eth1 takes them away from eth0: no packet leaves by eth0 any more, with success. A redirect to the input of eth1 becomes a
# redirect to its output. Each call adds an action to the list of the Go value, also FilterDel does. So each FilterReplace of a new list
# makes the filter longer, by one action. The script needs root, Go, ip(8) and tc(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT && cd "$dir"
printf 'module example.com/filters\n\ngo 1.26\n\nrequire github.com/vishvananda/netlink v1.3.1\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func main() { // main HOW: reads the filter of eth0, and writes it
	f := must(netlink.FilterList(must(netlink.LinkByName("eth0")), netlink.HANDLE_MIN_EGRESS))[0].(*netlink.U32)
	switch os.Args[1] {
	case "list":
		fmt.Printf("%v, RedirIndex %d; ", f.Actions[0].(*netlink.MirredAction).MirredAction, f.RedirIndex)
	case "replace":
		must(0, netlink.FilterReplace(f))
	case "again":
		must(0, netlink.FilterDel(f))
		must(0, netlink.FilterAdd(f))
	}
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/vishvananda/netlink && CGO_ENABLED=0 go build -o probe .
cases() {
	mount -t sysfs sysfs /sys && echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
	for i in 0 1; do
		ip link add eth$i index 1$i type veth peer name peer$i && ip link set eth$i up && ip link set peer$i up
	done
	ip addr add 192.0.2.5/24 dev eth0 && ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev eth0 && tc qdisc add dev eth0 clsact
	got() { cat "/sys/class/net/peer$1/statistics/rx_packets"; }
	# try WORDS HOW...: a filter with this action, written so, each time from a new list.
	try() {
		local how p0 p1
		tc filter add dev eth0 egress protocol ip prio 5 u32 match ip dst 192.0.2.9 action mirred egress "$1" dev eth1
		echo -n "$1, ${*:2}: " && for how in "${@:2}"; do ./probe "$how"; done
		p0=$(got 0) p1=$(got 1)
		for _ in 1 2 3 4 5; do echo >/dev/udp/192.0.2.9/9; done
		sleep 0.2
		echo "of 5 packets: eth0 $(($(got 0) - p0)), eth1 $(($(got 1) - p1)). tc: $(tc filter show dev eth0 egress | grep -oE '(Mirror|Redirect) to' | tr '\n' ' ')"
		tc filter del dev eth0 egress
	}
	try mirror list && try mirror replace && try mirror again && try mirror replace replace replace && try redirect list
}
export -f cases
unshare --net --mount bash -euo pipefail -c cases | sed 's/ $//' | tee seen
diff - seen <<'EOF'
mirror, list: egress mirror, RedirIndex 11; of 5 packets: eth0 5, eth1 5. tc: Mirror to
mirror, replace: of 5 packets: eth0 0, eth1 5. tc: Redirect to Mirror to
mirror, again: of 5 packets: eth0 0, eth1 5. tc: Redirect to Redirect to Mirror to
mirror, replace replace replace: of 5 packets: eth0 0, eth1 5. tc: Redirect to Redirect to Redirect to Mirror to
redirect, list: egress redir, RedirIndex 11; of 5 packets: eth0 0, eth1 5. tc: Redirect to
EOF
