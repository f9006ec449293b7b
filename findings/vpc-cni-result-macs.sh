#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# amazon-vpc-cni-k8s v1.23.2, network-attachment-definition-client v1.7.7, tuning v1.10.0: MAC addresses in a result (Linux 6.18).
#
# A good guess: "mac" of an interface is its MAC address, or absent. "sandbox" is the path of a namespace, or absent for a link of the node. A
# result lists links that exist. A later plugin of the list may change the MAC address of an interface and, with it, "mac".
#
# What happens: "mac" of a pod's interface is the number of the node's routing table for the pod. A third interface, dummy..., does not exist:
# its "sandbox" is the device number of the ENI, its "mac" the VLAN of the pod. So the library by which Multus writes a pod's network-status lists
# two interfaces, with the MAC addresses "2" and "0". DEL reads the numbers again while the plugin's daemon is not running. If `tuning` has set a
# MAC address, DEL succeeds, but leaves the pod's policy rules on the node. The script needs root, Go and ip. A first build takes two minutes.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && export AWS_VPC_K8S_CNI_LOG_FILE=stderr CGO_ENABLED=0 GOFLAGS=-mod=mod GOBIN=$dir CNI_PATH=$dir NETCONFPATH=$dir
cat >main.go <<'EOF'
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/aws/amazon-vpc-cni-k8s/rpc"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
	"google.golang.org/grpc"
)

type daemon struct{ rpc.UnimplementedCNIBackendServer }

func (daemon) AddNetwork(_ context.Context, r *rpc.AddNetworkRequest) (*rpc.AddNetworkReply, error) {
	ips := []*rpc.IPAllocationMetadata{{IPv4Addr: fmt.Sprint("10.0.1.", len(r.K8S_POD_NAME)), DeviceNumber: 1, RouteTableId: 2}}
	return &rpc.AddNetworkReply{Success: true, IPAllocationMetadata: ips}, nil
}

func main() {
	if len(os.Args) > 1 {
		result, _ := create.CreateFromBytes([]byte(os.Args[1]))
		all, _ := utils.CreateNetworkStatuses(result, "aws-cni", true, nil)
		for _, s := range all {
			fmt.Printf("  status of %.5s: mac %s, addresses %v\n", s.Interface, s.Mac, s.IPs)
		}
		return
	}
	l, _ := net.Listen("unix", "/run/aws-node/ipamd.sock")
	s := grpc.NewServer()
	rpc.RegisterCNIBackendServer(s, daemon{})
	_ = s.Serve(l)
}
EOF
aws=github.com/aws/amazon-vpc-cni-k8s library=github.com/k8snetworkplumbingwg/network-attachment-definition-client
{ go mod init example.com/vpc && go get $aws@v1.23.2 $library@v1.7.7 && go install . $aws/cmd/routed-eni-cni-plugin; } 2>/dev/null
go install github.com/containernetworking/plugins/plugins/meta/tuning@v1.10.0 && go install github.com/containernetworking/cni/cnitool@v1.3.1
go list -m $aws $library && uname -r >&2
cni() { CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=$2" ./cnitool "$1" "$2" "/run/netns/$2"; }
cases() {
	local pod aws='{"type": "routed-eni-cni-plugin", "mtu": "9001", "pluginLogFile": "/dev/null"}' more=', {"type": "tuning", "mac": "02:00:00:00:00:05"}'
	mount -t tmpfs none /run && mount -t tmpfs none /var/lib && mkdir -p /run/aws-node && ip link set lo up
	./vpc & until [ -S /run/aws-node/ipamd.sock ]; do sleep 0.1; done
	for pod in tuned web; do
		echo '{"cniVersion": "1.0.0", "name": "'$pod'", "plugins": ['"$aws$more"']}' >$pod.conflist && more=''
		ip netns add $pod && cni add $pod >result && echo "$pod: $(tr -d ' \n' <result | grep -oP '"(mac|sandbox)":"[^/][^"]*"' | xargs)"
	done && ./vpc "$(cat result)" && kill $! && until ! [ -d /proc/$! ]; do sleep 0.1; done
	for pod in web tuned; do cni del $pod && echo "DEL of $pod: success; rules: $(ip rule | grep "10.0.1.${#pod} " | cut -f 2 | sort | xargs)"; done
}
export -f cni cases && unshare --net --mount bash -euo pipefail -c cases 2>/dev/null | tee seen
diff - <(sed 's/ $//' seen) <<'EOF'
tuned: mac:02:00:00:00:00:05 mac:0 sandbox:1
web: mac:2 mac:0 sandbox:1
  status of eth0: mac 2, addresses [10.0.1.3]
  status of dummy: mac 0, addresses []
DEL of web: success; rules:
DEL of tuned: success; rules: from 10.0.1.5 lookup 2 from all to 10.0.1.5 lookup main
EOF
