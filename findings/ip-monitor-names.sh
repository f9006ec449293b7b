#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# iproute2 6.1.0 (Debian 12) and 6.15.0 (Debian 13): the names of links by `ip monitor all-nsid`, which watches pods from the node.
#
# A good guess: `all-nsid` shows what happens in all namespaces that have an identifier here, with `[nsid 5]` before it. The message about a
# route has the number of its link. ip prints the name of the link with this number in that namespace. If ip does not know the name, it
# prints the number, as it does for the peer of a link (`@if3`).
#
# What happens: messages about a link have the name of this link. Messages about addresses, routes and neighbours have the name of the link
# with that number in the namespace of the monitor. So a pod's route by its link `first` is shown as a route by the node's `eth0`. The name
# is `ifN` only if the node has no link of this number. The line of an address has both names: the name of the node's link in front, and the
# right name at the end, as a label. The script needs root, and Debian 12 or later.
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
	local root=$dir/$1/root monitor
	mount -t tmpfs none /run && mkdir /run/netns && chroot "$root" /bin/ip -V 2>/dev/null
	ip link add dev node1 index 21 type veth peer name eth0 index 22
	ip netns add pod && ip netns set pod 5
	ip -n pod link add dev first index 22 type veth peer name second index 23
	ip -n pod link set first addrgenmode none up && ip -n pod link set second addrgenmode none up
	timeout 4 chroot "$root" /bin/ip monitor all-nsid >"$dir/heard" 2>/dev/null & monitor=$!
	sleep 1
	ip -n pod link set first mtu 1400
	ip -n pod addr add 192.0.2.1/24 dev first
	ip -n pod route add 203.0.113.0/24 via 192.0.2.9 dev first && ip -n pod route add 198.51.100.0/24 dev second
	ip -n pod neigh add 192.0.2.9 lladdr 02:00:00:00:00:01 dev first
	wait $monitor || :
	grep -oE '^.nsid 5.(22: first[^:]*|22: .* inet .* first|(203|198).*(dev [^ ]*)|192.0.2.9 dev [^ ]*)' "$dir/heard" | tr -s ' '
}

get bookworm 6.1.0-3 libelf1 libbsd0 libmd0 && get trixie 6.15.0-1 libelf1t64 libzstd1
export -f cases && export dir
for suite in bookworm trixie; do unshare --net --mount bash -euo pipefail -c "cases $suite"; done | tee "$dir/seen"
diff - <(grep -v ^ip "$dir/seen" | LC_ALL=C sort | uniq -c | sed 's/^ *//; s/ $//') <<'END'
2 [nsid 5]192.0.2.9 dev eth0
2 [nsid 5]198.51.100.0/24 dev if23
2 [nsid 5]203.0.113.0/24 via 192.0.2.9 dev eth0
2 [nsid 5]22: eth0 inet 192.0.2.1/24 scope global first
2 [nsid 5]22: first@if23
END
