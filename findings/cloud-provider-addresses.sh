#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# k8s.io/cloud-provider-aws v1.37.1, AWS's cloud controller, which writes a node's addresses. The pods have secondary addresses of its ENIs.
#
# A good guess: the node gets the primary address of each ENI. Secondary addresses are for pods, as with AWS's own CNI plugin. For IPv6, the
# node gets the address that EC2 marks as primary.
#
# What happens: each secondary IPv4 address becomes an InternalIP of the node. So the node's status changes with its pods, and its readers
# take the pods for the node. For IPv6, the first address in EC2's list counts, whatever EC2 marks. It can be a pod's. If the
# kubelet has `--node-ip`, the controller keeps only this address. But if this is an IPv6 address, and EC2 lists another one first, the
# controller finds no addresses at all, and reports an error. The script needs Go. It runs the library's two functions from
# EC2's answer to the node's addresses, and the function that looks for `--node-ip`.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && echo k8s.io/cloud-provider-aws v1.37.1
printf 'module example.com/nodes\n\ngo 1.26\n\nrequire (\n\tgithub.com/aws/aws-sdk-go-v2/service/ec2 v1.346.0\n\tk8s.io/cloud-provider v0.37.2\n)\n' >go.mod
source=$(go mod download -json k8s.io/cloud-provider-aws@v1.37.1 | sed -n 's/.*"Dir": "\(.*\)",/\1/p')
{
	printf 'package main\nimport (\n\t"fmt"\n\t"net"\n\t"sort"\n\n\t"github.com/aws/aws-sdk-go-v2/aws"\n'
	printf '\tec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"\n\tv1 "k8s.io/api/core/v1"\n\tnetutils "k8s.io/utils/net"\n)\n'
	sed -n '/^func extractIPv[46]NodeAddresses/,/^}/p' "$source/pkg/providers/v1/aws.go"
} >addresses.go
cat >main.go <<'END'
package main

import (
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"k8s.io/cloud-provider/node/helpers"
)

func eni(index int32, v6 []string, v4 ...string) types.InstanceNetworkInterface {
	eni := types.InstanceNetworkInterface{Status: "in-use", Attachment: &types.InstanceNetworkInterfaceAttachment{DeviceIndex: &index}}
	for i := range v4 {
		eni.PrivateIpAddresses = append(eni.PrivateIpAddresses, types.InstancePrivateIpAddress{PrivateIpAddress: &v4[i], Primary: aws.Bool(i == 0)})
	}
	for i := range v6 { // the last is the node's
		eni.Ipv6Addresses = append(eni.Ipv6Addresses, types.InstanceIpv6Address{Ipv6Address: &v6[i], IsPrimaryIpv6: aws.Bool(i == len(v6)-1)})
	}
	return eni
}

func show(what string, enis ...types.InstanceNetworkInterface) {
	list, err := extractIPv4NodeAddresses(&types.Instance{NetworkInterfaces: enis})
	v6, err6 := extractIPv6NodeAddresses(&types.Instance{NetworkInterfaces: enis})
	list = append(list, v6...)
	fmt.Print(what, " ", list, err, err6)
	for _, ip := range []string{"10.0.1.10", "10.0.1.10,2001:db8::10"} {
		list, err := helpers.GetNodeAddressesFromNodeIP(ip, list)
		fmt.Print("; with --node-ip=", ip, " ", list, err)
	}
	fmt.Println()
}

func main() {
	show("no pods:", eni(0, []string{"2001:db8::10"}, "10.0.1.10"))
	show("two pods:", eni(0, []string{"2001:db8::20", "2001:db8::10"}, "10.0.1.10", "10.0.1.20"), eni(1, nil, "10.0.1.30", "10.0.1.31"))
}
END
go mod tidy >/dev/null 2>&1 && CGO_ENABLED=0 go build -o probe . && ./probe | sed 's/ *<nil>//g' | tee seen
diff - seen <<'END'
no pods: [{InternalIP 10.0.1.10} {InternalIP 2001:db8::10}]; with --node-ip=10.0.1.10 [{InternalIP 10.0.1.10}]; with --node-ip=10.0.1.10,2001:db8::10 [{InternalIP 10.0.1.10} {InternalIP 2001:db8::10}]
two pods: [{InternalIP 10.0.1.10} {InternalIP 10.0.1.20} {InternalIP 10.0.1.30} {InternalIP 10.0.1.31} {InternalIP 2001:db8::20}]; with --node-ip=10.0.1.10 [{InternalIP 10.0.1.10}]; with --node-ip=10.0.1.10,2001:db8::10 [] failed to get node address from cloud provider that matches ip: 2001:db8::10
END
