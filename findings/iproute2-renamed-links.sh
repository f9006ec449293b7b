#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# iproute2 6.1.0 (Debian 12) and 6.15.0 (Debian 13): `ip -batch`, `tc -batch` and `ip monitor`, while another program renames links.
#
# A good guess: each line of a batch means the link that has the name at this time, as with one command for each line. `ip monitor` shows the
# name that the link has when the message comes.
#
# What happens: all three remember the index of each name that they have seen. After another program has exchanged the names of two links, as
# udev does at boot, `addr add ... dev ens5` changes the link that is ens6 now. So do `link set` and `qdisc add` of tc. Nothing fails.
# Some commands read all links first, such as `neigh add` and `route add`. From then on, lines mean the right link. So the link depends on
# the lines before. A batch that renames links itself is right. `ip monitor address route` shows all further messages with the old
# names, as messages about links do not reach it. The script needs root, and Debian 12 or later.
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
	ip -V >&2 && mount -t tmpfs run /run && sysctl -qw net.ipv6.conf.default.disable_ipv6=1
	for link in ens5 ens6; do ip link add $link type veth peer name ${link}p && ip link set ${link}p up && ip link set $link up; done
	mkfifo /run/{ip,tc}
	chroot "$root" /bin/ip -batch - </run/ip & chroot "$root" /sbin/tc -batch - </run/tc &
	chroot "$root" /bin/ip monitor address route >/run/monitor 2>/dev/null & monitor=$!
	exec 5>/run/ip 6>/run/tc
	echo addr add 10.0.5.1/24 dev ens5 >&5 && echo qdisc add dev ens5 clsact >&6 && sleep 1
	ip link set ens5 down && ip link set ens6 down
	ip link set ens5 name old && ip link set ens6 name ens5 && ip link set old name ens6 && ip link set ens5 up && ip link set ens6 up
	echo 'the names are exchanged: ens6 has 10.0.5.1'
	printf '%s\n' 'addr add 10.0.5.2/24 dev ens5' 'link set ens5 mtu 1400' 'neigh add 10.0.5.9 lladdr 02:00:00:00:00:09 dev ens5' \
		'addr add 10.0.5.3/24 dev ens5' >&5
	echo qdisc add dev ens5 root pfifo limit 7 >&6 && exec 5>&- 6>&- && sleep 1
	for link in ens5 ens6; do
		echo "$link: $({ ip -4 -o addr show dev $link && ip link show dev $link && ip neigh show dev $link && chroot "$root" /sbin/tc qdisc show dev $link; } |
			grep -oE '10.0.5.*/24|mtu 1400|10.0.5.9|clsact|limit 7' | paste -sd ' ')"
	done
	kill "$monitor" && grep -oE '[a-z0-9]+ +inet 10.0.5.[23]' /run/monitor | tr -s ' ' | paste -sd ' ' | sed 's/^/monitor: /'
}
get bookworm 6.1.0-3 libxtables12 libelf1 libbsd0 libmd0 && get trixie 6.15.0-1 libxtables12 libelf1t64 libzstd1
export -f cases && export dir
for suite in bookworm trixie; do
	unshare --net --mount bash -euo pipefail -c "cases $suite" | tee "$dir/seen.$suite"
	cmp -s "$dir/seen.bookworm" "$dir/seen.$suite"
done
diff - "$dir/seen.trixie" <<'END'
the names are exchanged: ens6 has 10.0.5.1
ens5: 10.0.5.3/24 10.0.5.9
ens6: 10.0.5.1/24 10.0.5.2/24 mtu 1400 limit 7 clsact
monitor: ens5 inet 10.0.5.2 ens6 inet 10.0.5.3
END
