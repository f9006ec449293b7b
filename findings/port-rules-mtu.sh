#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, iproute2 6.1: a policy rule by port (`dport 443`) leads to a second link, and a router on the way has a smaller MTU.
#
# A good guess: path MTU discovery works as with any other rule. The router refuses a large packet by ICMP. The kernel keeps the MTU for
# this destination, and sends smaller packets. IPv4 and IPv6 agree, and so do TCP and UDP.
#
# What happens: over IPv4, the kernel looks up the route for the new MTU without ports, so no rule by port matches. It keeps the MTU for a
# route of the main table, which the connection does not use. So a TCP connection opens, and then no large packet arrives, although the
# router refuses each one. A UDP socket gets an error for each large datagram, and never the smaller MTU. `ip route get` without ports shows
# the MTU. Rules by destination, protocol or mark work, and so do rules by port over IPv6. A route with `mtu` in the second table helps.
# The script needs root, ip and Python 3.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && cat >serve.py <<'EOF'
import socket, threading
def answer(peer):
    peer.send(str(sum(len(part) for part in iter(lambda: peer.recv(9000), b""))).encode())
def tcp(listener):
    while True:
        threading.Thread(target=answer, args=listener.accept()[:1]).start()
for family, address in (socket.AF_INET, "10.9.0.2"), (socket.AF_INET6, "fd09::2"):
    threading.Thread(target=tcp, args=[socket.create_server((address, 443), family=family)]).start()
EOF
cat >send.py <<'EOF'
import socket, sys
peer = socket.create_connection((sys.argv[1], 443), timeout=5)
try:
    peer.sendall(bytes(200000)), peer.shutdown(socket.SHUT_WR)
    print("tcp: %s bytes of 200000 arrive;" % peer.recv(9000).decode(), end=" ")
except TimeoutError:
    print("tcp: no answer for 5 seconds;", end=" ")
peer, errors = socket.socket(peer.family, socket.SOCK_DGRAM), 0
peer.connect((sys.argv[1], 443)), peer.settimeout(0.2)
for i in range(10): # nothing listens, so a datagram that arrives is refused
    try:
        peer.send(bytes(1450)), peer.recv(9)
    except OSError as error:
        errors += error.errno == 90
print("udp: %d of 10 too large" % errors, end="; ")
EOF
cases() {
	local name link rule words ports family=-4 to=10.9.0.2
	mount -t tmpfs none /run && for name in node router server; do ip netns add $name; done
	# shellcheck disable=SC2086 # numbers only
	link() { # NUMBER NAMESPACE LINK: to the router's link with this number
		ip -n router link add to$1 type veth peer name "$3" netns "$2" && ip -n router link set to$1 up && ip -n "$2" link set "$3" up
		ip -n router addr add 10.$1.0.1/24 dev to$1 && ip -n router addr add fd0$1::1/64 dev to$1 nodad
		ip -n "$2" addr add 10.$1.0.2/24 dev "$3" && ip -n "$2" addr add fd0$1::2/64 dev "$3" nodad
	}
	link 5 node ens5 && link 6 node ens6 && link 9 server eth0 && ip -n router link set to9 mtu 1400
	ip netns exec router sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
	while read -r name link table; do
		ip -n "$name" route add default via "10.$link.0.1" table "$table"
		ip -n "$name" -6 route add default via "fd0$link::1" table "$table"
	done <<<$'server 9 main\nnode 5 main\nnode 6 100'
	ip netns exec server python3 serve.py & sleep 1
	for rule in 'dport 443' 'to 10.9.0.0/24' 'dport 443' 'to fd09::/64'; do
		IFS=' ' read -ra words <<<"$rule"
		ip -n node $family rule add "${words[@]}" lookup 100
		echo -n "$to, rule ${words[*]}: " && ip netns exec node python3 send.py $to
		for ports in '' 'ipproto tcp dport 443'; do
			xargs ip -n node route get $to <<<"$ports" | grep -oE 'dev [^ ]*|mtu [0-9]*' | paste -sd ' '
		done | paste -sd , | sed 's/^/by ip route get: /; s/,/, with ports: /'
		ip -n node $family rule del "${words[@]}" lookup 100
		[ "${words[0]}" = dport ] || { family=-6 && to=fd09::2; }
	done
}
export -f cases && uname -r >&2
unshare --net --mount --pid --fork --kill-child bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
10.9.0.2, rule dport 443: tcp: no answer for 5 seconds; udp: 10 of 10 too large; by ip route get: dev ens5 mtu 1400, with ports: dev ens6
10.9.0.2, rule to 10.9.0.0/24: tcp: 200000 bytes of 200000 arrive; udp: 0 of 10 too large; by ip route get: dev ens6 mtu 1400, with ports: dev ens6 mtu 1400
fd09::2, rule dport 443: tcp: 200000 bytes of 200000 arrive; udp: 0 of 10 too large; by ip route get: dev ens5, with ports: dev ens6 mtu 1400
fd09::2, rule to fd09::/64: tcp: 200000 bytes of 200000 arrive; udp: 0 of 10 too large; by ip route get: dev ens6 mtu 1400, with ports: dev ens6 mtu 1400
EOF
