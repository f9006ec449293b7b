#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/containernetworking/cni v1.3.1 (libcni, by cnitool): which parts of a plugin's entry in a conflist reach the plugin.
#
# A good guess: `runtimeConfig` and `prevResult` are for the runtime to fill in. So libcni removes what a conflist has under these keys, or
# refuses the conflist. If it passes these keys on, as it does with each key that it does not know, it adds the runtime's capabilities to
# those of the file. And the plugin gets the numbers of the file.
#
# What happens: both keys of the file reach the plugin, and no message says so. The first plugin of ADD, which has no result before it, gets
# the `prevResult` of the file. `runtimeConfig` of the file is in force for a pod that asks for no capability of this plugin. For a pod that
# asks for a capability, such as a host port, all of `runtimeConfig` is replaced: the MAC address in the file is gone, too. So pods of one
# network differ by the capabilities for which they ask. A capability that the plugin does not declare changes nothing. A number beyond 2^53
# reaches the plugin as another number: libcni reads and writes the entry as floating point. The greatest uint64 becomes a number that no
# uint64 can hold. The script needs root and Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
GOBIN=$dir go install github.com/containernetworking/cni/cnitool@v1.3.1
go version -m cnitool | grep -o 'containernetworking/cni.v[^ ]*' | cut -f 1,2
mkdir net
cat >net/10-net.conflist <<'EOF'
{"cniVersion": "1.0.0", "name": "net", "plugins": [{
	"type": "dump", "capabilities": {"portMappings": true}, "runtimeConfig": {"mac": "02:00:00:00:00:01"},
	"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "192.0.2.7/24"}]}, "odd": 9007199254740993, "most": 18446744073709551615
}]}
EOF
cat >dump <<'EOF'
#!/bin/sh
cat >entry
echo '{"cniVersion": "1.0.0", "ips": [{"address": "192.0.2.1/24"}]}'
EOF
chmod +x dump
cases() {
	mount -t tmpfs none /var/lib && touch pod && unshare --net=pod true
	for asked in '' '{"mac": "02:00:00:00:00:02"}' '{"portMappings": [{"hostPort": 80}]}'; do
		echo "asked for: $asked"
		CAP_ARGS=$asked CNI_PATH=$PWD NETCONFPATH=$PWD/net ./cnitool add net "$PWD/pod" >/dev/null
		grep -Eo '"(most|odd)":[^,]*|"prevResult":[^]]*|"runtimeConfig":[^]}]*' entry
	done
}
export -f cases
unshare --net --mount bash -euo pipefail -c cases | sed "s/ $//" | tee seen
diff - seen <<'EOF'
asked for:
"most":18446744073709552000
"odd":9007199254740992
"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"192.0.2.7/24"}
"runtimeConfig":{"mac":"02:00:00:00:00:01"
asked for: {"mac": "02:00:00:00:00:02"}
"most":18446744073709552000
"odd":9007199254740992
"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"192.0.2.7/24"}
"runtimeConfig":{"mac":"02:00:00:00:00:01"
asked for: {"portMappings": [{"hostPort": 80}]}
"most":18446744073709552000
"odd":9007199254740992
"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"192.0.2.7/24"}
"runtimeConfig":{"portMappings":[{"hostPort":80
EOF
