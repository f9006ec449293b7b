#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# arptables-nft of iptables 1.8.9 (Debian 12) and 1.8.11 (Debian 13): a rule that matches MAC addresses with a mask, such as one vendor's.
#
# A good guess: the kernel's rule and the printed rule say the same. A program can list or save the rules, and restore them later. -D deletes
# only a rule that is equal to the given rule.
#
# What happens: if the mask consists of the first bytes, the rule in the kernel is right: it drops ARP packets of this vendor only. But
# arptables-nft reads it back without the match. So it prints `-A INPUT -j DROP`, as for a rule that drops every ARP packet. A save and a
# restore without any change turn the rule into such a rule: the node then finds no neighbour. `-D INPUT -j DROP` deletes the vendor's rule,
# and leaves the rule for all packets that stands behind it. All commands succeed. The same holds for --dst-mac, and for `!`. If the mask
# ends within a byte, the match stays. ebtables-nft keeps all masks. The script needs root, and Debian 12 or later.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)

# get SUITE VERSION: a root with this version of iptables, and the libraries that it runs with.
get() {
	local at=$dir/$1 options top
	mkdir -p "$at"/{state/lists/partial,cache/archives/partial,root/{run,usr/{lib,lib64,sbin,bin}}}
	echo "deb $mirror $1 main" >"$at/sources" && touch "$at/status"
	options=(-qq -o Dir::Etc::SourceList="$at/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$at/state" -o APT::Install-Recommends=0
		-o Dir::State::status="$at/status" -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update
	apt-get "${options[@]}" install --download-only -y "iptables=$2" >"$at/log"
	for top in lib lib64 sbin bin; do ln -s "usr/$top" "$at/root/$top"; done
	for deb in "$at"/cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$at/root" --keep-directory-symlink; done
}
cases() {
	arptables() { chroot "$dir/$1/root" "/usr/sbin/$2-nft$3" "${@:4}"; }
	local suite=$1 peer mask
	rules() { arptables "$suite" arptables -save | grep ^-A | paste -sd ';'; }
	# arp: whether the node still finds a neighbour of another vendor
	arp() {
		ip neigh flush dev eth0
		echo >/dev/udp/10.0.1.2/9
		sleep 1
		if ip neigh show 10.0.1.2 | grep lladdr >/dev/null; then echo "neighbour found"; else echo "no neighbour"; fi
	}
	unshare --net sleep 60 & peer=$!
	until [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
	ip link add eth0 type veth peer name eth0 address 02:aa:bb:00:00:02 netns $peer
	ip addr add 10.0.1.1/24 dev eth0 && ip link set eth0 up
	nsenter -n -t $peer ip addr add 10.0.1.2/24 dev eth0 && nsenter -n -t $peer ip link set eth0 up
	arptables "$suite" arptables '' --version
	for mask in ff:ff:ff:00:00:00 ff:ff:ff:f0:00:00; do
		arptables "$suite" arptables '' -F && arptables "$suite" arptables '' -A INPUT --src-mac 02:11:22:00:00:00/$mask -j DROP
		echo "/$mask: $(rules), $(arp)"
		arptables "$suite" arptables -save >"$dir/saved" && arptables "$suite" arptables -restore <"$dir/saved"
		echo "restored: $(rules), $(arp)"
	done
	arptables "$suite" arptables '' -F && arptables "$suite" arptables '' -A INPUT --src-mac 02:11:22:00:00:00/ff:ff:ff:00:00:00 -j DROP
	arptables "$suite" arptables '' -A INPUT -j DROP
	arptables "$suite" arptables '' -D INPUT -j DROP && echo "two rules, and -D INPUT -j DROP: $(rules), $(arp)"
	arptables "$suite" ebtables '' -A FORWARD -s 02:11:22:00:00:00/ff:ff:ff:00:00:00 -j DROP
	echo "ebtables: $(arptables "$suite" ebtables -save | grep ^-A)"
	kill $peer
}
get bookworm 1.8.9-2 && get trixie 1.8.11-2
export -f cases && export dir
for suite in bookworm trixie; do unshare --net bash -euo pipefail -c "cases $suite"; done | tee "$dir/seen"
for suite in {1..2}; do cat <<'END'; done | diff - <(grep -v ' v1' "$dir/seen")
/ff:ff:ff:00:00:00: -A INPUT -j DROP, neighbour found
restored: -A INPUT -j DROP, no neighbour
/ff:ff:ff:f0:00:00: -A INPUT -j DROP --src-mac 02:11:22:00:00:00/ff:ff:ff:f0:00:00, neighbour found
restored: -A INPUT -j DROP --src-mac 02:11:22:00:00:00/ff:ff:ff:f0:00:00, neighbour found
two rules, and -D INPUT -j DROP: -A INPUT -j DROP, no neighbour
ebtables: -A FORWARD -s 02:11:22:00:00:00/ff:ff:ff:00:00:00 -j DROP
END
