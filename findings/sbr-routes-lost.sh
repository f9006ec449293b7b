#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# sbr of containernetworking/plugins v1.10.0 (Linux 6.18): which routes of the interface it keeps.
#
# A good guess: sbr moves all routes of its interface to the table of the address. A packet with this source goes where it went before.
# Link-local addresses of the interface work as before, since no source rule is for them. The option addSourceHints, new since v1.9.0, keeps
# the routes to subnets in the main table.
#
# What happens: sbr deletes all routes of the interface from the main table. It copies a route only without a gateway, or if the gateway is
# in the subnet of the address. So a route by a link-local gateway is gone, and each route by another gateway with `onlink`. A VPC's routers
# have link-local addresses. ADD succeeds. Only the default route by the gateway of the result is made again: packets to the lost subnets
# take this gateway. The route fe80::/64 is gone from the main table, too: a ping to the gateway's link-local address gets no answer any
# more. With addSourceHints it is the same. Routes with several next hops stay in the main table, so packets of the address no longer use
# them. The script needs root, Go, ip(8) and ping(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
CGO_ENABLED=0 GOBIN=$dir go install github.com/containernetworking/plugins/plugins/meta/sbr@v1.10.0
go version -m sbr | grep -oE 'plugins\sv[0-9.]+' | tr '\t' ' '
cat >case <<'EOF'
mount -t tmpfs run /run && ip netns add pod && ip link set lo up
ip link add host0 type veth peer name eth1 netns pod && ip link set host0 up
for a in 10.0.1.1/24 198.51.100.9/24 203.0.113.9/24; do ip addr add $a dev host0; done
for a in fe80::1/64 fd00:1::1/64 2001:db8::9/64; do ip addr add $a dev host0 nodad; done
pod() { ip netns exec pod "$@"; }
pod ip link set lo up && pod ip link set eth1 addrgenmode none && pod ip link set eth1 up && pod ip addr add 10.0.1.5/24 dev eth1
pod ip addr add fd00:1::5/64 dev eth1 nodad && pod ip addr add fe80::5/64 dev eth1 nodad
pod ip route add 198.51.100.0/24 via 10.0.1.1
pod ip route add 203.0.113.0/24 via 10.0.2.1 dev eth1 onlink
pod ip route add 192.0.2.0/24 nexthop via 10.0.1.1 nexthop via 10.0.1.2
pod ip route add 2001:db8:1::/48 via fd00:1::1
pod ip route add 2001:db8::/48 via fe80::1 dev eth1
look() {
	for i in -4 -6; do
		echo "$1, $(pod ip $i rule | grep -oE 'from [1f].*' || echo no rule): $(pod ip $i route show table all |
			grep -E '^(198|203|192|2001|fe80)' | grep -v 'table local' | grep -oE '^[^ ]*|table [0-9]+' | tr '\n' ' ')"
	done
	echo "$1: fe80::1: $(pod ping -c 1 -W 5 fe80::1%eth1 2>&1 | grep -oE '[01] received')"
}
look before
CNI_COMMAND=ADD CNI_CONTAINERID=c CNI_NETNS=/run/netns/pod CNI_IFNAME=eth1 CNI_PATH=. ./sbr >/dev/null 2>log <<END
{"cniVersion": "1.0.0", "name": "n", "type": "sbr", $1 "prevResult": {"cniVersion": "1.0.0",
"interfaces": [{"name": "eth1", "sandbox": "/run/netns/pod"}], "ips": [{"interface": 0, "address": "10.0.1.5/24", "gateway": "10.0.1.1"},
{"interface": 0, "address": "fd00:1::5/64", "gateway": "fe80::1"}]}}
END
look "ADD, $2"
EOF
for hints in false true; do unshare --net --mount bash -euo pipefail case "\"addSourceHints\": $hints," "$hints"; done | sed 's/ $//' | tee seen
diff - <(LC_ALL=C sort -u seen) <<'EOF'
ADD, false, from 10.0.1.5 lookup 100: 198.51.100.0/24 table 100 192.0.2.0/24
ADD, false, from fd00:1::5 lookup 101: fe80::/64 table 100 2001:db8:1::/48 table 101 fe80::/64 table 101
ADD, false: fe80::1: 0 received
ADD, true, from 10.0.1.5 lookup 100: 198.51.100.0/24 table 100 192.0.2.0/24
ADD, true, from fd00:1::5 lookup 101: fe80::/64 table 100 2001:db8:1::/48 table 101 fe80::/64 table 101
ADD, true: fe80::1: 0 received
before, no rule: 192.0.2.0/24 198.51.100.0/24 203.0.113.0/24
before, no rule: 2001:db8::/48 2001:db8:1::/48 fe80::/64
before: fe80::1: 1 received
EOF
