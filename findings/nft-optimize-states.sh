#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# nftables 1.0.6 (Debian 12) and 1.1.3 (Debian 13): `nft -o -f FILE`, which merges rules. Linux 6.18.
#
# A good guess: --optimize makes fewer rules, and each packet fares as before. `nft -c -o` shows the merges. A file that loads without -o
# loads with it.
#
# What happens: a rule with `ct state` or `ct status` asks for one of these bits. The merged rule looks the number up in a set, so it asks
# for exactly these bits. `established,related` and `new` become { established | related, new }: no packet has the first. So answers are
# dropped, although both rules accept. `ct status dnat` and `ct status snat` become a rule that matches no packet, since a connection has
# further bits. 1.0.6 also merges matches with different masks, and keeps the mask of the first: 0x0300 of the mask 0xff00 is looked for
# behind the mask 0xff. In all these cases nft succeeds, also with -c. And both versions refuse a file that first drops a small subnet, and
# then accepts a larger one: "conflicting intervals". The script needs root, ping, and Debian 12 or later.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)

# get SUITE VERSION LIBRARIES: a root with this nft, and the libraries that it runs with.
get() {
	local at=$dir/$1 options top
	mkdir -p "$at"/{state/lists/partial,cache/archives/partial,root/usr/{lib,lib64,sbin,bin}}
	echo "deb $mirror $1 main" >"$at/sources"
	options=(-qq -o Dir::Etc::SourceList="$at/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$at/state"
		-o Dir::State::status=/dev/null -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update
	(cd "$at" && apt-get "${options[@]}" download "nftables=$2" "libnftables1=$2" "${@:3}" libnftnl11 libmnl0 libxtables12 libjansson4 libedit2 libc6 &&
		for deb in *.deb; do dpkg -x "$deb" root; done)
	for top in lib lib64 sbin bin; do # Debian 12 has files in /lib
		cp -rn "$at/root/$top/." "$at/root/usr/$top/" 2>/dev/null || :
		rm -rf "${at:?}/root/$top" && ln -s "usr/$top" "$at/root/$top"
	done
}
cases() {
	nft() { chroot "$dir/$1/root" /usr/sbin/nft "${@:2}" 2>&1; }
	nft "$1" --version | cut -d' ' -f1-2
	# try WHAT ADDRESS RULES: load the rules without and with -o. Prints what ping to an address of lo gets, and the merged rule.
	try() {
		local how
		printf 'table ip filter { chain in { type filter hook input priority 0; policy drop; %s; }; }\n' "${3//;/$'\n'}" >"$dir/$suite/root/rules"
		echo 'table ip nat { chain out { type nat hook output priority -100; ip daddr 127.0.0.9 dnat to 127.0.0.1; }; }' >>"$dir/$suite/root/rules"
		echo 'table ip m { chain out { type filter hook output priority -150; meta mark set 0x301; }; }' >>"$dir/$suite/root/rules"
		echo -n "$1"
		for how in -f -of; do
			nft "$suite" flush ruleset
			if ! nft "$suite" "$how" /rules >"$dir/said"; then echo "; $how: $(grep -o 'Error.*' "$dir/said")" && return; fi
			echo -n "; $how: $(ping -c 3 -i 0.1 -W 1 "$2" | grep -o '[0-9] received')"
		done
		echo "; $(nft "$suite" list chain ip filter in | grep -oE '(ct|meta) .*\{.*accept' || echo not merged)"
	}
	suite=$1
	ip link set lo up
	try state 127.0.0.1 'ct state established,related accept; ct state new accept'
	try status 127.0.0.9 'ct status dnat accept; ct status snat accept'
	try masks 127.0.0.1 'meta mark & 0xff == 0x2 accept; meta mark & 0xff00 == 0x300 accept'
	try subnets 127.0.0.1 'ip saddr 127.9.0.0/16 drop; ip saddr 127.0.0.0/8 accept'
}
get bookworm 1.0.6-2+deb12u2 libgmp10 libbsd0 libmd0 libtinfo6 && get trixie 1.1.3-1 libgmp10 libbsd0 libmd0 libtinfo6
export -f cases && export dir
for suite in bookworm trixie; do unshare --net bash -euo pipefail -c "cases $suite"; done | tee "$dir/seen"
diff - "$dir/seen" <<'EOF'
nftables v1.0.6
state; -f: 3 received; -of: 0 received; ct state { established | related, new } accept
status; -f: 3 received; -of: 0 received; ct status { snat, dnat } accept
masks; -f: 3 received; -of: 0 received; meta mark & 0x000000ff == { 0x00000002, 0x00000300 } accept
subnets; -f: 3 received; -of: Error: conflicting intervals specified
nftables v1.1.3
state; -f: 3 received; -of: 0 received; ct state { established | related, new } accept
status; -f: 3 received; -of: 0 received; ct status { snat, dnat } accept
masks; -f: 3 received; -of: 3 received; not merged
subnets; -f: 3 received; -of: Error: conflicting intervals specified
EOF
