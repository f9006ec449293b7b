#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, by ip(8), github.com/vishvananda/netlink v1.3.1 and jsimonetti/rtnetlink v2.3.0: a rule with the mark 0.
#
# A good guess: `ip rule add fwmark 0` is for packets without a mark, as `fwmark 1` is for packets with the mark 1. And `not fwmark 0` is
# for packets with any mark except 0. A rule that is listed, and then added as listed, is the same rule.
#
# What happens: without a mask, the kernel takes a mask of all bits for each mark except 0. For the mark 0, the mask is 0, so the rule is
# for every packet, marked or not, and `not fwmark 0` is for no packet. No error says so, and `ip rule` lists the rule without a mark. With
# the mask, `fwmark 0/0xffffffff` is for packets without a mark, as in the guess. But `ip rule` lists it as `fwmark 0`, which is the rule
# for every packet. In Go, rtnetlink with a FwMark of 0 and no FwMask adds the rule for every packet. netlink with a Mask adds the rule for
# packets without a mark. The script needs root, Go, ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/mark\n\ngo 1.26\n\nrequire (\n%s\n%s\n)\n' 'github.com/vishvananda/netlink v1.3.1' \
	'github.com/jsimonetti/rtnetlink/v2 v2.3.0' >go.mod
cat >main.go <<'EOF'
package main

import (
	"os"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/vishvananda/netlink"
)

func main() {
	var err error
	if os.Args[1] == "netlink" {
		rule, mask := netlink.NewRule(), uint32(0xffffffff)
		rule.Priority, rule.Table, rule.Mark, rule.Mask = 9, 100, 0, &mask
		err = netlink.RuleAdd(rule)
	} else {
		priority, table, mark := uint32(9), uint32(100), uint32(0)
		c, dial := rtnetlink.Dial(nil)
		if dial != nil {
			panic(dial)
		}
		err = c.Rule.Add(&rtnetlink.RuleMessage{Family: 2, Action: 1, // AF_INET, to the table
			Attributes: &rtnetlink.RuleAttributes{Priority: &priority, Table: &table, FwMark: &mark}})
	}
	if err != nil {
		panic(err)
	}
}
EOF
go mod tidy >/dev/null 2>&1
go build -o probe .
cases() {
	local add mark
	ip link set lo up && ip route add 203.0.113.0/24 dev lo && ip route add prohibit 203.0.113.0/24 table 100
	for add in 'ip rule add pref 9 table 100 fwmark 0' 'ip rule add pref 9 table 100 not fwmark 0' \
		'ip rule add pref 9 table 100 fwmark 0/0xffffffff' './probe netlink' './probe rtnetlink'; do
		$add && echo -n "$add => $(ip rule show pref 9):" | tr '\t' ' '
		for mark in 0 7; do
			echo -n " mark $mark, $(ip route get 203.0.113.1 mark $mark >/dev/null 2>&1 && echo no || echo yes);"
		done
		echo
		ip rule del pref 9
	done
}
export -f cases && uname -sr
unshare --net bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
ip rule add pref 9 table 100 fwmark 0 => 9: from all lookup 100: mark 0, yes; mark 7, yes;
ip rule add pref 9 table 100 not fwmark 0 => 9: not from all lookup 100: mark 0, no; mark 7, no;
ip rule add pref 9 table 100 fwmark 0/0xffffffff => 9: from all fwmark 0 lookup 100: mark 0, yes; mark 7, no;
./probe netlink => 9: from all fwmark 0 lookup 100: mark 0, yes; mark 7, no;
./probe rtnetlink => 9: from all lookup 100: mark 0, yes; mark 7, yes;
EOF
