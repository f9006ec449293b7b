#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, and tuning of github.com/containernetworking/plugins v1.10.0: what removes a permanent neighbour.
#
# A good guess: by the manual, the state "permanent" means that only an administrator removes the entry. So the entry goes when a command
# removes it, or when its link goes. Loss of carrier could remove it, too. A new MAC address of the link itself does not concern the
# neighbours of the link. So a chain of CNI plugins can set `mac` by tuning after a plugin that gave the pod a permanent neighbour.
#
# What happens: loss of carrier and `ip neigh flush` leave the entry. But the kernel removes each entry of the link, of both families, when
# the link gets a MAC address, a broadcast address (`brd`), or `arp off`. When the last IPv4 address of the link goes, the IPv4 entries and
# the proxy entries go, too. A link that is set down loses all entries. Nothing brings the entries back, and the kernel does not say why. So
# tuning with `mac` removes the pod's permanent neighbours: ADD reports success, and CHECK of tuning finds nothing wrong. A pod whose
# gateway answers no ARP request has no network then. The script needs root, Go, and ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
GOBIN=$dir go install github.com/containernetworking/plugins/plugins/meta/tuning@v1.10.0
go version -m tuning | grep -o 'github.com/containernetworking/plugins.v.*'
uname -sr

fresh() {
	ip link del v0 2>/dev/null || :
	ip link add v0 type veth peer name v1 && ip link set v1 up && ip link set v0 up
	ip addr add 192.0.2.1/24 dev v0 && ip addr add 2001:db8::1/64 dev v0 nodad
	ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev v0 nud permanent
	ip neigh add 2001:db8::9 lladdr 02:00:00:00:00:09 dev v0 nud permanent
	ip neigh add proxy 192.0.2.8 dev v0
}
left() {
	echo "$1: $(ip -4 neigh show nud permanent | wc -l) IPv4, $(ip -6 neigh show nud permanent | grep -c 2001:db8::9) IPv6," \
		"$(ip neigh show proxy | wc -l) proxy"
}
tuning() {
	cat >conf <<-EOF
		{"cniVersion": "1.0.0", "name": "net", "type": "tuning", "mac": "02:00:00:00:00:77", "dataDir": "$dir",
		 "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "v0", "mac": "$2", "sandbox": "$dir/pod"}], "ips": []}}
	EOF
	CNI_COMMAND=$1 CNI_CONTAINERID=pod CNI_NETNS=$dir/pod CNI_IFNAME=v0 CNI_PATH=$dir unshare --net ./tuning <conf >out ||
		{ cat out; exit 1; }
}
cases() {
	set -euo pipefail
	touch pod && mount --bind /proc/self/ns/net pod
	for step in 'link set v1 down' 'link set v0 mtu 1400' 'neigh flush dev v0' 'link set v0 address 02:00:00:00:00:55' \
		'link set v0 brd ff:ff:ff:ff:ff:fe' 'link set v0 arp off' 'addr del 192.0.2.1/24 dev v0' 'link set v0 down'; do
		# shellcheck disable=SC2086 # the words of a command
		fresh && ip $step && left "$step"
	done
	fresh && tuning ADD "$(ip -br link show v0 | grep -o '[0-9a-f:]\{17\}')" && left "tuning ADD"
	tuning CHECK 02:00:00:00:00:77 && left "tuning CHECK"
}
export -f fresh left tuning cases && export dir
unshare --net --mount bash -c cases | tee seen
diff - seen <<'EOF'
link set v1 down: 1 IPv4, 1 IPv6, 1 proxy
link set v0 mtu 1400: 1 IPv4, 1 IPv6, 1 proxy
neigh flush dev v0: 1 IPv4, 1 IPv6, 1 proxy
link set v0 address 02:00:00:00:00:55: 0 IPv4, 0 IPv6, 1 proxy
link set v0 brd ff:ff:ff:ff:ff:fe: 0 IPv4, 0 IPv6, 1 proxy
link set v0 arp off: 0 IPv4, 0 IPv6, 1 proxy
addr del 192.0.2.1/24 dev v0: 0 IPv4, 1 IPv6, 0 proxy
link set v0 down: 0 IPv4, 0 IPv6, 0 proxy
tuning ADD: 0 IPv4, 0 IPv6, 1 proxy
tuning CHECK: 0 IPv4, 0 IPv6, 1 proxy
EOF
