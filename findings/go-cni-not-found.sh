#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/containerd/go-cni v1.1.15, by which containerd and nerdctl call plugins: a failed DEL, and two links of one name.
#
# A good guess: a plugin's error in DEL reaches the caller of Remove, and the caller tries again, as the specification asks of runtimes.
# libcni, which the package uses, returns this error. In the result of Setup, an address is on the interface that the plugin has named for
# this address.
#
# What happens: Remove searches the error's text for "not found". Each error with these words counts as success, whatever the words are
# about. Here, the last plugin of a chain asks for another call. The first plugin of the chain has the address. It was not called yet, and
# is not called later, because Remove has returned nil. libcni's cache still has the pod. With the same error in other words, Remove fails.
# Setup puts all interfaces in a table by their names, without the namespace. A result may have `eth0` in the pod, and after it a link of
# the node with the same name, as with ipvlan and macvlan. Then both links are one entry, with the pod's address, the node's MAC address,
# and no namespace. In the other order, the entry has the pod's MAC address and namespace. Both orders are valid in CNI 1.1. The script
# needs root and Go.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && mkdir net plugins && printf 'module example.com/remove\n\ngo 1.26\n\nrequire github.com/containerd/go-cni v1.1.15\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"context"
	"fmt"

	"github.com/containerd/go-cni"
)

func main() {
	lib, err := cni.New(cni.WithMinNetworkCount(1), cni.WithPluginDir([]string{"plugins"}), cni.WithInterfacePrefix("eth"))
	if err == nil {
		err = lib.Load(cni.WithConfListFile("net/10-net.conflist"))
	}
	if err != nil {
		panic(err)
	}
	result, err := lib.Setup(context.Background(), "pod", "/run/netns/pod")
	if err != nil {
		panic(err)
	}
	for name, i := range result.Interfaces {
		fmt.Printf("Setup: %s %v %s %q\n", name, i.IPConfigs[0].IP, i.Mac, i.Sandbox)
	}
	fmt.Println("Remove:", lib.Remove(context.Background(), "pod", "/run/netns/pod"))
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/containerd/go-cni github.com/containernetworking/cni
go build -o probe .
echo '{"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "address"}, {"type": "link"}]}' >net/10-net.conflist
cat >plugins/address <<'EOF'
#!/bin/bash
echo "$CNI_COMMAND ${0##*/}" >>calls
pod='{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/pod"}' node='{"name": "eth0", "mac": "02:00:00:00:00:02"}'
links="$pod, $node" at=0
[ "$ORDER" = pod-first ] || { links="$node, $pod"; at=1; }
case $CNI_COMMAND-${0##*/} in
DEL-link) echo '{"cniVersion": "1.1.0", "code": 11, "msg": "'"$MESSAGE"'"}'; exit 1 ;;
ADD-*) echo '{"cniVersion": "1.1.0", "interfaces": ['"$links"'], "ips": [{"address": "192.0.2.1/24", "interface": '$at'}]}' ;;
esac
EOF
chmod +x plugins/address && cp plugins/address plugins/link
cases() {
	mount -t tmpfs none /var/lib
	ORDER=pod-first MESSAGE='the route table was not found, try again' ./probe
	echo "calls: $(grep DEL calls | tr '\n' ' '), cached: $(ls /var/lib/cni/results)" && rm calls
	ORDER=node-first MESSAGE='the route table is absent, try again' ./probe
}
export -f cases
unshare --net --mount bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
Setup: eth0 192.0.2.1 02:00:00:00:00:02 ""
Remove: <nil>
calls: DEL link , cached: net-pod-eth0
Setup: eth0 192.0.2.1 02:00:00:00:00:01 "/run/netns/pod"
Remove: plugin type="link" failed (delete): the route table is absent, try again
EOF
