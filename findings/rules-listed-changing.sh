#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, by ip(8) of iproute2 6.1 and github.com/vishvananda/netlink v1.3.1: lists of rules and IPv6 routes, while other rules and
# routes come and go.
#
# A good guess: a rule or route that is there all the time is in each list, once. If a change between two parts of the list prevents this,
# the kernel marks the list as interrupted. It does so for addresses, links and nftables. netlink then returns ErrDumpInterrupted, and ip(8)
# prints "Dump was interrupted and may be inconsistent".
#
# What happens: for rules and IPv6 routes, the kernel only counts how many entries it has sent. If another process deletes an entry that was
# sent, the next part begins one entry too late. The kernel does not mark the list. So RuleList, RouteList and `ip rule` lack some entries,
# or have some twice, without an error. The first part has about 40 rules, so this happens on nodes with more rules, for instance with rules
# for each pod. For the addresses of a link, which change in the same way here, netlink reports the interruption. The script needs root, Go
# and ip(8).
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && printf 'module example.com/rules\n\ngo 1.26\n\nrequire github.com/vishvananda/netlink v1.3.1\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

func main() {
	for _, what := range []string{"RuleList", "RouteList, IPv6"} {
		wrong, failed := false, false
		for end := time.Now().Add(40 * time.Second); time.Now().Before(end) && !wrong; {
			found := map[string]int{}
			rules, err1 := netlink.RuleList(netlink.FAMILY_V4)
			for _, r := range rules {
				found[fmt.Sprint("RuleList ", r.Priority)]++
			}
			routes, err2 := netlink.RouteList(nil, netlink.FAMILY_V6)
			for _, r := range routes {
				found[fmt.Sprint("RouteList, IPv6 ", r.Dst)]++
			}
			for i := 1001; i <= 1400; i++ {
				n := found[fmt.Sprint(what, " ", i)] + found[fmt.Sprintf("%s fd00::%d/128", what, i)]
				wrong, failed = wrong || n != 1, failed || err1 != nil || err2 != nil
			}
		}
		fmt.Printf("%s: lacks some, or has some twice: %t, errors: %t\n", what, wrong, failed)
	}
	lo, err := netlink.LinkByName("lo")
	for end := time.Now().Add(40 * time.Second); time.Now().Before(end) && !errors.Is(err, netlink.ErrDumpInterrupted); {
		_, err = netlink.AddrList(lo, netlink.FAMILY_V4)
	}
	fmt.Println("AddrList:", err)
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/vishvananda/netlink
CGO_ENABLED=0 go build -o probe .
cases() {
	ip link set lo up
	change() { for i in $(seq "$1" "$2"); do echo -e "rule add pref $i table 100\nroute add fd00::$i/128 dev lo\naddress add 10.0.$((i / 200)).$((i % 200))/32 dev lo"; done; }
	change 1001 1400 | ip -batch - && change 1 60 >changes
	while [ ! -e stop ]; do ip -batch changes && sed 's/ add / del /' changes | ip -batch -; done &
	./probe
	for i in $(seq 5000); do
		[ "$(ip rule | sed 's/:.*//' | awk '$1 > 1000 && $1 <= 1400' | sort -u | wc -l)" = 400 ] || { echo "ip rule: lacks some" && break; }
	done
	touch stop && wait
}
export -f cases && uname -sr
unshare --net bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
RuleList: lacks some, or has some twice: true, errors: false
RouteList, IPv6: lacks some, or has some twice: true, errors: false
AddrList: results may be incomplete or inconsistent
ip rule: lacks some
EOF
