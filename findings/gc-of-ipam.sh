#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# host-local with ptp, bridge, macvlan and ipvlan of containernetworking/plugins v1.10.0, cnitool v1.3.1: GC of a network.
#
# A good guess: host-local knows GC, and releases the addresses of attachments that are not valid. An interface's plugin delegates each
# command to its IPAM plugin, as the CNI specification says. So GC of a network releases the address of a pod whose runtime was killed
# between the ADD and the record of the result. If a plugin did not know GC, GC would fail and say so.
#
# What happens: GC of ptp, bridge, macvlan and ipvlan succeeds and does nothing. These plugins say that they support CNI 1.1.0, which has
# GC, but they do not execute host-local. The address stays reserved. The same call to host-local by hand, with the same configuration,
# releases the address. So with these plugins, no runtime can reach the new GC of host-local. libcni hides this: it sends a DEL for each
# attachment in its cache. An attachment is in the cache as soon as its ADD has succeeded, but not before. The script needs root, Go, jq and
# ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
plugins=github.com/containernetworking/plugins/plugins
for p in main/ptp main/bridge main/macvlan main/ipvlan ipam/host-local; do CGO_ENABLED=0 GOBIN=$dir/bin go install $plugins/$p@v1.10.0; done
CGO_ENABLED=0 GOBIN=$dir/bin go install github.com/containernetworking/cni/cnitool@v1.3.1

# life TYPE: ADD as a runtime that is killed before it records the result, GC by libcni, and GC by hand.
cat >life <<'EOF'
export CNI_PATH=$PWD/bin NETCONFPATH=$PWD
conf='{"cniVersion": "1.1.0", "name": "'$1'", "type": "'$1'", "master": "lower",
	"ipam": {"type": "host-local", "subnet": "192.168.77.0/24", "dataDir": "'$PWD'/data"}}'
jq -n "$conf | {cniVersion, name, plugins: [.]}" >"$1.conflist"
left() { (cd "data/$1" && echo 192.168.*); }
ip netns add "$1"
echo "$conf" | CNI_COMMAND=ADD CNI_CONTAINERID=killed CNI_NETNS=/run/netns/$1 CNI_IFNAME=eth0 "bin/$1" >/dev/null
bin/cnitool gc "$1" "/run/netns/$1" >said 2>&1 && echo "$1: cnitool gc succeeds, and leaves $(left "$1")"
echo "$conf" | jq '. + {"cni.dev/valid-attachments": []}' >gc
CNI_COMMAND=GC "bin/$1" <gc && echo "$1: GC succeeds, and leaves $(left "$1")"
CNI_COMMAND=GC bin/host-local <gc && echo "$1: GC of host-local succeeds, and leaves $(left "$1")"
EOF
# shellcheck disable=SC2016 # for the shell in the namespaces
unshare --net --mount sh -ec 'mount -t tmpfs run /run; mkdir -p /var/lib/cni; mount -t tmpfs cache /var/lib/cni
	ip link set lo up; ip link add lower type veth peer name upper; ip link set lower up; ip link set upper up
	ipvlan=; ! ip link add probe link lower type ipvlan 2>/dev/null || { ip link del probe; ipvlan=ipvlan; }
	for type in ptp bridge macvlan $ipvlan; do sh -e life $type; done' | tee out
for type in ptp bridge macvlan; do
	grep -qx "$type: cnitool gc succeeds, and leaves 192.168.77.2" out
	grep -qx "$type: GC succeeds, and leaves 192.168.77.2" out
	grep -qx "$type: GC of host-local succeeds, and leaves 192.168.\*" out
done
echo "The kernel is $(uname -r)."
