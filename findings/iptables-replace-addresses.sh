#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# iptables 1.8.9 (Debian 12) and 1.8.11 (Debian 13), with nftables and legacy: a rule is replaced by one with two addresses. Linux 6.18.
#
# A good guess: `-A` with `-s 192.0.2.1,192.0.2.2` appends a rule for each address. `-R` needs one rule for one rule, so it refuses two
# addresses, as 1.8.9 does: "Replacement rule does not specify a unique address". Or it replaces the rule by two rules.
#
# What happens: 1.8.11 replaces the rule by one for the first address, and reports success. The other addresses are lost, in the source and
# in the destination. It is so for iptables and ip6tables, for both backends, and for iptables-restore. A script that relies on the error
# of 1.8.9 has rules for fewer addresses after the update to Debian 13. The script needs root, and Debian 12 or later.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)

# get SUITE VERSION: a root with this iptables, and the libraries that it runs with.
get() {
	local at=$dir/$1 options top
	mkdir -p "$at"/{state/lists/partial,cache/archives/partial,root/{run,usr/{lib,lib64,sbin,bin}}}
	echo "deb $mirror $1 main" >"$at/sources"
	options=(-qq -o Dir::Etc::SourceList="$at/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$at/state"
		-o Dir::State::status=/dev/null -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update
	(cd "$at" && apt-get "${options[@]}" download "iptables=$2" "libip4tc2=$2" "libip6tc2=$2" "libxtables12=$2" libmnl0 libnftnl11 libc6 \
		libnetfilter-conntrack3 libnfnetlink0 && for deb in *.deb; do dpkg -x "$deb" root; done)
	for top in lib lib64 sbin bin; do # Debian 12 has files in /lib
		cp -rn "$at/root/$top/." "$at/root/usr/$top/" 2>/dev/null || :
		rm -rf "${at:?}/root/$top" && ln -s "usr/$top" "$at/root/$top"
	done
}
cases() {
	local backend
	ipt() { chroot "$dir/$1/root" "/usr/sbin/xtables-$backend-multi" "${@:2}" 2>&1; }
	for backend in nft legacy; do
		# try COMMAND NEW OLD: the rule for the address OLD is replaced by NEW.
		try() {
			local said=error
			ipt "$suite" "$1" -F INPUT && ipt "$suite" "$1" -A INPUT -s "$3" -j ACCEPT
			# shellcheck disable=SC2086 # words
			if ipt "$suite" "$1" -R INPUT 1 $2 -j ACCEPT >"$dir/said"; then said=success; fi
			echo "$(ipt "$suite" "$1" --version): $2: $said, $(ipt "$suite" "$1" -S INPUT | grep -oE -- '-[sd] .*' | tr '\n' ' ')"
		}
		try iptables '-s 192.0.2.1,192.0.2.2' 10.0.0.1
		try iptables '-s 192.0.2.1 -d 192.0.2.8,192.0.2.9' 10.0.0.1
		try ip6tables '-s fd00::1,fd00::2' fd00::9
		printf '*filter\n-R INPUT 1 -s 192.0.2.5,192.0.2.6 -j ACCEPT\nCOMMIT\n' | ipt "$suite" iptables-restore --noflush >"$dir/said" || :
		echo "  iptables-restore: $(ipt "$suite" iptables -S INPUT | grep -oE -- '-[sd] .*' | tr '\n' ' ')"
	done
}
get bookworm 1.8.9-2 && get trixie 1.8.11-2
export -f cases && export dir
for suite in bookworm trixie; do suite=$suite unshare --net bash -euo pipefail -c cases; done | sed 's/ *$//' | tee "$dir/seen"
diff - "$dir/seen" <<'END'
iptables v1.8.9 (nf_tables): -s 192.0.2.1,192.0.2.2: error, -s 10.0.0.1/32 -j ACCEPT
iptables v1.8.9 (nf_tables): -s 192.0.2.1 -d 192.0.2.8,192.0.2.9: error, -s 10.0.0.1/32 -j ACCEPT
ip6tables v1.8.9 (nf_tables): -s fd00::1,fd00::2: error, -s fd00::9/128 -j ACCEPT
  iptables-restore: -s 10.0.0.1/32 -j ACCEPT
iptables v1.8.9 (legacy): -s 192.0.2.1,192.0.2.2: error, -s 10.0.0.1/32 -j ACCEPT
iptables v1.8.9 (legacy): -s 192.0.2.1 -d 192.0.2.8,192.0.2.9: error, -s 10.0.0.1/32 -j ACCEPT
ip6tables v1.8.9 (legacy): -s fd00::1,fd00::2: error, -s fd00::9/128 -j ACCEPT
  iptables-restore: -s 10.0.0.1/32 -j ACCEPT
iptables v1.8.11 (nf_tables): -s 192.0.2.1,192.0.2.2: success, -s 192.0.2.1/32 -j ACCEPT
iptables v1.8.11 (nf_tables): -s 192.0.2.1 -d 192.0.2.8,192.0.2.9: success, -s 192.0.2.1/32 -d 192.0.2.8/32 -j ACCEPT
ip6tables v1.8.11 (nf_tables): -s fd00::1,fd00::2: success, -s fd00::1/128 -j ACCEPT
  iptables-restore: -s 192.0.2.5/32 -j ACCEPT
iptables v1.8.11 (legacy): -s 192.0.2.1,192.0.2.2: success, -s 192.0.2.1/32 -j ACCEPT
iptables v1.8.11 (legacy): -s 192.0.2.1 -d 192.0.2.8,192.0.2.9: success, -s 192.0.2.1/32 -d 192.0.2.8/32 -j ACCEPT
ip6tables v1.8.11 (legacy): -s fd00::1,fd00::2: success, -s fd00::1/128 -j ACCEPT
  iptables-restore: -s 192.0.2.5/32 -j ACCEPT
END
