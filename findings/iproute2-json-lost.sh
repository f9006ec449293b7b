#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# iproute2 6.1.0 (Debian 12) and 6.15.0 (Debian 13): what -json leaves out or overwrites.
#
# A good guess: the JSON has all that the text has. Each key is in an object once. If a command cannot print JSON, it fails.
#
# What happens: `mtu lock 1400` of a route is {"mtu": 1400} in both versions, as `mtu 1400` is. Without the lock, TCP and UDP may learn
# other MTUs. A u32 filter with two matches has the key "match" twice. Parsers keep only the last match: a filter for a subnet and a port
# becomes a filter for the port. With 6.1, a route with `encap ip` has "dst" twice, and parsers take the tunnel's end for the route's
# destination. Some commands ignore -json and print text, with success: `tc class` and `ip neigh get` of 6.1, `ip mptcp limits` of both. The
# script needs root, Debian 12 or later, and Python.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)

# get SUITE VERSION LIBRARIES: a root with this iproute2, and the libraries that it runs with.
get() {
	local at=$dir/$1 options top
	mkdir -p "$at"/{state/lists/partial,cache/archives/partial,root/usr/{lib,lib64,sbin,bin}}
	echo "deb $mirror $1 main" >"$at/sources"
	options=(-qq -o Dir::Etc::SourceList="$at/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$at/state"
		-o Dir::State::status=/dev/null -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update
	(cd "$at" && apt-get "${options[@]}" download "iproute2=$2" "${@:3}" libbpf1 libcap2 libmnl0 libselinux1 libpcre2-8-0 zlib1g libc6 &&
		for deb in *.deb; do dpkg -x "$deb" root; done)
	for top in lib lib64 sbin bin; do # Debian 12 has files in /lib
		cp -rn "$at/root/$top/." "$at/root/usr/$top/" 2>/dev/null || :
		rm -rf "${at:?}/root/$top" && ln -s "usr/$top" "$at/root/$top"
	done
}
cases() {
	local root=$dir/$1/root
	ip() { chroot "$root" /sbin/ip "$@" 2>/dev/null; }
	tc() { chroot "$root" /sbin/tc "$@" 2>/dev/null; }
	ip link set lo up && ip link add eth0 type veth peer name peer && ip link set eth0 up && ip addr add 192.0.2.5/24 dev eth0
	ip route add 198.51.100.0/24 via 192.0.2.1 mtu lock 1400
	ip route add 203.0.113.0/24 encap ip id 5 dst 192.0.2.9 dev eth0
	ip neigh add 192.0.2.1 lladdr 02:00:00:00:00:01 dev eth0
	tc qdisc add dev eth0 root handle 1: htb && tc class add dev eth0 parent 1: classid 1:1 htb rate 1mbit
	tc filter add dev eth0 parent 1: protocol ip u32 match ip dst 198.51.100.0/24 match ip dport 80 0xffff flowid 1:1
	ip route show 198.51.100.0/24 | grep -o 'mtu .*1400'
	tc filter show dev eth0 | grep match
	# parsed COMMAND: what a parser makes of the JSON.
	parsed() { "$@" | python3 -c 'import json, sys; print(*(o for o in json.load(sys.stdin) if "1400" in str(o) or "match" in str(o) or "encap" in str(o)), sep="\n")' 2>/dev/null || echo "$*: no JSON"; }
	parsed ip -json route show 198.51.100.0/24 | grep -o "'metrics.*]"
	parsed tc -json filter show dev eth0 | grep -o "'match.*off': [0-9]*}"
	parsed ip -json route show 203.0.113.0/24 | grep -oE "'dst': '[0-9./]+'" | head -1
	parsed tc -json class show dev eth0 && parsed ip -json neigh get 192.0.2.1 dev eth0 && parsed ip -json mptcp limits
}
get bookworm 6.1.0-3 libelf1 libbsd0 libmd0 libxtables12 && get trixie 6.15.0-1 libelf1t64 libzstd1 libxtables12
export -f cases && export dir
for suite in bookworm trixie; do unshare --net bash -euo pipefail -c "cases $suite"; done | grep . | tee "$dir/seen"
diff - <(LC_ALL=C sort "$dir/seen" | uniq -c | sed 's/^ *//') <<'END'
2   match 00000050/0000ffff at 20
2   match c6336400/ffffff00 at 16
1 'dst': '192.0.2.9'
1 'dst': '203.0.113.0/24'
2 'match': {'value': '50', 'mask': 'ffff', 'offmask': '', 'off': 20}
2 'metrics': [{'mtu': 1400}]
2 ip -json mptcp limits: no JSON
1 ip -json neigh get 192.0.2.1 dev eth0: no JSON
2 mtu lock 1400
1 tc -json class show dev eth0: no JSON
END
