#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, nftables 1.0.6 (Debian 12) and 1.1.3 (Debian 13): a file defines named objects of a table. An administrator changes their values,
# and loads the file again with `nft -f`.
#
# A good guess: each object gets its new values. Or nft fails, as it does for a chain with another priority and for a set with other flags.
# If the file begins with `flush table`, the table is empty before, so the new values count.
#
# What happens: it depends on the kind of object. Quotas, synproxies, and the timeout and size of sets get the new values. Limits, counters, ct
# timeouts and ct expectations keep the old ones, and nft reports success. This is so even if a ct timeout is now for another protocol.
# `flush table` removes only rules, so it does not help: a limit that was raised still drops what it dropped before. Only
# `delete table` helps, which also deletes the elements of all sets. The script needs root, Debian 12 or later, and a kernel with nftables.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)

# get SUITE VERSION: unpack this nft, and the libraries that it runs with.
get() {
	local at=$dir/$1 options
	mkdir -p "$at"/{state/lists/partial,cache/archives/partial}
	echo "deb $mirror $1 main" >"$at/sources"
	options=(-qq -o Dir::Etc::SourceList="$at/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$at/state"
		-o Dir::State::status=/dev/null -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update
	(cd "$at" && apt-get "${options[@]}" download "nftables=$2" "libnftables1=$2" libnftnl11 libmnl0 libjansson4 libxtables12 libgmp10 \
		libedit2 libtinfo6 libbsd0 libmd0 libc6 && for deb in *.deb; do dpkg -x "$deb" root; done)
}
nft() {
	local libs; libs=$(find "$root" -name libc.so.6 -printf %h)
	"$(echo "$libs"/ld-linux-*)" --library-path "$libs:$root/usr/lib/$(basename "$libs")" "$root/usr/sbin/nft" "$@"
}
# file FIRST QUOTA SIZE RATE BURST PROTOCOL STATE PORT: a table with a limit for packets, and with objects of other kinds. FIRST is its second line.
file() {
	cat <<-END
		table ip t
		$1
		table ip t {
			quota q { over $2 mbytes; }
			set s { type ipv4_addr; size $3; }
			limit l { rate $4/minute burst $5 packets; }
			ct timeout c { protocol $6; policy = { $7: $4 }; }
			ct expectation e { protocol $6; dport $8; timeout 1m; size 3; }
			chain in { type filter hook input priority 0; udp dport 9 limit name "l" counter accept; udp dport 9 drop; }
		}
	END
}
# seen WHEN: the objects, and how many of 50 packets the limit accepts.
seen() {
	local accepted object values='[0-9]+ mb.*|size ...$|[0-9]+/.*|tcp$|udp$|(established|replied) : [^ ]*|dport [0-9]+'
	sleep 6 && bash -c 'for i in {1..50}; do echo >/dev/udp/127.0.0.1/9 || :; done' 2>/dev/null
	accepted=$(nft list chain ip t in | grep -oP 'packets \K[0-9]+')
	echo -n "$1:" && for object in 'quota q' 'set s' 'limit l' 'ct timeout c' 'ct expectation e'; do
		echo -n " $(nft list ruleset | sed -n "/$object {/,/}/p" | grep -oE "$values" | paste -sd ' '),"
	done
	[ "$accepted" -ge 10 ] || accepted='less than 10'
	echo " $accepted packets of 50 accepted"
}
cases() {
	export root=$dir/$1/root
	nft --version && ip link set lo up
	file '' 10 100 60 5 tcp established 100 | nft -f - && seen 'first'
	file 'flush table ip t' 20 200 600 50 udp replied 200 | nft -f - && seen 'changed, with flush table'
	file 'delete table ip t' 20 200 600 50 udp replied 200 | nft -f - && seen 'changed, with delete table'
}
get bookworm 1.0.6-2+deb12u2 && get trixie 1.1.3-1
export -f nft file seen cases && export dir
for suite in bookworm trixie; do unshare --net bash -euo pipefail -c "cases $suite"; done | tee "$dir/seen"
for after in 60:600 1m:10m; do sed "s/NEW/${after#*:}/; s/OLD/${after%:*}/" <<'END'; done | diff - <(grep -v ^nftables "$dir/seen")
first: 10 mbytes, size 100, 60/minute, tcp established : OLD, tcp dport 100, less than 10 packets of 50 accepted
changed, with flush table: 20 mbytes, size 200, 60/minute, tcp established : OLD, tcp dport 100, less than 10 packets of 50 accepted
changed, with delete table: 20 mbytes, size 200, 600/minute burst 50 packets, udp replied : NEW, udp dport 200, 50 packets of 50 accepted
END
