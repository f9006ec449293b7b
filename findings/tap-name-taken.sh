#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# tap of containernetworking/plugins v1.10.0 (netlink v1.3.1, iproute2 6.1, Linux 6.18): a name that is taken, and a tap with an owner.
#
# A good guess: ADD for a name that exists in the pod fails, as the specification of CNI says, and as the other plugins do. If ADD fails, the
# pod has no new link. The tap has the mac and the mtu of the configuration, whether it has an owner and a group or not.
#
# What happens: ADD makes a tap with a random name, and renames it. If this fails, the plugin looks for the tap, finds it, and goes on without
# an error. So ADD succeeds with the link that has the name, here the eth0 of another plugin. It gives eth0 the address, and makes it a port
# of the bridge. The tap stays under its random name, and DEL removes the other plugin's eth0. The same happens when ADD is repeated after an
# error of IPAM, which leaves the tap: inside a block, the error has a variable of its own, and the function that cleans up looks at the outer
# one. With an owner and a group, the plugin makes the tap by the library instead of ip(8). It then ignores mac and mtu: the plugin sets the
# mac after it has copied the attributes of the link, and the library sets no mtu for a tap. CHECK succeeds for all of this. The script needs
# root, Go and ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
plugins=github.com/containernetworking/plugins/plugins
CGO_ENABLED=0 GOBIN=$dir go install $plugins/main/tap@v1.10.0 $plugins/main/macvlan@v1.10.0 $plugins/ipam/static@v1.10.0
go version -m tap | grep -oE '(networking/plugins|vishvananda/netlink)\sv[0-9.]+' | tr '\t' ' '
# links: name, MTU, whether the MAC address is that of the configuration, bridge and addresses of each link of the pod.
links() {
	local link
	for link in $(ip -n pod -o link show | grep -v ' lo:' | grep -oP '^[0-9]+: \K[^:@]+'); do
		echo -n "; $link $(ip -n pod link show "$link" | grep -oE 'mtu [0-9]+|02:00:00:00:00:07|master br0' | paste -sd ' ')"
		ip -n pod -4 -o addr show "$link" | sed -E 's/.*inet( [0-9./]+).*/\1/' | tr -d '\n'
	done | sed -E 's/veth[0-9a-f]{8}/random/g' && echo
}
# call COMMAND TYPE INTERFACE CONFIGURATION: prints the error, and the links of the pod.
call() {
	echo -n "$1 $2 $3: "
	CNI_COMMAND=$1 CNI_CONTAINERID=c CNI_NETNS=/run/netns/pod CNI_IFNAME=$3 CNI_PATH=$PWD "./$2" >said <<END || :
{"cniVersion": "1.0.0", "name": "n", "type": "$2", $4}
END
	{ grep -o '"msg.*"' said || echo success; } | tr -d '\n' && links
}
cases() {
	mount -t tmpfs run /run && ip netns add pod
	local address='"ipam": {"type": "static", "addresses": [{"address": "10.0.1.5/24"}]}'
	local tap='"mac": "02:00:00:00:00:07", "mtu": 1400'
	if [ "$1" = owner ]; then
		call ADD tap tap0 "$tap"
		call ADD tap tap1 "$tap, \"owner\": 1000, \"group\": 1000"
		call CHECK tap tap1 "$tap, \"owner\": 1000, \"group\": 1000, \"prevResult\": $(cat said)"
	elif [ "$1" = taken ]; then
		ip -n pod link add br0 type bridge && ip link add host0 type veth peer name eth0 netns pod && ip -n pod addr add 10.0.9.9/24 dev eth0
		call ADD macvlan eth0 "\"master\": \"host0\", $address"
		call ADD tap eth0 "$tap, \"bridge\": \"br0\", $address"
		call CHECK tap eth0 "$tap, \"bridge\": \"br0\", $address, \"prevResult\": $(cat said)"
		call DEL tap eth0 "$tap, \"bridge\": \"br0\", $address"
	else
		call ADD tap tap0 "$tap, \"ipam\": {\"type\": \"static\", \"addresses\": [{}]}"
		call ADD tap tap0 "$tap, $address"
	fi
}
export -f cases call links
for what in owner taken again; do unshare --net --mount bash -euo pipefail -c "cases $what"; done | tee seen
diff - seen <<'END'
ADD tap tap0: success; tap0 mtu 1400 02:00:00:00:00:07
ADD tap tap1: success; tap0 mtu 1400 02:00:00:00:00:07; tap1 mtu 1500
CHECK tap tap1: success; tap0 mtu 1400 02:00:00:00:00:07; tap1 mtu 1500
ADD macvlan eth0: "msg": "failed to rename macvlan to \"eth0\": file exists"; br0 mtu 1500; eth0 mtu 1500 10.0.9.9/24
ADD tap eth0: success; br0 mtu 1500; eth0 mtu 1500 master br0 10.0.9.9/24 10.0.1.5/24; random mtu 1400 02:00:00:00:00:07
CHECK tap eth0: success; br0 mtu 1500; eth0 mtu 1500 master br0 10.0.9.9/24 10.0.1.5/24; random mtu 1400 02:00:00:00:00:07
DEL tap eth0: success; br0 mtu 1500; random mtu 1400 02:00:00:00:00:07
ADD tap tap0: "msg": "the 'address' field is expected to be in CIDR notation, got: ''"; tap0 mtu 1400 02:00:00:00:00:07
ADD tap tap0: success; tap0 mtu 1400 02:00:00:00:00:07 10.0.1.5/24; random mtu 1400 02:00:00:00:00:07
END
