#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, iproute2 6.1: a route with two next hops, by two links, as by two ENIs. It is a plain multipath route, or uses a group of nexthop
# objects.
#
# A good guess: both forms do the same, as `ip route` shows the same next hops for both. A socket without a source gets a link by the weights,
# and an address of this link. For the kernel, all addresses of a link are alike.
#
# What happens: connect looks up the route twice: first for a source, then with this source. By a plain IPv4 route, the second lookup prefers the
# next hop whose link has the source. By a group, it may choose another one. So with equal weights, half of all TCP and UDP connections leave by one link
# with the address of the other. EC2 drops such packets. For IPv6 by a group, the kernel takes the source from the first next hop of the
# group, and then the link by the weights. A plain IPv6 route gives the right source.
# A socket that is bound to the first address of a link always leaves by this link if the route is plain IPv4: the weights do not count. Bound
# to a second address of the link, or for IPv6, or by a group, it leaves by any link. The script needs root, nft and ip.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cases() {
	mount -t tmpfs none /run && ip link set lo up
	local link net source sources host protocol
	for link in 5 6; do
		ip link add ens$link type veth peer name far$link && ip link set ens$link up && ip link set far$link up
		ip addr add 10.0.$link.10/24 dev ens$link && ip addr add 10.0.$link.11/24 dev ens$link
		ip addr add 2001:db8:$link::10/64 dev ens$link nodad
		for net in 10.0.$link. 2001:db8:$link::; do ip neigh add ${net}1 lladdr 02:00:00:00:00:01 dev ens$link; done
		ip nexthop add id 4$link via 10.0.$link.1 dev ens$link && ip nexthop add id 6$link via 2001:db8:$link::1 dev ens$link
	done
	ip nexthop add id 4 group 45/46 && ip nexthop add id 6 group 65/66
	ip route add 203.0.113.0/24 nexthop via 10.0.5.1 nexthop via 10.0.6.1 && ip route add 198.51.100.0/24 nhid 4
	ip route add 2001:db8:a::/64 nexthop via 2001:db8:5::1 nexthop via 2001:db8:6::1 && ip route add 2001:db8:b::/64 nhid 6
	# words: which links and sources have packets
	words() { awk '{ n[$1 " from ens" $2] += $3 } END { for (w in n) if (n[w]) print w }' | sort | paste -sd ';' | sed 's/;/, /g'; }
	# connected PREFIX PROTOCOL: what leaves when 60 sockets connect to addresses with the prefix, and send
	connected() {
		nft 'add table inet t; flush table inet t; add chain inet t out { type filter hook output priority 0; }'
		for link in 5 6; do
			for source in 5 6; do
				nft "add rule inet t out oifname ens$link ip saddr 10.0.$source.0/24 counter comment \"ens$link $source\""
				nft "add rule inet t out oifname ens$link ip6 saddr 2001:db8:$source::/64 counter comment \"ens$link $source\""
			done
		done
		for host in {1..60}; do timeout 1 bash -c "echo >/dev/$2/$1$host/9" 2>/dev/null & done && wait
		nft list chain inet t out | sed -nE 's/.*packets ([0-9]+) .*comment "(.*)"/\2 \1/p' | words
	}
	# bound PREFIX SOURCE: what the kernel answers for a socket with this source
	bound() {
		for host in {1..60}; do ip route get "$1$host" from "$2"; done | sed -nE 's/.* dev ens([56]).*/ens\1 X 1/p' | words | sed 's/ from ensX//g'
	}
	for net in 203.0.113. 198.51.100. 2001:db8:a:: 2001:db8:b::; do
		for protocol in udp tcp; do echo "$net, $protocol: $(connected $net $protocol)"; done
		case $net in *::) sources='2001:db8:5::10 2001:db8:6::10' ;; *) sources='10.0.5.10 10.0.5.11 10.0.6.10' ;; esac
		for source in $sources; do echo "   bound to $source: $(bound $net "$source")"; done
	done
}
export -f cases && uname -r >&2 && unshare --net --mount bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
203.0.113., udp: ens5 from ens5, ens6 from ens6
203.0.113., tcp: ens5 from ens5, ens6 from ens6
   bound to 10.0.5.10: ens5
   bound to 10.0.5.11: ens5, ens6
   bound to 10.0.6.10: ens6
198.51.100., udp: ens5 from ens5, ens5 from ens6, ens6 from ens5, ens6 from ens6
198.51.100., tcp: ens5 from ens5, ens5 from ens6, ens6 from ens5, ens6 from ens6
   bound to 10.0.5.10: ens5, ens6
   bound to 10.0.5.11: ens5, ens6
   bound to 10.0.6.10: ens5, ens6
2001:db8:a::, udp: ens5 from ens5, ens6 from ens6
2001:db8:a::, tcp: ens5 from ens5, ens6 from ens6
   bound to 2001:db8:5::10: ens5, ens6
   bound to 2001:db8:6::10: ens5, ens6
2001:db8:b::, udp: ens5 from ens5, ens6 from ens5
2001:db8:b::, tcp: ens5 from ens5, ens6 from ens5
   bound to 2001:db8:5::10: ens5, ens6
   bound to 2001:db8:6::10: ens5, ens6
EOF
