#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# netavark 1.14.0 (Debian 13), which makes the networks of Podman's containers, with nftables, on a host that forwards other packets, too.
#
# A good guess: the rules concern the bridges and subnets of its own networks. teardown of the last container removes the bridge and the
# rules. The policy of its chains is accept. So a connection between two other subnets, which the host routes, does not notice Podman.
#
# What happens: the chain FORWARD begins with a rule that drops all packets of the state invalid, whatever their link and addresses are.
# If the answers of a server take another way than through this host, then the host sees only one direction of the connection. The first
# packet passes, and all later packets are invalid. So such connections work before the first container starts, and then fail. The rule
# stays after teardown of the last container: the connections fail until an administrator deletes the rule, or the host boots. On
# a gateway with several ENIs, packets often take two ways. The script needs root, nft, ip, Python 3, and Debian 12 or later.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root config
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)
echo "deb $mirror trixie main" >sources
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status=/dev/null -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
apt-get "${options[@]}" download netavark=1.14.0-2 libc6 libgcc-s1
for deb in *.deb; do dpkg -x "$deb" root; done
id=$(printf '%064d' 1)
cat >network.json <<EOF
{"container_id": "$id", "container_name": "container", "networks": {"net": {"static_ips": ["10.9.0.2"], "interface_name": "eth0"}},
	"network_info": {"net": {"name": "net", "id": "$id", "driver": "bridge", "network_interface": "podman1", "ipv6_enabled": false, "internal": false,
	"dns_enabled": false, "subnets": [{"subnet": "10.9.0.0/24", "gateway": "10.9.0.1"}], "ipam_options": {"driver": "host-local"}}}}
EOF
export client='import urllib.request; print(urllib.request.urlopen("http://10.2.0.2", timeout=3).status)'
# Two hosts, which each have a link to this host, and one to each other. Answers take the link between them.
cases() {
	netavark() {
		local lib=root/usr/lib
		"$lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$lib/x86_64-linux-gnu" "$lib/podman/netavark" --firewall-driver nftables --config config "$@"
	}
	ask() { echo "$1: $(ip netns exec client python3 -c "$client" 2>/dev/null || echo no answer)"; }
	mount -t tmpfs none /run
	for name in client server pod; do ip netns add "$name"; done
	for name in client server; do
		ip link add "$name" type veth peer name eth0 netns "$name" && ip link set "$name" up
	done
	ip -n client link add eth1 type veth peer name eth1 netns server
	ip address add 10.1.0.1/24 dev client && ip address add 10.2.0.1/24 dev server
	ip -n client address add 10.1.0.2/24 dev eth0 && ip -n client address add 10.3.0.1/24 dev eth1
	ip -n server address add 10.2.0.2/24 dev eth0 && ip -n server address add 10.3.0.2/24 dev eth1
	for link in lo eth0 eth1; do ip -n client link set "$link" up && ip -n server link set "$link" up; done
	ip -n client route add 10.2.0.0/24 via 10.1.0.1 && ip -n server route add 10.1.0.0/24 via 10.3.0.1
	for name in client server; do ip netns exec "$name" sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth{0,1}.rp_filter=0; done
	sysctl -qw net.ipv4.ip_forward=1
	ip netns exec server python3 -m http.server 80 --bind 10.2.0.2 >/dev/null 2>&1 & server=$!
	trap 'kill $server' EXIT && sleep 2
	netavark --version
	ask 'before'
	netavark setup /run/netns/pod <network.json >/dev/null
	ask 'with a container'
	netavark teardown /run/netns/pod <network.json
	ask 'after teardown'
	echo "bridges: $(ip -br link show type bridge | wc -l)" && nft list table inet netavark | grep invalid
	nft delete rule inet netavark FORWARD handle "$(nft -a list table inet netavark | sed -n 's/.*invalid drop # handle //p')"
	ask 'without the rule'
}
export -f cases
unshare --net --mount bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
netavark 1.14.0
before: 200
with a container: no answer
after teardown: no answer
bridges: 0
		ct state invalid drop
without the rule: 200
EOF
