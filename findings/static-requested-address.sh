#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# static and bridge of containernetworking/plugins v1.10.0 (Linux 6.18): a pod asks for an address, and CHECK.
#
# A good guess: the address that a pod asks for takes the place of the one in the conflist, by each of the three ways to ask. The gateway of
# the conflist stays, as it is in the same subnet, and GATEWAY of CNI_ARGS replaces it. CHECK fails for a pod without the address.
#
# What happens: `ips` of runtimeConfig or of args replaces the address, and removes its gateway. Then GATEWAY of CNI_ARGS does nothing. ADD
# succeeds, and the pod's default route has no gateway, as if each address were on the link. IP of CNI_ARGS replaces nothing: the pod gets
# both addresses, and no error says so. With this way, GATEWAY is for the second address, and the default route stays as it was. CHECK of
# static compares gateways of addresses that it finds. If the result has other addresses, or none at all, CHECK succeeds. The script needs
# root, Go and ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
for p in main/bridge ipam/static; do CGO_ENABLED=0 GOBIN=$dir go install github.com/containernetworking/plugins/plugins/$p@v1.10.0; done
go version -m bridge | grep -oE 'plugins\sv[0-9.]+' | tr '\t' ' '
cat >case <<'EOF'
mount -t tmpfs run /run
# run PLUGIN COMMAND CNI_ARGS KEYS
run() {
	CNI_COMMAND=$2 CNI_ARGS=$3 CNI_CONTAINERID=c CNI_NETNS=/run/netns/pod CNI_IFNAME=eth0 CNI_PATH=$PWD ./$1 <<END
{"cniVersion": "1.0.0", "name": "n", "type": "bridge", "bridge": "br0", $4
"ipam": {"type": "static", "routes": [{"dst": "0.0.0.0/0"}], "addresses": [{"address": "10.0.1.5/24", "gateway": "10.0.1.1"}]}}
END
}
# add CNI_ARGS KEYS: what a new pod gets.
add() {
	ip netns add pod && run bridge ADD "$@" >/dev/null
	echo "ADD ${1#*;} $2 -> $(ip -n pod -4 -o addr show dev eth0 | grep -o '10[^ ]*/24' | tr '\n' ' ' | sed 's/ $//'), $(ip -n pod route show default)"
	run bridge DEL "$@" && ip netns del pod
}
ips='["10.0.1.7/24"]'
add '' ''
add '' "\"runtimeConfig\": {\"ips\": $ips}," && add '' "\"args\": {\"cni\": {\"ips\": $ips}},"
add 'IgnoreUnknown=1;GATEWAY=10.0.1.9' "\"runtimeConfig\": {\"ips\": $ips},"
add 'IgnoreUnknown=1;IP=10.0.1.7/24' '' && add 'IgnoreUnknown=1;IP=10.0.1.7/24;GATEWAY=10.0.1.9' ''
for result in '{"address": "10.0.1.5/24", "gateway": "10.0.1.2"}' '{"address": "10.0.1.99/24"}' ''; do
	run static CHECK '' '"prevResult": {"cniVersion": "1.0.0", "ips": ['"$result"']},' >/dev/null && said=success || said=failure
	echo "CHECK $result: $said"
done
EOF
unshare --net --mount bash -euo pipefail case | sed -E 's/ +/ /g; s/ $//' | tee seen
diff - seen <<'EOF'
ADD -> 10.0.1.5/24, default via 10.0.1.1 dev eth0
ADD "runtimeConfig": {"ips": ["10.0.1.7/24"]}, -> 10.0.1.7/24, default dev eth0
ADD "args": {"cni": {"ips": ["10.0.1.7/24"]}}, -> 10.0.1.7/24, default dev eth0
ADD GATEWAY=10.0.1.9 "runtimeConfig": {"ips": ["10.0.1.7/24"]}, -> 10.0.1.7/24, default dev eth0
ADD IP=10.0.1.7/24 -> 10.0.1.5/24 10.0.1.7/24, default via 10.0.1.1 dev eth0
ADD IP=10.0.1.7/24;GATEWAY=10.0.1.9 -> 10.0.1.5/24 10.0.1.7/24, default via 10.0.1.1 dev eth0
CHECK {"address": "10.0.1.5/24", "gateway": "10.0.1.2"}: failure
CHECK {"address": "10.0.1.99/24"}: success
CHECK : success
EOF
