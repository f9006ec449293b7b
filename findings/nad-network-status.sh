#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/k8snetworkplumbingwg/network-attachment-definition-client v1.7.7, by which Multus writes a pod's network-status.
#
# A good guess: CreateNetworkStatuses takes any valid result of CNI. "gateway" has the gateways of default routes, and is absent if there is
# no such gateway. Each address is in a status. An address without an interface index is of the default interface. A result without
# "interfaces", as IPAM plugins and CNI 0.2.0 have it, gives one status without an interface's name.
#
# What happens: a default route without a gateway, as in a point-to-point or ipvlan L3 network, gives the gateway "<nil>". A route to
# 0.0.0.0/1, which is half of all addresses, counts as a default route. VPNs use such routes. Addresses without an index go to the last
# interface, although the first is the default interface. Without "interfaces" there is no status at all, and no error: the pod's annotation
# lacks the network and its addresses. The status of CreateNetworkStatus, the older call, has them. The script needs Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/status\n\ngo 1.26\n\nrequire github.com/k8snetworkplumbingwg/network-attachment-definition-client v1.7.7\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
)

func show(status any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(status)
	fmt.Printf("  %s", b.Bytes())
}

func main() {
	result, err := create.CreateFromBytes([]byte(os.Args[2]))
	if err != nil {
		panic(err)
	}
	all, err := utils.CreateNetworkStatuses(result, "net", true, nil)
	fmt.Printf("%s: statuses: %d, error: %v\n", os.Args[1], len(all), err)
	for _, s := range all {
		show(s)
	}
	if len(all) == 0 {
		one, err := utils.CreateNetworkStatus(result, "net", true, nil)
		fmt.Println("  CreateNetworkStatus, error:", err)
		show(one)
	}
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/k8snetworkplumbingwg/network-attachment-definition-client
go build -o probe .
eth0='{"name": "eth0", "sandbox": "/run/netns/pod"}' eth1='{"name": "eth1", "sandbox": "/run/netns/pod"}' ips='"ips": [{"address": "192.0.2.5/32"'
{
	./probe 'default route without a gateway' '{"cniVersion": "1.0.0", "interfaces": ['"$eth0"'], '"$ips"', "interface": 0}], "routes": [{"dst": "0.0.0.0/0"}]}'
	./probe 'half of all addresses' '{"cniVersion": "1.0.0", "interfaces": ['"$eth0"'], '"$ips"', "interface": 0}], "routes": [{"dst": "0.0.0.0/1", "gw": "192.0.2.1"}]}'
	./probe 'no index' '{"cniVersion": "1.0.0", "interfaces": ['"$eth0, $eth1"'], '"$ips"'}]}'
	./probe 'no interfaces' '{"cniVersion": "1.0.0", '"$ips"'}]}'
} | tee seen
diff - seen <<'EOF'
default route without a gateway: statuses: 1, error: <nil>
  {"name":"net","interface":"eth0","ips":["192.0.2.5"],"default":true,"dns":{},"gateway":["<nil>"]}
half of all addresses: statuses: 1, error: <nil>
  {"name":"net","interface":"eth0","ips":["192.0.2.5"],"default":true,"dns":{},"gateway":["192.0.2.1"]}
no index: statuses: 2, error: <nil>
  {"name":"net","interface":"eth0","default":true,"dns":{}}
  {"name":"net","interface":"eth1","ips":["192.0.2.5"],"dns":{}}
no interfaces: statuses: 0, error: <nil>
  CreateNetworkStatus, error: <nil>
  {"name":"net","ips":["192.0.2.5"],"default":true,"dns":{}}
EOF
