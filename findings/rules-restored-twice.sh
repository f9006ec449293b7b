#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# iproute2 6.1.0 (Debian 12) and 6.15.0 (Debian 13): `ip rule save` and `ip rule restore`.
#
# A good guess: restore puts back rules that were lost. If a rule is still there, restore passes over it ("File exists", as with `ip route
# restore`), or fails. After `ip rule flush`, restore makes the rules what they were at save.
#
# What happens: restore adds each rule once more, and no message says so: each rule is there twice. The rule with the preference 0, for the
# table local, has no preference in the file. So the kernel chooses a preference for the copy of this rule: here 32764, one less than the
# preference of the first other rule. After `ip rule flush`, which keeps the rule with the preference 0, the copy has the preference 0, and
# the other rules are right. Each further save and restore doubles all rules. `ip rule del` of a preference then removes only one of two
# equal rules, and the other rule is still in force. The script needs root, and Debian 12 or later.
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
# rules: as preference and table.
rules() { echo "$1: $(ip rule | sed -E 's/:.*lookup / /; s/ $/,/' | tr '\n' ' ')"; }
cases() {
	local root=$dir/$1/root
	ip() { chroot "$root" /bin/ip "$@" 2>/dev/null; }
	ip -V
	ip rule add from 192.0.2.1 table 100
	ip rule save >"$dir/saved" && rules saved
	ip rule restore <"$dir/saved" && rules restored
	ip rule del pref 32765 && rules deleted
	ip rule flush && rules flushed
	ip rule restore <"$dir/saved" && rules 'flushed and restored'
	ip rule save >"$dir/saved" && ip rule restore <"$dir/saved" && rules 'once more'
}
get bookworm 6.1.0-3 libelf1 libbsd0 libmd0 && get trixie 6.15.0-1 libelf1t64 libzstd1
export -f rules cases && export dir
for suite in bookworm trixie; do unshare --net bash -euo pipefail -c "cases $suite"; done | tee "$dir/seen"
diff - <(grep -v ^ip "$dir/seen" | LC_ALL=C sort | uniq -c | sed 's/^ *//; s/ $//') <<'END'
2 deleted: 0 local 32764 local 32765 100 32766 main 32766 main 32767 default 32767 default
2 flushed and restored: 0 local 0 local 32765 100 32766 main 32767 default
2 flushed: 0 local
2 once more: 0 local 0 local 0 local 0 local 32765 100 32765 100 32766 main 32766 main 32767 default 32767 default
2 restored: 0 local 32764 local 32765 100 32765 100 32766 main 32766 main 32767 default 32767 default
2 saved: 0 local 32765 100 32766 main 32767 default
END
