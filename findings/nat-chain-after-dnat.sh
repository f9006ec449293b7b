#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, github.com/aws/amazon-vpc-cni-k8s v1.23.2 (package networkutils): a chain of type nat after the chain of kube-proxy.
#
# A good guess: base chains of one hook run in the order of their priority, and a packet that one accepts goes on to the next. The VPC CNI's
# new nftables backend relies on it. Its chain marks packets of pods to addresses outside the VPC. The chain has type nat and priority -90.
# A comment says why: it runs after the DNAT of kube-proxy (-100), and sees the address of the endpoint.
#
# What happens: all chains of type nat at a hook share one function of the kernel, nf_nat_inet_fn. It stops at the first chain that
# translates the destination. So a connection to a service whose endpoint is outside the VPC gets no mark. A direct connection to the same
# address gets 0x80. With the policy rules of the VPC CNI (fwmark 0x80 to the main table, then by the pod's address), the first leaves by the
# pod's own ENI, and the second by the primary one. It is so with rules of kube-proxy in nftables, and in iptables. A chain that translates
# nothing does not end the way. A chain of type filter with priority -90 sees every packet, with its new address: it sets 0x100 below.
# The script needs root, Go, nft, iptables and ip.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && export AWS_VPC_K8S_CNI_LOG_FILE=stderr && printf 'module example.com/mark\n\ngo 1.26\n\nrequire github.com/aws/amazon-vpc-cni-k8s v1.23.2\n' >go.mod
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
cases() {
	local pod link to what found
	unshare --net sleep 30 & pod=$!
	until [ "$(readlink /proc/"$pod"/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
	for link in ens5 ens6; do # the primary ENI, and the one of the pod
		ip link add $link type veth peer name ${link}p && ip link set ${link}p up && ip link set $link up arp off
	done
	ip link add eni0 type veth peer name eth0 netns "$pod" && ip link set eni0 up && ip addr add 169.254.1.1/32 dev eni0
	nsenter -n -t "$pod" bash -c 'ip addr add 10.0.1.20/32 dev eth0; ip link set eth0 up; ip route add default dev eth0 via 169.254.1.1 onlink'
	ip addr add 10.0.0.5/24 dev ens5 && ip route add default dev ens5 && ip route add default dev ens6 table 2 && ip route add 10.0.1.20 dev eni0
	ip rule add pref 1024 fwmark 0x80/0x80 lookup main && ip rule add pref 1536 from 10.0.1.20 lookup 2
	sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0
	./probe >/dev/null 2>&1
	nft 'table ip proxy { chain services { type nat hook prerouting priority -100;
		ip daddr 172.30.0.1 dnat to 203.0.113.1; ip daddr 172.30.0.2 dnat to 10.0.9.9; ip daddr 203.0.113.3 accept; }; }
		table ip other { chain marks { type filter hook prerouting priority -90; ct state new ip daddr 203.0.113.0/24 ct mark set ct mark | 0x100; }; }
		table ip see { set seen { type ipv4_addr . ifname; flags dynamic; }
		chain see { type filter hook postrouting priority 0; update @seen { ip daddr . oifname }; }; }'
	iptables -t nat -A PREROUTING -d 172.30.0.4 -j DNAT --to 203.0.113.4
	while read -r to what; do
		nft flush set ip see seen && nsenter -n -t "$pod" bash -c "echo x >/dev/udp/$to/53" && sleep 0.2
		found=$(grep -oP "dst=$to sport.*mark=\K[0-9]+" /proc/net/nf_conntrack)
		printf '%s, %s: mark 0x%x, %s\n' "$to" "$what" "$found" "$(nft list set ip see seen | grep -oP 'elements = { \K[^}]*')"
	done <<-END
		203.0.113.1 outside
		172.30.0.1 a service outside
		10.0.9.9 in the VPC
		172.30.0.2 a service in the VPC
		203.0.113.3 outside, accepted by the first chain
		172.30.0.4 a service outside, with iptables
	END
	kill "$pod"
}
export -f cases
unshare --net bash -euo pipefail -c cases | sed 's/ *$//' | tee seen
diff - seen <<'END'
203.0.113.1, outside: mark 0x180, 203.0.113.1 . "ens5"
172.30.0.1, a service outside: mark 0x100, 203.0.113.1 . "ens6"
10.0.9.9, in the VPC: mark 0x0, 10.0.9.9 . "ens6"
172.30.0.2, a service in the VPC: mark 0x0, 10.0.9.9 . "ens6"
203.0.113.3, outside, accepted by the first chain: mark 0x180, 203.0.113.3 . "ens5"
172.30.0.4, a service outside, with iptables: mark 0x100, 203.0.113.4 . "ens6"
END
