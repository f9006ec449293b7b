#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# nftables 1.0.6 (Debian 12) and 1.1.3 (Debian 13): sets with `auto-merge`, whose elements have timeouts or counters. Linux 6.18.
#
# A good guess: auto-merge joins subnets that touch or overlap. It leaves those apart that have other timeouts, since each is to end at its
# own time. A permanent element stays permanent. The set has the same addresses as without auto-merge.
#
# What happens: nft joins them all, and the joined element has the timeout of the subnet that came last. A permanent 192.0.2.0/25 and a new
# 192.0.2.128/25 with a second are 192.0.2.0/24 with a second. After this second, no address is left of both. A larger subnet with a timeout
# takes a permanent address with it, too. If both subnets are in one command, the first one gives its hour to the second one. An address
# with a minute in a permanent subnet has no effect. The counter of the old element is lost. With 1.0.6, an address in the
# middle of a subnet cannot be deleted. With 1.1.3 it can, but the counters of the rest begin at zero. The script needs root, and Debian 12
# or later.
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
	nft() { chroot "$dir/$suite/root" /usr/sbin/nft "$@" 2>&1; }
	suite=$1 && nft --version | cut -d' ' -f1-2
	nft add table ip t
	nft add set ip t timed '{ type ipv4_addr; flags interval, timeout; auto-merge; }'
	nft add set ip t counted '{ type ipv4_addr; flags interval; counter; auto-merge; }'
	# try SET ELEMENTS...: the elements of the set after these commands, with the timeouts as they were given
	try() {
		local elements
		nft flush set ip t "$1"
		for elements in "${@:2}"; do
			case $elements in
			not*) nft delete element ip t "$1" "{ ${elements#not } }" | grep -q Error || : ;;
			*) nft add element ip t "$1" "{ $elements }" ;;
			esac
		done
		echo "$(printf '%s; ' "${@:2}")is $(nft list set ip t "$1" | grep -oE '192[^}]*' | sed -E 's/ expires [0-9a-z]*//; s/counter //; s/ *$//' | paste -sd' ' | tr -s '\t ')"
	}
	try timed 192.0.2.0/25 '192.0.2.128/25 timeout 1s' && sleep 2 && echo "after 2 s:$(nft list set ip t timed | grep 192 || :)"
	try timed '192.0.2.0/25 timeout 1h' '192.0.2.128/25 timeout 1m'
	try timed '192.0.2.0/25 timeout 1h, 192.0.2.128/25 timeout 1m'
	try timed 192.0.2.7 '192.0.2.0/24 timeout 1m'
	try timed 192.0.2.0/24 '192.0.2.7 timeout 1m'
	try counted '192.0.2.0/25 counter packets 7 bytes 700' '192.0.2.128/25 counter packets 5 bytes 500'
	try counted '192.0.2.0/24 counter packets 7 bytes 700' 'not 192.0.2.7'
}
get bookworm 1.0.6-2+deb12u2 libgmp10 libbsd0 libmd0 libtinfo6 && get trixie 1.1.3-1 libgmp10 libbsd0 libmd0 libtinfo6
export -f cases && export dir
for suite in bookworm trixie; do unshare --net bash -euo pipefail -c "cases $suite"; done | tee "$dir/seen"
diff - <(LC_ALL=C sort "$dir/seen" | uniq -c | sed 's/^ *//') <<'END'
1 192.0.2.0/24 counter packets 7 bytes 700; not 192.0.2.7; is 192.0.2.0-192.0.2.6 packets 0 bytes 0, 192.0.2.8-192.0.2.255 packets 0 bytes 0
1 192.0.2.0/24 counter packets 7 bytes 700; not 192.0.2.7; is 192.0.2.0/24 packets 7 bytes 700
2 192.0.2.0/24; 192.0.2.7 timeout 1m; is 192.0.2.0/24
2 192.0.2.0/25 counter packets 7 bytes 700; 192.0.2.128/25 counter packets 5 bytes 500; is 192.0.2.0/24 packets 5 bytes 500
2 192.0.2.0/25 timeout 1h, 192.0.2.128/25 timeout 1m; is 192.0.2.0/24 timeout 1h
2 192.0.2.0/25 timeout 1h; 192.0.2.128/25 timeout 1m; is 192.0.2.0/24 timeout 1m
2 192.0.2.0/25; 192.0.2.128/25 timeout 1s; is 192.0.2.0/24 timeout 1s
2 192.0.2.7; 192.0.2.0/24 timeout 1m; is 192.0.2.0/24 timeout 1m
2 after 2 s:
1 nftables v1.0.6
1 nftables v1.1.3
END
