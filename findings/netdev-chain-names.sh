#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18 with nftables 1.1.3: a chain of the family netdev belongs to a name, and not to a device.
#
# A good guess: a chain with `device "v0"` needs that device. Otherwise the kernel says "No such file or directory". The chain belongs to
# the device: it stays with the device after a rename, and goes when the device goes. If a program adds the chain without an error, the
# chain filters. An alternative name of a link counts as its name, or is an error.
#
# What happens: if no device has the name, there is no error. The name may be wrong, or an alternative name of a link. The chain then sees
# no packet. When a link gets the name, the chain sees the packets of this link. If the link is renamed, the chain stays with the name, so
# the packets of the link pass unfiltered. When the link has the name again, the chain filters its packets again. If the link is deleted,
# the chain stays, with its rules, and filters the next link of that name. `nft list ruleset` shows the same in all these cases. So a policy
# by netdev chains on a pod's device outlives the pod. It then applies to the next pod whose device has that name. The script needs root,
# Debian 12 or later, ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status=/dev/null -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
apt-get "${options[@]}" download nftables=1.1.3-1 libnftables1=1.1.3-1 libnftnl11 libmnl0 libjansson4 libxtables12 libgmp10 libedit2 \
	libtinfo6 libbsd0 libmd0 libc6
for deb in *.deb; do dpkg -x "$deb" root; done

cases() {
	nft() { "$(echo root/usr/lib/*/ld-linux-*)" --library-path "$(echo root/usr/lib/*-linux-gnu)" root/usr/sbin/nft "$@"; }
	name() { ip link set "$1" down && ip link set "$1" name "$2" && ip link set "$2" up; }
	far() { nsenter --net="/proc/$far/ns/net" bash -euc "$1"; }
	pair() {
		ip link add "$1" type veth peer name far0 && ip link set far0 netns "$far" && ip link set "$1" up
		far 'ip link set far0 up; ip addr add 192.0.2.2/24 dev far0; ip route add 224.0.0.0/4 dev far0'
	}
	# filtered WHAT: whether the chain sees packets that come from far0.
	filtered() {
		local before after
		before=$(nft list counter netdev t seen) && far 'for i in 1 2 3; do echo >/dev/udp/224.0.0.9/9; sleep 0.1; done'
		after=$(nft list counter netdev t seen)
		echo "$1: $([ "$before" = "$after" ] && echo "not filtered" || echo filtered)"
	}
	nft --version && unshare --net sleep 100 & far=$!
	sleep 0.3 && far 'echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6'
	pair v0 && ip link property add dev v0 altname alt0
	for device in nowhere alt0; do
		nft add table netdev t && nft add counter netdev t seen
		nft "add chain netdev t c { type filter hook ingress device $device priority 0; }" && nft add rule netdev t c counter name seen
		filtered "chain of $device, which is accepted"
		if [ $device = nowhere ]; then name v0 nowhere && filtered "link renamed to nowhere" && name nowhere v0 && filtered "and back"; fi
		nft delete table netdev t
	done
	nft add table netdev t && nft add counter netdev t seen
	nft "add chain netdev t c { type filter hook ingress device v0 priority 0; }" && nft add rule netdev t c counter name seen
	filtered "chain of v0"
	ip link del v0 && pair v1 && filtered "v0 deleted, v1 made"
	nft list table netdev t | grep -o 'device.*'
	ip link del v1 && pair v0 && filtered "another v0 made"
	kill $far
}
export -f cases && uname -sr
unshare --net --pid --fork --kill-child --mount-proc bash -euo pipefail -c cases | tee seen
diff - <(tail -n +2 seen) <<'EOF'
chain of nowhere, which is accepted: not filtered
link renamed to nowhere: filtered
and back: not filtered
chain of alt0, which is accepted: not filtered
chain of v0: filtered
v0 deleted, v1 made: not filtered
device "v0" priority filter; policy accept;
another v0 made: filtered
EOF
