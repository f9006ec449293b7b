#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# host-device of containernetworking/plugins v1.10.0 (Linux 6.18): the new option useInterfaceNetwork, with ENIs as a node has them.
#
# A good guess: ADD gives the pod the addresses, routes and rules that the link has in the node, or fails. The result lists what the pod
# has. DEL brings the link back as it was, or at least the next pod gets the same. ADD without an address fails, as it does with IPAM.
#
# What happens: DEL brings the link back without addresses and routes, and down. ADD of the next pod then succeeds: the pod gets nothing. So it
# is also after an ADD that failed, since the runtime cleans up by DEL. The pod misses three things, and ADD succeeds: rules without a source
# (iif, fwmark), routes without a link (unreachable), and routes with several next hops. A rule with oif keeps the name that the link had in
# the node, and matches nothing in the pod. A route that exists there counts as added: with a default route by eth0, the result lists a
# default route that the pod does not have. ADD adds an address with a peer without its peer. Then no gateway is reached, and ADD fails. It
# also fails for a link without carrier, as the kernel takes no route back with the flag "linkdown" that it lists. CHECK looks at the main
# table alone. So it fails directly after ADD for an ENI whose default route is in another table. The script needs root, Go and ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
CGO_ENABLED=0 GOBIN=$dir go install github.com/containernetworking/plugins/plugins/main/host-device@v1.10.0
go version -m host-device | grep -oE 'plugins\sv[0-9.]+' | tr '\t' ' '
# call POD COMMAND MORE: prints the error, or the addresses and routes of the result.
call() {
	CNI_COMMAND=$2 CNI_CONTAINERID=$1 CNI_NETNS=/run/netns/$1 CNI_IFNAME=net1 CNI_PATH=. ./host-device >said <<END || :
{"cniVersion": "1.0.0", "name": "n", "type": "host-device", "device": "ens6", "useInterfaceNetwork": true ${3-}}
END
	if grep -q '"msg"' said; then grep -o '"msg.*"' said | sed 's/{.*}//' && return; fi
	echo "success $(grep -oE '"(address|dst|gw|table)": ("[^"]*"|[0-9]+)' said | tr -d '"' | paste -sd ' ')"
}
# has POD: the addresses, routes and rules that it has.
has() {
	local on="ip -n $1"
	{ $on -br -4 addr show to 10.0.1.0/24 && $on route show table all type unicast && $on route show table all type unreachable && $on rule; } |
		grep -vE '^(0|3276[67]):|proto kernel' | tr -s ' \t' ' ' | paste -sd ';'
}
cases() {
	mount -t tmpfs run /run && ip netns add pod && ip netns add next && sysctl -qw net.ipv6.conf.default.disable_ipv6=1
	ip link add ens6 type veth peer name far && ip link set far up && ip link set ens6 up
	case $1 in
		policy) ip addr add 10.0.1.5/24 dev ens6 && ip route add default via 10.0.1.1 dev ens6 table 100
			ip route add unreachable default metric 9000 table 100
			ip rule add pref 50 from 10.0.1.5 lookup 100 && ip rule add pref 51 iif ens6 lookup 100
			ip rule add pref 52 fwmark 0x80 lookup 100 && ip rule add pref 53 from 10.0.1.5 oif ens6 lookup 100 ;;
		second-default) ip addr add 10.0.1.5/24 dev ens6 && ip route add default via 10.0.1.1 dev ens6
			ip -n pod link add eth0 type veth peer name eth0p && ip -n pod link set eth0 up && ip -n pod link set eth0p up
			ip -n pod route add default dev eth0 ;;
		next-hops) ip addr add 10.0.1.5/24 dev ens6 && ip route add default nexthop via 10.0.1.1 dev ens6 nexthop via 10.0.1.2 dev ens6 ;;
		peer) ip addr add 10.0.1.5 peer 10.0.1.1/32 dev ens6 && ip route add default via 10.0.1.1 dev ens6 ;;
		carrier) ip addr add 10.0.1.5/24 dev ens6 && ip route add default via 10.0.1.1 dev ens6 && ip link set far down && sleep 0.3 ;;
	esac
	echo "$1: ADD: $(call pod ADD)" && cp said added && echo "pod: $(has pod)"
	if grep -q '"ips"' added; then echo "CHECK: $(call pod CHECK ", \"prevResult\": $(cat added)")"; fi
	echo "DEL: $(call pod DEL)and ADD of the next: $(call next ADD)it has: $(has next)"
}
export -f cases has call
for what in policy second-default next-hops peer carrier; do unshare -nm bash -euo pipefail -c "cases $what"; done |
	sed 's/ *;/; /g; s/ $//' | tee seen
diff - seen <<'END'
policy: ADD: success address: 10.0.1.5/24 dst: 0.0.0.0/0 gw: 10.0.1.1 table: 100
pod: net1@if2 UP 10.0.1.5/24; default via 10.0.1.1 dev net1 table 100; 50: from 10.0.1.5 lookup 100; 53: from 10.0.1.5 oif ens6 [detached] lookup 100
CHECK: "msg": "Expected Route  not found in routing table"
DEL: success and ADD of the next: success it has:
second-default: ADD: success address: 10.0.1.5/24 dst: 0.0.0.0/0 gw: 10.0.1.1 table: 254
pod: net1@if2 UP 10.0.1.5/24; default dev eth0 scope link
CHECK: success
DEL: success and ADD of the next: success it has:
next-hops: ADD: success address: 10.0.1.5/24
pod: net1@if2 UP 10.0.1.5/24
CHECK: success
DEL: success and ADD of the next: success it has:
peer: ADD: "msg": "failed to add copied route  on net1: network is unreachable"
pod: net1@if2 UP 10.0.1.5/32
DEL: success and ADD of the next: success it has:
carrier: ADD: "msg": "failed to add copied route  on net1: invalid argument"
pod: net1@if2 LOWERLAYERDOWN 10.0.1.5/24
DEL: success and ADD of the next: success it has:
END
