#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# portmap of containernetworking/plugins v1.10.0, backend nftables (Linux 6.18, nftables 1.0.6): two networks with port mappings.
#
# A good guess: conditionsV4 limits the ports of the network that has it. DEL of one interface removes the ports of this interface. It is so
# with the backend iptables: each container of a network has a chain of its own, and the rule that leads to it has the conditions.
#
# What happens: both networks share the chains prerouting and output. Each ADD flushes them, and writes one rule with the conditions of its own
# network. So the last ADD decides for all pods: after a pod of a network with conditions, the ports of all other networks are closed for
# other addresses. CHECK of their pods succeeds, as it looks at other chains. A rule for a port has the ID of the container as its comment,
# without network and interface. DEL of one interface, while the pod runs, removes the ports of its other interfaces. The backend iptables
# leaves them. The script needs root, Go, iptables, nft and ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
CGO_ENABLED=0 GOBIN=$dir go install github.com/containernetworking/plugins/plugins/meta/portmap@v1.10.0
go version -m portmap | grep -oE 'plugins\sv[0-9.]+' | tr '\t' ' '
cases() {
	local backend=$1 port conditions='"ip", "daddr", "192.0.2.1"'
	[ "$backend" = nftables ] || conditions='"-d", "192.0.2.1"'
	# call COMMAND NETWORK CONTAINER INTERFACE ADDRESS PORT
	call() {
		local more=
		[ "$2" = one ] || more="\"conditionsV4\": [$conditions],"
		CNI_COMMAND=$1 CNI_CONTAINERID=$3 CNI_NETNS=/run/netns/$3 CNI_IFNAME=$4 CNI_PATH=. ./portmap >said <<END || :
{"cniVersion": "1.0.0", "name": "$2", "type": "portmap", "backend": "$backend", "snat": false, $more
"runtimeConfig": {"portMappings": [{"hostPort": $6, "containerPort": 53, "protocol": "udp"}]},
"prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "$4", "sandbox": "/run/netns/$3"}], "ips": [{"interface": 0, "address": "$5/24"}]}}
END
		grep -o '"msg.*' said || echo -n "$backend: $1 $2 $3 $4"
	}
	# reach ADDRESS PORT...: the address of the pod that a packet from another host comes to.
	reach() {
		local port
		for port in "${@:2}"; do
			nft flush set ip see seen && nsenter -n -t "$far" bash -c "echo x >/dev/udp/$1/$port" 2>/dev/null && sleep 0.1
			echo -n "; $1:$port: $(nft list set ip see seen | grep -oP 'elements = { \K[^ }]*' || echo closed)"
		done
	}
	mount -t tmpfs run /run
	unshare --net sleep 60 & far=$!
	until [ "$(readlink "/proc/$far/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
	ip link add ens5 type veth peer name eth0 netns "$far" && ip link set lo up && ip link set ens5 up
	ip addr add 198.51.100.1/24 dev ens5 && ip addr add 192.0.2.1/32 dev ens5 && sysctl -qw net.ipv4.ip_forward=1
	nsenter -n -t "$far" bash -c 'ip addr add 198.51.100.9/24 dev eth0; ip link set eth0 up; ip route add default via 198.51.100.1'
	ip link add pods type bridge && ip link set pods up && ip addr add 10.0.1.1/24 dev pods
	ip link add port0 type veth peer name port1 && ip link set port0 master pods up && ip link set port1 up
	nft 'table ip see { set seen { type ipv4_addr; flags dynamic; }
		chain see { type filter hook forward priority 0; update @seen { ip daddr }; }; }'
	call ADD one podA eth0 10.0.1.5 8001 && reach 198.51.100.1 8001 && echo
	call ADD two podB eth0 10.0.1.6 8002 && reach 198.51.100.1 8001 8002 && reach 192.0.2.1 8001 8002 && echo
	call CHECK one podA eth0 10.0.1.5 8001 && echo
	call ADD one podA net1 10.0.1.7 8003 && reach 198.51.100.1 8001 8003 && echo
	call ADD three podA net2 10.0.1.8 8004 && reach 192.0.2.1 8004 && echo
	call DEL three podA net2 10.0.1.8 8004 && reach 192.0.2.1 8001 8002 8003 && echo
	kill "$far"
}
export -f cases
for backend in nftables iptables; do unshare --net --mount bash -euo pipefail -c "cases $backend"; done | tee seen
diff - seen <<'END'
nftables: ADD one podA eth0; 198.51.100.1:8001: 10.0.1.5
nftables: ADD two podB eth0; 198.51.100.1:8001: closed; 198.51.100.1:8002: closed; 192.0.2.1:8001: 10.0.1.5; 192.0.2.1:8002: 10.0.1.6
nftables: CHECK one podA eth0
nftables: ADD one podA net1; 198.51.100.1:8001: 10.0.1.5; 198.51.100.1:8003: 10.0.1.7
nftables: ADD three podA net2; 192.0.2.1:8004: 10.0.1.8
nftables: DEL three podA net2; 192.0.2.1:8001: closed; 192.0.2.1:8002: 10.0.1.6; 192.0.2.1:8003: closed
iptables: ADD one podA eth0; 198.51.100.1:8001: 10.0.1.5
iptables: ADD two podB eth0; 198.51.100.1:8001: 10.0.1.5; 198.51.100.1:8002: closed; 192.0.2.1:8001: 10.0.1.5; 192.0.2.1:8002: 10.0.1.6
iptables: CHECK one podA eth0
iptables: ADD one podA net1; 198.51.100.1:8001: 10.0.1.5; 198.51.100.1:8003: 10.0.1.7
iptables: ADD three podA net2; 192.0.2.1:8004: 10.0.1.8
iptables: DEL three podA net2; 192.0.2.1:8001: 10.0.1.5; 192.0.2.1:8002: 10.0.1.6; 192.0.2.1:8003: 10.0.1.7
END
