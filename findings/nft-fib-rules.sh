#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, nftables 1.0.6: a check of sources by nftables, beside the kernel's own check, on a node with `ip rule add iif`.
#
# A good guess: `fib saddr . mark . iif oif missing drop` is the strict check of sources (rp_filter=1), for both families. Firewalls write
# this rule for IPv6, which has no rp_filter. So a packet that passes the strict check of IPv4 also passes this rule.
#
# What happens: a packet comes by a link and leaves by the same link, because a rule with this iif leads there. So do answers of Services
# to pods. The kernel's check asks for the route to the source as if a packet had come by the link by which this one leaves. So it uses the
# rule, and the packet passes. The lookup of nftables uses no rule with iif and no rule with oif, in either family, and drops the packet. It
# uses a rule with a mark, if the expression has `mark`. The script needs root, Debian 12 or later, ip(8) and ping(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)
mkdir -p "$dir"/{state/lists/partial,cache/archives/partial}
echo "deb $mirror bookworm main" >"$dir/sources"
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status=/dev/null -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
(cd "$dir" && apt-get "${options[@]}" download nftables=1.0.6-2+deb12u2 libnftables1=1.0.6-2+deb12u2 libnftnl11 libmnl0 libjansson4 \
	libxtables12 libgmp10 libedit2 libtinfo6 libbsd0 libmd0 libc6 && for deb in *.deb; do dpkg -x "$deb" root; done)
export root=$dir/root
nft() {
	local libs
	libs=$(find "$root" -name libc.so.6 -printf %h)
	"$(echo "$libs"/ld-linux-*)" --library-path "$libs:$root/usr/lib/$(basename "$libs")" "$root/usr/sbin/nft" "$@"
}
scene() { # the node's end of the pair is v0; 198.51.100.7 and 2001:db8:7::7 are sources beyond the link dx
	mount -t tmpfs tmpfs /run && ip netns add pod
	ip link add v0 address 02:00:00:00:00:01 type veth peer name eth0 address 02:00:00:00:00:02 netns pod
	ip link add dx type veth peer name ex && for l in dx ex v0; do ip link set $l up; done && ip -n pod link set eth0 up
	sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.v0.rp_filter=1 \
		net.ipv4.conf.v0.send_redirects=0 net.ipv4.conf.all.send_redirects=0
	for f in '-4 198.51.100.7/32 198.51.100.0/24 192.0.2.50' '-6 2001:db8:7::7/128 2001:db8:7::/64 2001:db8::50'; do
		read -r v source beyond pod <<<"$f"
		ip "$v" route add "$beyond" dev dx
		ip "$v" route add default dev v0 table 100 && ip "$v" rule add pref 9 iif v0 lookup 100
		ip "$v" neigh add "$pod" lladdr 02:00:00:00:00:02 nud permanent dev v0
		ip "$v" -n pod addr add "$source" dev eth0 "$([ "$v" = -4 ] && echo noprefixroute || echo nodad)"
		ip "$v" -n pod route add "$pod" dev eth0 && ip "$v" -n pod neigh add "$pod" lladdr 02:00:00:00:00:01 nud permanent dev eth0
	done
	nft add table inet t
	nft add chain inet t out '{ type filter hook postrouting priority 0; }'
}
passes() { # print which packets leave the node again
	nft flush chain inet t out
	nft add rule inet t out oifname v0 icmp type echo-request counter
	nft add rule inet t out oifname v0 icmpv6 type echo-request counter
	for to in 192.0.2.50 2001:db8::50; do ip netns exec pod ping -c1 -W1 "$to" >/dev/null || :; done
	echo "$1: IPv4 $(count icmp), IPv6 $(count icmpv6)"
}
count() { nft list chain inet t out | sed -n "s/.* $1 type echo-request counter packets \([0-9]*\).*/\1/p"; }
story() {
	scene && passes 'rp_filter=1'
	nft add chain inet t pre '{ type filter hook prerouting priority 10; }'
	nft add chain inet t early '{ type filter hook prerouting priority -150; }'
	for rule in 'fib saddr . iif oif missing drop' 'fib saddr . mark . iif oif missing drop'; do
		nft flush chain inet t pre && nft "add rule inet t pre $rule" && passes "$rule"
	done
	for v in -4 -6; do ip "$v" rule add pref 10 oif v0 lookup 100; done && passes 'and a rule with oif'
	nft add rule inet t early iifname v0 meta mark set 1
	for v in -4 -6; do ip "$v" rule add pref 11 fwmark 1 lookup 100; done && passes 'and a rule with the mark'
}
export -f nft scene passes count story && uname -sr
unshare --net --mount bash -euo pipefail -c story | tee "$dir/seen"
diff - "$dir/seen" <<'EOF'
rp_filter=1: IPv4 1, IPv6 1
fib saddr . iif oif missing drop: IPv4 0, IPv6 0
fib saddr . mark . iif oif missing drop: IPv4 0, IPv6 0
and a rule with oif: IPv4 0, IPv6 0
and a rule with the mark: IPv4 1, IPv6 1
EOF
