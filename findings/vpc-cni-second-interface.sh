#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/aws/amazon-vpc-cni-k8s v1.23.2, the plugin aws-cni (Linux 6.18): pods with an interface on a second network card.
#
# A good guess: the name of the link on the node comes from a hash of the namespace, the pod's name and the number of the interface. So no two
# interfaces share a link, whatever the pods are called. If a name were taken, ADD would fail. CHECK fails for a pod that lost an interface.
#
# What happens: interface 1 of pod `web` has the same name on the node as the interface of pod `web.1`. A dot is valid in a pod's name. ADD of
# `web.1` deletes the link that has this name, whose ever it is, and succeeds: `web` loses its interface mNicIf1. In the other order, ADD of
# `web` takes the only interface of `web.1`. CHECK of the pod without the interface succeeds, because the plugin checks nothing. STATUS, too,
# succeeds while ADD fails because the daemon that gives addresses is not running. The plugin declares CNI 1.1.0, which has both commands.
# The script's daemon gives two addresses if a pod asks for a second card. The script needs root, Go and ip. A first build takes two minutes.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/vpc\n\ngo 1.26\n\nrequire github.com/aws/amazon-vpc-cni-k8s v1.23.2\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"context"
	"fmt"
	"net"

	pb "github.com/aws/amazon-vpc-cni-k8s/rpc"
	"google.golang.org/grpc"
)

type daemon struct{ pb.UnimplementedCNIBackendServer }

func (daemon) AddNetwork(_ context.Context, r *pb.AddNetworkRequest) (*pb.AddNetworkReply, error) {
	ips := []*pb.IPAllocationMetadata{{IPv4Addr: fmt.Sprint("10.0.1.", len(r.K8S_POD_NAME)), RouteTableId: 254}}
	if r.RequiresMultiNICAttachment {
		ips = append(ips, &pb.IPAllocationMetadata{IPv4Addr: "10.0.2.20", RouteTableId: 10100})
	}
	return &pb.AddNetworkReply{Success: true, IPAllocationMetadata: ips}, nil
}

func main() {
	l, _ := net.Listen("unix", "/run/aws-node/ipamd.sock")
	s := grpc.NewServer()
	pb.RegisterCNIBackendServer(s, daemon{})
	_ = s.Serve(l)
}
EOF
export CGO_ENABLED=0 GOFLAGS=-mod=mod AWS_VPC_K8S_CNI_LOG_FILE=stderr # and no file in /host
go build -o . . github.com/aws/amazon-vpc-cni-k8s/cmd/routed-eni-cni-plugin 2>/dev/null
go list -m github.com/aws/amazon-vpc-cni-k8s && uname -r >&2
cni() { # COMMAND POD
	local annotations='"k8s.amazonaws.com/nicConfig": "multi-nic-attachment"' known=''
	[ "$2" = web ] || annotations=''; [ "$1" != CHECK ] || known=', "prevResult": '$(cat "result-$2")
	CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=/run/netns/$2 CNI_IFNAME=eth0 CNI_PATH=$PWD CNI_ARGS="K8S_POD_NAMESPACE=default;K8S_POD_NAME=$2" \
		./routed-eni-cni-plugin >"${3:-/dev/null}" <<<'{"cniVersion": "1.1.0", "name": "aws-cni", "type": "aws-cni", "mtu": "9001", "pluginLogFile": "/dev/null",
		"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {'"$annotations}}$known}" && echo -n "$1 $2: success; " || echo -n "$1 $2: error; "
}
links() { echo "links of $1: $(ip -n "$1" -o link show type veth | grep -oP '^\d+: \K\w+' | sort | xargs)"; }
cases() {
	mount -t tmpfs none /run && mkdir -p /run/aws-node && ip link set lo up
	cni STATUS "$1" && cni ADD "$1" && echo 'no daemon'; ./vpc &
	until [ -S /run/aws-node/ipamd.sock ]; do sleep 0.1; done
	for pod in "$@"; do ip netns add "$pod" && cni ADD "$pod" "result-$pod" && links "$pod"; done
	cni CHECK "$1" && links "$1" && kill $!
}
export -f cni links cases
for order in 'web web.1' 'web.1 web'; do unshare --net --mount bash -euo pipefail -c "cases $order"; done | tee seen
diff - <(sed 's/ $//' seen) <<'EOF'
STATUS web: success; ADD web: error; no daemon
ADD web: success; links of web: eth0 mNicIf1
ADD web.1: success; links of web.1: eth0
CHECK web: success; links of web: eth0
STATUS web.1: success; ADD web.1: error; no daemon
ADD web.1: success; links of web.1: eth0
ADD web: success; links of web: eth0 mNicIf1
CHECK web.1: success; links of web.1:
EOF
