#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# iproute2 6.1.0 (Debian 12) and 6.15.0 (Debian 13): `ip address save` and `ip route save`, restored after a reboot.
#
# A good guess: restore puts addresses and routes on the links with the names that they had. If a link is missing, restore fails, and changes
# nothing.
#
# What happens: the files hold the index of each link, and no name. If the ENIs come in another order, restore puts the addresses and routes
# of ens5 on ens6, and succeeds. The label still says ens5. Also the link-local address of the other link comes along, which belongs to
# another MAC address. If an index is missing, restore stops there. What it restored so far stays, and the rest is missing.
# The script needs root, and Debian 12 or later.
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
	local root=$dir/$1/root link
	ip() { chroot "$root" /bin/ip "$@" 2>/dev/null; }
	# links NAME INDEX...: the links of a node after boot.
	links() {
		local name
		for name in ens5 ens6; do ip link del $name || :; done
		while [ $# -gt 0 ]; do
			ip link add "$1" index "$2" address "02:00:00:00:00:0${1#ens}" type veth peer name "$1p" index "${2}0"
			ip link set "$1p" addrgenmode none up && ip link set "$1" up && shift 2
		done
		sleep 3 # until no address is tentative
	}
	show() {
		for link in ens5 ens6; do
			echo "$1: $link has $({ ip -o addr show dev $link | grep -oE 'inet.*(scope link|ens[56].)'
				ip route show table 100 dev $link; ip route show table 101 dev $link || :; } | paste -sd ';')"
		done | sed -E 's/\\//g; s/ (scope|brd) [^ ;]*//g; s/ *;/; /g; s/ *$//'
	}
	ip -V >&2
	links ens5 105 ens6 106
	ip addr add 10.0.5.5/24 dev ens5 && ip addr add 10.0.6.6/24 dev ens6
	ip route add default via 10.0.5.1 dev ens5 table 100 && ip route add default via 10.0.6.1 dev ens6 table 101
	ip addr save >"$dir/addresses" && ip route save table all >"$dir/routes"
	show saved
	links ens6 105 ens5 106
	ip addr restore <"$dir/addresses" && ip route restore <"$dir/routes" && show 'other order'
	links ens5 105 ens6 107
	ip addr restore <"$dir/addresses" || show missing
}
get bookworm 6.1.0-3 libelf1 libbsd0 libmd0 && get trixie 6.15.0-1 libelf1t64 libzstd1
export -f cases && export dir
for suite in bookworm trixie; do
	unshare --net --mount bash -euo pipefail -c "cases $suite" | tee "$dir/seen.$suite"
	cmp -s "$dir/seen.bookworm" "$dir/seen.$suite"
done
diff - "$dir/seen.trixie" <<'END'
saved: ens5 has inet 10.0.5.5/24 ens5; inet6 fe80::ff:fe00:5/64; default via 10.0.5.1
saved: ens6 has inet 10.0.6.6/24 ens6; inet6 fe80::ff:fe00:6/64; default via 10.0.6.1
other order: ens5 has inet 10.0.6.6/24 ens6; inet6 fe80::ff:fe00:6/64; inet6 fe80::ff:fe00:5/64; default via 10.0.6.1
other order: ens6 has inet 10.0.5.5/24 ens5; inet6 fe80::ff:fe00:5/64; inet6 fe80::ff:fe00:6/64; default via 10.0.5.1
missing: ens5 has inet 10.0.5.5/24 ens5; inet6 fe80::ff:fe00:5/64
missing: ens6 has inet6 fe80::ff:fe00:6/64
END
