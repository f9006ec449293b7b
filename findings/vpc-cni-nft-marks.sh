#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/aws/amazon-vpc-cni-k8s v1.23.2, package networkutils (Linux 6.18): its two backends for marks of connections.
#
# A good guess: both backends restore the same bit, 0x80, of the connection's mark, and leave the other bits of a packet's mark as they are.
# The iptables backend does: `CONNMARK --restore-mark --mask 0x80`. Then another program can route by another bit, such as 0x200.
#
# What happens: the new nftables backend sets the whole mark of the packet to one bit of the connection's mark. All other bits become 0, also
# for a packet that is not from a pod. The chain has type nat, so it runs for the first packet of a connection only. The first packet then
# takes another route than those that follow it: here by ens5, and not by ens6. The backend follows `iptables --version`. So a node whose
# iptables becomes iptables-nft changes over. The script needs root, Go, nft, iptables (with both backends) and ip.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && export AWS_VPC_K8S_CNI_LOG_FILE=stderr # and no file in /host
printf 'module example.com/mark\n\ngo 1.26\n\nrequire github.com/aws/amazon-vpc-cni-k8s v1.23.2\n' >go.mod
cat >main.go <<'END'
package main

import "github.com/aws/amazon-vpc-cni-k8s/pkg/networkutils"

func main() {
	c, err := networkutils.NewConnmark("eni", 0x80)
	if err == nil {
		err = c.Setup([]string{"10.0.0.0/16"})
	}
	if err != nil {
		panic(err)
	}
}
END
GOFLAGS=-mod=mod go build -o probe . 2>/dev/null && go list -m github.com/aws/amazon-vpc-cni-k8s && uname -r >&2
cases() { # with the names of two links: packets come by the first
	local pod link to packet
	unshare --net sleep 30 & pod=$!
	until [ "$(readlink /proc/"$pod"/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
	for link in ens5 ens6; do
		ip link add $link type veth peer name ${link}p && ip link set ${link}p up && ip link set $link up arp off
	done
	ip link add "$1" type veth peer name eth0 netns "$pod" && ip link set "$1" up && ip addr add 169.254.1.1/32 dev "$1"
	nsenter -n -t "$pod" bash -c 'ip addr add 10.0.1.20/32 dev eth0; ip link set eth0 up; ip route add default dev eth0 via 169.254.1.1 onlink'
	ip addr add 10.0.0.5/24 dev ens5 && ip route add default dev ens5 && ip route add default dev ens6 table 3 && ip route add 10.0.1.20 dev "$1"
	ip rule add pref 1000 fwmark 0x200/0x200 lookup 3 # another program's
	sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0
	nft "table ip other { chain first { type filter hook prerouting priority mangle; iifname $1 meta mark set meta mark | 0x200; }; }
		table ip see { set seen { type mark . ifname; flags dynamic; }
		chain see { type filter hook postrouting priority 0; update @seen { meta mark . oifname }; }; }"
	mkdir -p bin && ln -sf "$(command -v "iptables-$2")" bin/iptables && PATH=$PWD/bin:$PATH ./probe >/dev/null 2>&1
	for to in 10.0.9.9 203.0.113.1; do
		echo -n "$(bin/iptables --version | grep -o '(.*)'), from $1 to $to:"
		mkfifo pipe && { nsenter -n -t "$pod" bash -c "exec 3<>/dev/udp/$to/53; while read -r; do echo x >&3; done" <pipe & exec 4>pipe; }
		for packet in first second; do
			nft flush set ip see seen && echo >&4 && sleep 0.2
			echo -n " $packet: $(nft list set ip see seen | grep -oP 'elements = { \K[^ }]* . "[^ }]*"');"
		done
		exec 4>&- && rm pipe && echo
	done
	kill "$pod"
}
export -f cases
for backend in legacy nft; do
	for link in eni0 vpn0; do unshare --net bash -euo pipefail -c "cases $link $backend"; done
done | tee seen
diff - seen <<'END'
(legacy), from eni0 to 10.0.9.9: first: 0x00000200 . "ens6"; second: 0x00000200 . "ens6";
(legacy), from eni0 to 203.0.113.1: first: 0x00000280 . "ens6"; second: 0x00000200 . "ens6";
(legacy), from vpn0 to 10.0.9.9: first: 0x00000200 . "ens6"; second: 0x00000200 . "ens6";
(legacy), from vpn0 to 203.0.113.1: first: 0x00000200 . "ens6"; second: 0x00000200 . "ens6";
(nf_tables), from eni0 to 10.0.9.9: first: 0x00000000 . "ens5"; second: 0x00000200 . "ens6";
(nf_tables), from eni0 to 203.0.113.1: first: 0x00000080 . "ens5"; second: 0x00000200 . "ens6";
(nf_tables), from vpn0 to 10.0.9.9: first: 0x00000000 . "ens5"; second: 0x00000200 . "ens6";
(nf_tables), from vpn0 to 203.0.113.1: first: 0x00000000 . "ens5"; second: 0x00000200 . "ens6";
END
