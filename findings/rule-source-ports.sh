#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, iproute2 6.1: policy rules by source port (`sport`), and connections of programs that let the kernel choose the port.
#
# A good guess: the rule decides on the link of a connection, and the source address is one of this link, as with `dport`. IPv4 and IPv6 agree,
# and so do TCP and UDP.
#
# What happens: for TCP over IPv4, the kernel chooses the source address before the port. With the port, it looks up the route again, and keeps
# the address. So the connection leaves by the second link with the address of the first. EC2 drops such packets. For TCP over IPv6, the
# kernel does not look again: the first packet leaves by the first link, although its port is in the rule's range. For UDP, link and address are right. With `dport`
# all four are right. The script needs root, nft and ip.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cases() {
	local link family far protocol
	mount -t tmpfs none /run && ip link set lo up && nft 'add table inet t; add chain inet t out { type filter hook output priority 0; }'
	for link in 5 6; do
		ip link add ens$link type veth peer name far$link && ip link set far$link up && ip link set ens$link up
		ip addr add 10.0.$link.10/24 dev ens$link && ip addr add 2001:db8:$link::10/64 dev ens$link nodad
		for far in 10.0.$link.1 2001:db8:$link::1; do ip neigh add $far lladdr 02:00:00:00:00:01 dev ens$link; done
		for far in 5 6; do
			nft "add rule inet t out oifname ens$link ip saddr 10.0.$far.10 counter comment \"by ens$link with the address of ens$far\""
			nft "add rule inet t out oifname ens$link ip6 saddr 2001:db8:$far::10 counter comment \"by ens$link with the address of ens$far\""
		done
	done
	ip route add default via 10.0.5.1 && ip route add default via 10.0.6.1 table 100
	ip -6 route add default via 2001:db8:5::1 && ip -6 route add default via 2001:db8:6::1 table 100
	for family in -4 -6; do
		for protocol in tcp udp; do
			ip $family rule add ipproto $protocol sport 1024-65534 dport 80 lookup 100
			ip $family rule add ipproto $protocol dport 53 lookup 100
		done
	done
	for far in 203.0.113.1 2001:db8:99::1; do
		for protocol in tcp udp; do
			for port in 80 53; do
				nft list chain inet t out | sed -n 's/.*packets \([0-9]*\) .*comment/\1/p' >before
				timeout 0.5 bash -c "echo >/dev/$protocol/$far/$port" 2>/dev/null || :
				nft list chain inet t out | sed -n 's/.*packets \([0-9]*\) .*comment/\1/p' >after
				rule=dport && [ $port = 53 ] || rule=sport
				echo "$far $protocol, rule by $rule: $(diff before after | sed -n 's/^> [0-9]* //p')"
			done
		done
	done
}
export -f cases && uname -r >&2
unshare --net --mount bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
203.0.113.1 tcp, rule by sport: "by ens6 with the address of ens5"
203.0.113.1 tcp, rule by dport: "by ens6 with the address of ens6"
203.0.113.1 udp, rule by sport: "by ens6 with the address of ens6"
203.0.113.1 udp, rule by dport: "by ens6 with the address of ens6"
2001:db8:99::1 tcp, rule by sport: "by ens5 with the address of ens5"
2001:db8:99::1 tcp, rule by dport: "by ens6 with the address of ens6"
2001:db8:99::1 udp, rule by sport: "by ens6 with the address of ens6"
2001:db8:99::1 udp, rule by dport: "by ens6 with the address of ens6"
EOF
