#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# nstat of iproute2 6.1 (Debian 12) and 6.15 (Debian 13), Linux 6.18: nstat on the node, and by `ip netns exec` in pods.
#
# A good guess: nstat prints how far each counter of this network namespace went up since the last call in it. A call in a pod does not change
# what the next call on the node prints.
#
# What happens: nstat has one history for all namespaces. It subtracts what the last call read, in whatever namespace that was. Here the node and
# each of two pods refuse 7 packets, and then nstat runs in each. It prints 20 for the first pod in each round: the pod's counter is 20 above
# that of the node. It prints nothing for the node and the second pod: their counters are below the last one. So a pod with
# drops seems to have none, and a pod without drops has new ones. `nstat -r` in a pod resets the history of the node. nstat reports
# nothing. `nstat -a` is right, as it subtracts nothing. The script needs root, ip and Debian.
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
	local root=$dir/$1/root where round
	mount -t tmpfs none /run && mount -t proc none "$root/proc" && ip link set lo up
	for where in pod1 pod2; do ip netns add $where && ip -n $where link set lo up; done
	at() { if [ "$1" = node ]; then "${@:2}"; else ip netns exec "$1" "${@:2}"; fi; }
	refuse() { at "$1" bash -c "for i in {1..$2}; do echo >/dev/udp/127.0.0.1/9; done"; }
	count() { at "$1" chroot "$root" /usr/bin/nstat "${@:2}" | awk '$1 == "UdpNoPorts" { print $2 }' | grep . || echo nothing; }
	refuse node 20 && refuse pod1 40 && refuse pod2 30
	for where in node pod1 pod2; do count $where >/dev/null; done
	for round in 1 2; do
		for where in node pod1 pod2; do
			refuse $where 7
			echo "round $round, $where refused 7 more packets: nstat prints $(count $where); nstat -a prints $(count $where -a -s)"
		done
	done
	count node >/dev/null && at pod1 chroot "$root" /usr/bin/nstat -r >/dev/null && refuse node 7
	echo "the node refused 7 more packets, after nstat -r in a pod: $(count node)"
	count pod2 >/dev/null && echo "pod1 refused no packets: $(count pod1)"
}
get bookworm 6.1.0-3 && get trixie 6.15.0-1
export -f cases && export dir
for suite in bookworm trixie; do
	chroot "$dir/$suite/root" /usr/bin/nstat -V
	unshare --net --mount bash -euo pipefail -c "cases $suite"
done | tee "$dir/seen"
for suite in 1 2; do cat <<'END'; done | diff - <(grep -v utility "$dir/seen")
round 1, node refused 7 more packets: nstat prints nothing; nstat -a prints 27
round 1, pod1 refused 7 more packets: nstat prints 20; nstat -a prints 47
round 1, pod2 refused 7 more packets: nstat prints nothing; nstat -a prints 37
round 2, node refused 7 more packets: nstat prints nothing; nstat -a prints 34
round 2, pod1 refused 7 more packets: nstat prints 20; nstat -a prints 54
round 2, pod2 refused 7 more packets: nstat prints nothing; nstat -a prints 44
the node refused 7 more packets, after nstat -r in a pod: nothing
pod1 refused no packets: 10
END
