#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# iptables 1.8.9 (Debian 12) and 1.8.11 (Debian 13): iptables-translate, for rules that change some bits of a mark.
#
# A good guess: bits outside of the masks of MARK and CONNMARK stay, as iptables-extensions(8) says and iptables does. So the translation,
# which is made to move a node to nft, also keeps these bits. If it cannot translate a part of a rule, it writes this part as a comment.
#
# What happens: for MARK, the translation keeps these bits. For CONNMARK, it writes rules that do something else, without a warning. By
# `--restore-mark` with masks, answers of pods find their interface on EC2. The translation is `meta mark set ct mark and 0x80`: the bit
# 0x4000, by which kube-proxy masquerades, is gone. With `--save-mark`, the other bits of the connection's mark are gone in the same way.
# The translation of `--set-mark 0x10/0xf0` is `ct mark xor 0x10 and 0xffffff0f`. nft computes `and` before `xor`, so the rule changes
# nothing. And in a comment, `! --socket-exists` loses its "!". Below, each rule and its translation see one packet with the mark 0x4004, of
# a connection with the mark 0x8aa. The script needs root, Debian 12 or later, and a kernel with nftables and xt_connmark.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)

# get SUITE VERSION PACKAGES: a root with this iptables, and the packages that it runs with.
get() {
	local at=$dir/$1 options
	mkdir -p "$at"/{state/lists/partial,cache/archives/partial,root/usr/{lib,lib64,sbin,bin},root/run}
	echo "deb $mirror $1 main" >"$at/sources"
	options=(-qq -o Dir::Etc::SourceList="$at/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$at/state"
		-o Dir::State::status=/dev/null -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update
	(cd "$at" && apt-get "${options[@]}" download "iptables=$2" "${@:3}" libc6 libmnl0 libnftnl11 libxtables12 libnfnetlink0 \
		libnetfilter-conntrack3 nftables libnftables1 libjansson4 libgmp10 libedit2 libtinfo6 libbsd0 libmd0 &&
		for deb in *.deb; do dpkg -x "$deb" root; done)
	for top in lib lib64 sbin bin; do # Debian 12 has files of libc6 in /lib
		cp -rn "$at/root/$top/." "$at/root/usr/$top/" 2>/dev/null || :
		rm -rf "${at:?}/root/$top" && ln -s "usr/$top" "$at/root/$top"
	done
}
# cases SUITE: the packet's and the connection's mark after each rule, and after its translation.
cases() {
	local suite=$1 rule translated by
	run() { chroot "$dir/$suite/root" "/usr/sbin/$1" "${@:2}"; }
	run iptables-nft --version && ip link set lo up
	for rule in 'CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80' 'CONNMARK --save-mark --nfmask 0x4 --ctmask 0x4' \
		'CONNMARK --set-mark 0x10/0xf0' 'MARK --set-mark 0x10/0xf0'; do
		# shellcheck disable=SC2086 # several words
		translated=$(run iptables-translate -t mangle -A OUTPUT -j $rule)
		for by in "$rule" "$translated"; do
			run nft flush ruleset && run iptables-nft -t mangle -A OUTPUT -j MARK --set-mark 0x4004
			run iptables-nft -t mangle -A OUTPUT -j CONNMARK --set-mark 0x8aa
			# shellcheck disable=SC2086
			case $by in
			nft*) eval "run $by" ;;
			*) run iptables-nft -t mangle -A OUTPUT -j $by ;;
			esac
			run nft 'add set ip mangle m { typeof meta mark . ct mark; flags dynamic; }'
			run nft 'add chain ip mangle p { type filter hook postrouting priority 300; }'
			run nft 'add rule ip mangle p add @m { meta mark . ct mark }'
			echo x >/dev/udp/127.0.0.1/9
			echo "$by => $(run nft list set ip mangle m | sed -n 's/.*{ \(.*\) }/\1/p')"
		done
	done
	run iptables-translate -A OUTPUT -m owner ! --socket-exists -j DROP
}

get bookworm 1.8.9-2 && get trixie 1.8.11-2 libip4tc2 libip6tc2
export -f cases && export dir
for suite in bookworm trixie; do unshare --net bash -euo pipefail -c "cases $suite"; done | tee "$dir/seen"
diff - <(grep -v ^iptables "$dir/seen" | LC_ALL=C sort | uniq -c | sed 's/^ *//; s/ $//') <<'END'
2 CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80 => 0x00004084 . 0x000008aa
2 CONNMARK --save-mark --nfmask 0x4 --ctmask 0x4 => 0x00004004 . 0x000008ae
2 CONNMARK --set-mark 0x10/0xf0 => 0x00004004 . 0x0000081a
2 MARK --set-mark 0x10/0xf0 => 0x00004014 . 0x000008aa
2 nft # -A OUTPUT -m owner  --socket-exists -j DROP
2 nft 'add rule ip mangle OUTPUT counter ct mark set ct mark xor 0x10 and 0xffffff0f' => 0x00004004 . 0x000008aa
2 nft 'add rule ip mangle OUTPUT counter ct mark set mark and 0x4' => 0x00004004 . 0x00000004
2 nft 'add rule ip mangle OUTPUT counter meta mark set ct mark and 0x80' => 0x00000080 . 0x000008aa
2 nft 'add rule ip mangle OUTPUT counter meta mark set mark and 0xffffff0f xor 0x10' => 0x00004014 . 0x000008aa
END
