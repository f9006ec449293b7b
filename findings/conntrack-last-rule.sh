#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, nftables 1.0.6, iptables 1.8.9 (nftables and legacy): the last rule with NAT in a namespace is removed, and comes back.
#
# A good guess: a rule with NAT decides for the first packet of a connection. The connection keeps this decision while conntrack has it,
# also without the rule. So a program can flush a chain with masquerading and fill it again: only a new connection can notice the gap.
#
# What happens: the kernel tracks packets in a namespace, per family, only while a rule needs conntrack: one with NAT or `ct`. The last
# such rule ends the tracking: it unregisters the hooks of conntrack. /proc/net/nf_conntrack still shows the connection as before, but its
# packets are not translated. A packet of the far end then reaches the node itself, which has no such connection, and answers with a reset.
# So the masqueraded connection ends within half a second, though the rule comes back. The pod hears nothing of it. `iptables -F` does the
# same. The connection lives on if one transaction flushes and fills the chain. It also does if another rule of the family needs conntrack,
# even in a chain that nothing calls. A rule for IPv6 does not count, nor does the chain of type nat itself. A node with kube-proxy has such
# rules. A gateway or the namespace of a pod may have only one. The script needs root, nft, iptables, perl and ip.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >server.pl <<'END'
use IO::Socket::INET;
my $listener = IO::Socket::INET->new(LocalAddr => "10.0.2.2", LocalPort => 7000, Listen => 1, ReuseAddr => 1) or die;
my $client = $listener->accept;
$SIG{PIPE} = "IGNORE";
for (1 .. 15) { syswrite($client, "line\n") or die "$!\n"; select undef, undef, undef, 0.2 }
print "all lines\n";
END
cases() { # with the rules, a command that changes them, and one half a second later
	at() { nsenter -n -t "$@"; }
	local pid known pod far server client
	unshare --net sleep 20 & pod=$!
	unshare --net sleep 20 & far=$!
	for pid in $pod $far; do until [ "$(readlink /proc/"$pid"/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done; done
	ip link add pod0 type veth peer name eth0 netns $pod && ip link add far0 type veth peer name eth0 netns $far
	ip addr add 10.0.1.1/24 dev pod0 && ip addr add 10.0.2.1/24 dev far0 && ip link set pod0 up && ip link set far0 up
	at $pod ip addr add 10.0.1.2/24 dev eth0 && at $far ip addr add 10.0.2.2/24 dev eth0
	at $pod ip link set eth0 up && at $far ip link set eth0 up && at $pod ip route add default via 10.0.1.1
	echo 1 >/proc/sys/net/ipv4/ip_forward
	eval "$1"
	at $far timeout 8 perl server.pl >said 2>&1 & server=$!
	sleep 0.5
	at $pod timeout 6 bash -c 'exec 3<>/dev/tcp/10.0.2.2/7000; cat <&3 >/dev/null' & client=$!
	sleep 0.5
	eval "$2"
	sleep 0.5
	known=$(grep -c 'ESTABLISHED src=10.0.1.2 .* dst=10.0.2.1 ' /proc/net/nf_conntrack || :)
	eval "$3"
	wait $server || :
	kill $client $pod $far
	wait
	echo "$4: $known connection known, server: $(cat said)"
}
export -f cases
try() { unshare --net bash -euo pipefail -c 'cases "$@"' _ "$@" 2>/dev/null || :; }
nat='nft "table ip nat { chain post { type nat hook postrouting priority 100; oifname far0 masquerade; }; }"'
flush='nft flush chain ip nat post' fill='nft add rule ip nat post oifname far0 masquerade'
uname -r >&2 && nft --version >&2 && iptables --version >&2
{
	try "$nat" true true 'no change'
	try "$nat" "$flush" "$fill" 'flushed and filled'
	try "$nat" "nft '${flush#nft }; ${fill#nft }'" true 'in one transaction'
	try "$nat; nft 'table ip6 f { chain f { type filter hook forward priority 0; ct state new; }; }'" "$flush" "$fill" 'ct for IPv6'
	try "$nat; nft 'table ip f { chain f { ct state new; }; }'" "$flush" "$fill" 'ct in a chain that nothing calls'
	for backend in nft legacy; do
		rule="POSTROUTING -o far0 -j MASQUERADE" program="iptables-$backend -t nat"
		try "$program -A $rule" "$program -F POSTROUTING" "$program -A $rule" "iptables-$backend -F"
	done
} | tee seen
diff - seen <<'END'
no change: 1 connection known, server: all lines
flushed and filled: 1 connection known, server: Connection reset by peer
in one transaction: 1 connection known, server: all lines
ct for IPv6: 1 connection known, server: Connection reset by peer
ct in a chain that nothing calls: 1 connection known, server: all lines
iptables-nft -F: 1 connection known, server: Connection reset by peer
iptables-legacy -F: 1 connection known, server: Connection reset by peer
END
