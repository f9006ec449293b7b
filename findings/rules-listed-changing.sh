#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, by ip(8) of iproute2 6.1 and github.com/vishvananda/netlink v1.3.1: a list of rules, while others come and go.
#
# A good guess: what is there all the time is in each list, once. If the kernel cannot give that, because of a change between two parts
# of the list, it marks the list as interrupted. It does so for addresses, links and nftables. netlink then returns
# ErrDumpInterrupted, and ip(8) prints "Dump was interrupted and may be inconsistent".
#
# What happens: for rules, the kernel only counts how many it has sent. If another process deletes a rule that was sent, the next part
# begins one rule too late. There is no mark. So RuleList and `ip rule` lack rules, or have some twice, without an error. A part has
# about 40 rules, so it takes a node with that many, for instance one with rules for each pod. For the addresses of a link, which
# change in the same way here, netlink reports the interruption. It takes root, Go and ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/rules\n\ngo 1.26\n\nrequire github.com/vishvananda/netlink v1.3.1\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// list counts the rules by their preference.
func list(who string) (map[int]int, error) {
	found := map[int]int{}
	if who == "ip" {
		out, err := exec.Command("ip", "rule").CombinedOutput()
		for line := range strings.Lines(string(out)) {
			var pref int
			if _, err := fmt.Sscanf(line, "%d:", &pref); err != nil {
				return nil, errors.New(line)
			}
			found[pref]++
		}
		return found, err
	}
	rules, err := netlink.RuleList(netlink.FAMILY_V4)
	for _, r := range rules {
		found[r.Priority]++
	}
	return found, err
}

func main() {
	for _, who := range []string{"ip", "netlink"} {
		lacks, twice, failed := false, false, false
		for end := time.Now().Add(40 * time.Second); time.Now().Before(end) && !(lacks && twice); {
			found, err := list(who)
			failed = failed || err != nil
			for pref := 1001; pref <= 1400; pref++ {
				lacks, twice = lacks || found[pref] == 0, twice || found[pref] > 1
			}
		}
		fmt.Printf("rules, %s: lists that lack some: %t, that have some twice: %t, errors: %t\n", who, lacks, twice, failed)
	}
	link, err := netlink.LinkByName("lo")
	for end := time.Now().Add(40 * time.Second); time.Now().Before(end) && !errors.Is(err, netlink.ErrDumpInterrupted); {
		_, err = netlink.AddrList(link, netlink.FAMILY_V4)
	}
	fmt.Println("addresses, netlink:", err)
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/vishvananda/netlink
CGO_ENABLED=0 go build -o probe .
cases() {
	more() { for i in $(seq "$1" "$2"); do printf 'rule add pref %d table 100\naddress add 10.0.%d.%d/32 dev lo\n' "$i" $((i / 200)) $((i % 200)); done; }
	more 1001 1400 | ip -batch - && more 1 60 >more
	while [ ! -e stop ]; do ip -batch more && sed 's/ add / del /' more | ip -batch -; done &
	./probe
	touch stop && wait
}
export -f cases
uname -sr
unshare --net bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
rules, ip: lists that lack some: true, that have some twice: true, errors: false
rules, netlink: lists that lack some: true, that have some twice: true, errors: false
addresses, netlink: results may be incomplete or inconsistent
EOF
