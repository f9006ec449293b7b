#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# bandwidth of containernetworking/plugins v1.10.0 (Linux 6.18): two interfaces of one pod in one network.
#
# A good guess: an attachment is a network, a container and an interface, as the specification of CNI says. So each interface has limits of
# its own. DEL of one interface leaves the other as it is, as with each plugin of an interface.
#
# What happens: the name of the ifb device is made of the network and the container, without the interface. ADD with an egress limit fails
# for the second interface: "adding link: file exists". A runtime that then cleans up by DEL of this interface removes the ifb device of the
# first interface. The filter of that interface still redirects to the device, so the kernel drops each packet of the pod there. DEL
# succeeds. The same happens if the second interface has no limit at all, and is removed while the pod runs. The script needs root, Go,
# ip(8) and ping(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
CGO_ENABLED=0 GOBIN=$dir go install github.com/containernetworking/plugins/plugins/meta/bandwidth@v1.10.0
go version -m bandwidth | grep -oE 'plugins\sv[0-9.]+' | tr '\t' ' '
cat >case <<'EOF'
mount -t tmpfs run /run && ip netns add pod && ip link set lo up
for i in 1 2; do
	ip link add host$i type veth peer name net$i netns pod && ip link set host$i up && ip addr add 10.0.$i.1/24 dev host$i
	ip -n pod link set net$i up && ip -n pod addr add 10.0.$i.5/24 dev net$i
done
# call COMMAND INTERFACE CONFIGURATION: prints the error, or nothing, and what ping by both interfaces gets.
call() {
	local i
	echo -n "$1 net$2 {$3}: "
	CNI_COMMAND=$1 CNI_CONTAINERID=c CNI_NETNS=/run/netns/pod CNI_IFNAME=net$2 CNI_PATH=. ./bandwidth >said <<END || grep -o '"msg.*"' said | tr '\n' ' '
{"cniVersion": "1.0.0", "name": "n", "type": "bandwidth", "runtimeConfig": {$3}, "prevResult": {"cniVersion": "1.0.0",
"interfaces": [{"name": "host$2"}, {"name": "net$2", "sandbox": "/run/netns/pod"}], "ips": [{"interface": 1, "address": "10.0.$2.5/24"}]}}
END
	for i in 1 2; do ip netns exec pod ping -c 2 -i 0.2 -W 2 -I net$i 10.0.$i.1 | grep -o '[0-9] received' || :; done | tr '\n' ' ' | sed 's/ $/; /'
	echo "ifb devices: $(ip -br link show type ifb | wc -l)"
}
limit='"bandwidth": {"egressRate": 8000000, "egressBurst": 800000}'
[ "$1" = limit ] && second=$limit || second=
call ADD 1 "$limit" && call ADD 2 "$second" && call DEL 2 "$second" && call CHECK 1 "$limit"
EOF
for second in limit none; do unshare --net --mount bash -euo pipefail case $second; done | sed 's/"bandwidth.*}}/limit}/; s/ $//' | tee seen
diff - seen <<'EOF'
ADD net1 {limit}: 2 received 2 received; ifb devices: 1
ADD net2 {limit}: "msg": "adding link: file exists" 2 received 2 received; ifb devices: 1
DEL net2 {limit}: 0 received 2 received; ifb devices: 0
CHECK net1 {limit}: "msg": "get ifb device: Link not found" 0 received 2 received; ifb devices: 0
ADD net1 {limit}: 2 received 2 received; ifb devices: 1
ADD net2 {}: 2 received 2 received; ifb devices: 1
DEL net2 {}: 0 received 2 received; ifb devices: 0
CHECK net1 {limit}: "msg": "get ifb device: Link not found" 0 received 2 received; ifb devices: 0
EOF
