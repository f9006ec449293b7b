#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# iproute2 6.1 (Debian 12) and 6.15 (Debian 13), Linux 6.18: a node whose ENI has its own routing table, by a rule for the address of the ENI.
# The node has learned the MTU of a path from a router.
#
# A good guess: `ip route show cache` lists the learned MTU, and `ip route flush cache` forgets it, whatever table it belongs to. With -6, both
# commands do the same for IPv6.
#
# What happens: `ip route show cache` lists nothing, for IPv4 and IPv6, as it goes through the main table only. `ip route flush cache`
# forgets the MTUs of all tables for IPv4. For IPv6, it forgets those of the main table only, and succeeds. So after a repair of the path,
# IPv6 keeps its small packets for up to ten minutes, although the cache was flushed and looks empty. With `table all`, both commands go
# through all tables. The script needs root, ip, ping and Debian.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)

# get SUITE VERSION: a root with this version of iproute2, and the libraries that it runs with.
get() {
	local at=$dir/$1 options top
	mkdir -p "$at"/{state/lists/partial,cache/archives/partial,root/{proc,tmp,usr/{lib,lib64,sbin,bin}}}
	echo "deb $mirror $1 main" >"$at/sources" && touch "$at/status"
	options=(-qq -o Dir::Etc::SourceList="$at/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$at/state" -o APT::Install-Recommends=0
		-o Dir::State::status="$at/status" -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update
	apt-get "${options[@]}" install --download-only -y "iproute2=$2" >"$at/log"
	for top in lib lib64 sbin bin; do ln -s "usr/$top" "$at/root/$top"; done
	for deb in "$at"/cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$at/root" --keep-directory-symlink; done
}
cases() {
	local root=$dir/$1/root family name net link last to from
	mount -t tmpfs none /run && mount -t proc none "$root/proc" && for name in node router far; do ip netns add $name; done
	ip link add to6 netns router type veth peer name ens6 netns node && ip link add to9 netns router type veth peer name eth0 netns far
	ip netns exec router sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
	while read -r name link net last; do
		ip -n "$name" link set "$link" up && ip -n "$name" addr add "10.0.$net.$last/24" dev "$link"
		ip -n "$name" addr add "fd0$net::$last/64" dev "$link" nodad
	done <<<$'router to6 6 1\nrouter to9 9 1\nnode ens6 6 2\nfar eth0 9 2'
	ip -n router link set to9 mtu 1400 && ip -n far route add default via 10.0.9.1 && ip -n far -6 route add default via fd09::1
	ip -n node rule add from 10.0.6.2 lookup 100 && ip -n node route add default via 10.0.6.1 table 100
	ip -n node -6 rule add from fd06::2 lookup 100 && ip -n node -6 route add default via fd06::1 table 100
	ip_route() { ip netns exec node chroot "$root" /usr/sbin/ip $family route "$@"; }
	for family in -4 -6; do
		to=10.0.9.2 from=10.0.6.2
		if [ $family = -6 ]; then to=fd09::2 from=fd06::2; fi
		learned() { echo "$family $1: learned $(ip_route get $to from $from | grep -oE 'mtu [0-9]+' || echo nothing)"; }
		ip netns exec node ping -I $from -c 2 -i 0.3 -M 'do' -s 1420 $to >/dev/null 2>&1 || :
		learned 'after large packets'
		echo "$family listed: $(ip_route show cache | grep -c mtu || :), with table all: $(ip_route show cache table all | grep -c mtu || :)"
		ip_route flush cache && learned 'after flush cache'
		ip_route flush cache table all && learned 'after flush cache table all'
	done
}
get bookworm 6.1.0-3 && get trixie 6.15.0-1
export -f cases && export dir
for suite in bookworm trixie; do
	chroot "$dir/$suite/root" /usr/sbin/ip -V 2>/dev/null
	unshare --net --mount bash -euo pipefail -c "cases $suite"
done | tee "$dir/seen"
for suite in 1 2; do cat <<'END'; done | diff - <(grep -v utility "$dir/seen")
-4 after large packets: learned mtu 1400
-4 listed: 0, with table all: 1
-4 after flush cache: learned nothing
-4 after flush cache table all: learned nothing
-6 after large packets: learned mtu 1400
-6 listed: 0, with table all: 1
-6 after flush cache: learned mtu 1400
-6 after flush cache table all: learned nothing
END
