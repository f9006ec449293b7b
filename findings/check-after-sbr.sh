#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, bridge, macvlan, sbr and vrf of containernetworking/plugins v1.10.0, cnitool v1.3.1: CHECK of a chain that is as ADD made it.
#
# A good guess: sbr and vrf are made to follow the plugin of an interface, as in upstream's own documentation. So CHECK of such a chain
# succeeds after its ADD. If a plugin refuses a change of a later plugin, its error names the change.
#
# What happens: ADD succeeds, the pod has its address, and the gateway answers. CHECK by the first plugin fails right after this ADD:
# "Failed to find Gateway". No gateway is missing. The plugin looks for the route to the subnet of its address only in the main table. But
# sbr has moved this route to table 100, or vrf to the table of the VRF. So a runtime that calls CHECK takes each healthy pod for a broken
# one. With "disableCheck" in the list there is no such error. The script needs root, Go, ip(8) and ping(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
plugins=github.com/containernetworking/plugins/plugins
for p in main/bridge main/macvlan meta/sbr meta/vrf ipam/host-local; do CGO_ENABLED=0 GOBIN=$dir/bin go install $plugins/$p@v1.10.0; done
CGO_ENABLED=0 GOBIN=$dir/bin go install github.com/containernetworking/cni/cnitool@v1.3.1
ipam='"ipam": {"type": "host-local", "subnet": "192.168.77.0/24", "dataDir": "'$dir/data'"}'
list() { # NAME PLUGINS KEYS
	echo '{"cniVersion": "1.0.0", "name": "'"$1"'", '"${3:-}"' "plugins": ['"$2"']}' >"$1.conflist"
}
list bridge '{"type": "bridge", "bridge": "br0", "isGateway": true, '"$ipam"'}'
list sbr '{"type": "bridge", "bridge": "br0", "isGateway": true, '"$ipam"'}, {"type": "sbr"}'
list silent '{"type": "bridge", "bridge": "br0", "isGateway": true, '"$ipam"'}, {"type": "sbr"}' '"disableCheck": true,'
list macvlan '{"type": "macvlan", "master": "lower", '"$ipam"'}'
list vrf '{"type": "macvlan", "master": "lower", '"$ipam"'}, {"type": "vrf", "vrfname": "red"}'

# life NETWORK: ADD, CHECK and DEL of a pod of its own. Prints what CHECK says.
cat >life <<'EOF'
export CNI_PATH=$PWD/bin NETCONFPATH=$PWD
ip netns add "$1"
bin/cnitool add "$1" "/run/netns/$1" >/dev/null 2>&1
case $1 in bridge | sbr | silent) ip netns exec "$1" ping -q -c 1 -W 20 -I 192.168.77.2 192.168.77.1 >/dev/null && echo "$1: the gateway answers" ;; esac
echo "$1: CHECK says: $(bin/cnitool check "$1" "/run/netns/$1" 2>&1 | tail -1)"
bin/cnitool del "$1" "/run/netns/$1" >/dev/null 2>&1
ip netns del "$1"
EOF
# shellcheck disable=SC2016 # for the shell in the namespaces
unshare --net --mount sh -ec 'mount -t tmpfs run /run; ip link set lo up; ip link add lower type veth peer name upper
	ip link set lower up; ip link set upper up
	vrf=; ! ip link add probe type vrf table 9 2>/dev/null || vrf=vrf
	for network in bridge sbr silent macvlan $vrf; do sh -e life $network; done' | tee out
for network in sbr vrf; do
	! grep -q "^$network:" out || grep -q "^$network: CHECK says: .*Failed to find Gateway 192.168.77.1" out
done
for network in bridge silent macvlan; do grep -qx "$network: CHECK says: " out; done
grep -qx 'sbr: the gateway answers' out
echo "The kernel is $(uname -r)."
