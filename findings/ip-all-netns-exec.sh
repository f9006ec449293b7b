#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# iproute2 6.1.0 (Debian 12) and 6.15.0 (Debian 13): `ip -all netns exec COMMAND`, and a name without a namespace.
#
# A good guess: the command runs once in each namespace. If the command fails in one namespace, ip fails, too, as `ip netns exec NAME` does:
# at once, or at the end with -force. If the namespace of a file in /run/netns is gone, ip fails, or passes over the file. Such a file stays
# when a runtime is killed between two system calls, or when its mount is removed.
#
# What happens: the exit status is 0, even if the command has failed in all namespaces, or does not exist. For a file without a namespace,
# ip prints a message. With 6.1, the child process that should have run the command then goes on with the other names, and its parent goes
# on, too. So the command runs twice in each namespace that follows. With a second such file, it runs four times, and with a third, eight
# times: a command that adds a rule has then added eight rules. 6.15 runs the command once. The script needs root, and Debian 12 or later.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)

# get SUITE VERSION LIBRARIES: a root with this iproute2, and what it runs with.
get() {
	local at=$dir/$1 options top
	mkdir -p "$at"/{state/lists/partial,cache/archives/partial,root/{run,sys,proc,usr/{lib,lib64,sbin,bin}}}
	echo "deb $mirror $1 main" >"$at/sources"
	options=(-qq -o Dir::Etc::SourceList="$at/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$at/state"
		-o Dir::State::status=/dev/null -o Dir::Cache="$at/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" update
	(cd "$at" && apt-get "${options[@]}" download "iproute2=$2" "${@:3}" libbpf1 libcap2 libmnl0 libselinux1 libpcre2-8-0 zlib1g libc6 dash &&
		for deb in *.deb; do dpkg -x "$deb" root; done)
	for top in lib lib64 sbin bin; do # Debian 12 has files in /lib
		cp -rn "$at/root/$top/." "$at/root/usr/$top/" 2>/dev/null || :
		rm -rf "${at:?}/root/$top" && ln -s "usr/$top" "$at/root/$top"
	done
}
cases() {
	local root=$dir/$1/root status options stale
	mount --bind "$root" "$root" && mount -t tmpfs none "$root/run" && mount -t proc none "$root/proc"
	ip() { PATH=/usr/sbin:/usr/bin chroot "$root" ip "$@" 2>>"$dir/log" >/dev/null; }
	exits() { status=0 && ip "$@" || status=$?; echo "ip $*: $status"; }
	ip netns add pod
	exits netns exec pod dash -c 'exit 3'
	exits -all netns exec dash -c 'exit 3'
	exits -all -force netns exec dash -c 'exit 3'
	exits -all netns exec no-such-program
	for stale in none one two three; do # tmpfs lists the newest file first
		[ $stale = none ] || touch "$root/run/netns/$stale"
		ip -all netns exec dash -c 'echo once >>/run/runs'
		echo "files without a namespace, last: $stale: in pod $(wc -l <"$root/run/runs") times"
		rm "$root/run/runs"
	done
}
get bookworm 6.1.0-3 libelf1 libbsd0 libmd0 && get trixie 6.15.0-1 libelf1t64 libzstd1
export -f cases && export dir
cd "$dir" && for suite in bookworm trixie; do
	chroot $suite/root ip -V 2>/dev/null
	unshare --net --mount bash -euo pipefail -c "cases $suite"
done | tee seen
grep -q 'setting the network namespace "one" failed: Invalid argument' log
diff - <(grep -v iproute2 seen | LC_ALL=C sort | uniq -c | sed 's/^ *//') <<'EOF'
2 files without a namespace, last: none: in pod 1 times
1 files without a namespace, last: one: in pod 1 times
1 files without a namespace, last: one: in pod 2 times
1 files without a namespace, last: three: in pod 1 times
1 files without a namespace, last: three: in pod 8 times
1 files without a namespace, last: two: in pod 1 times
1 files without a namespace, last: two: in pod 4 times
2 ip -all -force netns exec dash -c exit 3: 0
2 ip -all netns exec dash -c exit 3: 0
2 ip -all netns exec no-such-program: 0
2 ip netns exec pod dash -c exit 3: 3
EOF
