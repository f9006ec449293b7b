#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/apparentlymart/go-cidr v1.1.1 and k8s.io/utils/net of October 2026, with the address of a result that libcni v1.3.1 read.
#
# A good guess: libcni returns the address of a pod as a net.IPNet, such as 10.0.0.5/24. Functions that take a net.IPNet use its mask, so they
# compute the first and last address of 10.0.0.0/24, its neighbours, and its hosts.
#
# What happens: libcni's IPNet has an IPv4 address of 16 bytes and a mask of 4. go-cidr takes the length of the address from one of them, and
# that of the mask from the other. Its results are IPv6 addresses, without an error: the last address of 10.0.0.5/24 is
# 0:ff:ffff:ffff:ffff:ffff:ffff:ffff. A subnet of it is nil, with a nil error. VerifyNoOverlap says that 10.0.0.0/8 does not contain
# 10.0.0.0/24. The functions never mask the address: the first address is 10.0.0.5, and the one with number 1 is not 10.0.0.1. The same
# subnet from net.ParseCIDR is right, though both print as 10.0.0.0/24. GetIndexedIP of Kubernetes counts from the host's address, too: its
# number 7 is 10.0.0.12. The script needs Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/subnets\n\ngo 1.26\n\nrequire (\n\tgithub.com/apparentlymart/go-cidr v1.1.1\n\tgithub.com/containernetworking/cni v1.3.1\n\tk8s.io/utils v0.0.0-20261023123148-ca04ba58ecab\n)\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"encoding/json"
	"fmt"
	"net"

	"github.com/apparentlymart/go-cidr/cidr"
	types "github.com/containernetworking/cni/pkg/types/100"
	utils "k8s.io/utils/net"
)

func fromResult(address string) *net.IPNet {
	var result types.Result
	if err := json.Unmarshal([]byte(`{"cniVersion": "1.0.0", "ips": [{"address": "`+address+`"}]}`), &result); err != nil {
		panic(err)
	}
	return &result.IPs[0].Address
}

func look(from string, n *net.IPNet) {
	first, last := cidr.AddressRange(n)
	one, err := cidr.Host(n, 1)
	half, errHalf := cidr.Subnet(n, 1, 1)
	next, _ := cidr.NextSubnet(n, 24)
	_, all, _ := net.ParseCIDR("10.0.0.0/8")
	seven, _ := utils.GetIndexedIP(n, 7)
	fmt.Printf("%s %v, %d and %d bytes: range %v-%v, number 1 %v %v, half %v %v, next %v, overlap %v, Kubernetes' number 7 %v\n",
		from, n, len(n.IP), len(n.Mask), first, last, one, err, half, errHalf, next, cidr.VerifyNoOverlap([]*net.IPNet{n}, all), seven)
}

func main() {
	_, n, _ := net.ParseCIDR("10.0.0.5/24")
	look("ParseCIDR", n)
	look("result", fromResult("10.0.0.0/24"))
	look("result", fromResult("10.0.0.5/24"))
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/apparentlymart/go-cidr github.com/containernetworking/cni k8s.io/utils && go build -o probe .
./probe | tee seen
diff - seen <<'EOF'
ParseCIDR 10.0.0.0/24, 4 and 4 bytes: range 10.0.0.0-10.0.0.255, number 1 10.0.0.1 <nil>, half 10.0.0.128/25 <nil>, next 10.0.1.0/24, overlap <nil>, Kubernetes' number 7 10.0.0.7
result 10.0.0.0/24, 16 and 4 bytes: range 10.0.0.0-0:ff:ffff:ffff:ffff:ffff:ffff:ffff, number 1 0:1::ffff:a00:0 <nil>, half <nil> <nil>, next 0:100::/24, overlap 10.0.0.0/8 does not fully contain 10.0.0.0/24, Kubernetes' number 7 10.0.0.7
result 10.0.0.5/24, 16 and 4 bytes: range 10.0.0.5-0:ff:ffff:ffff:ffff:ffff:ffff:ffff, number 1 0:1::ffff:a00:5 <nil>, half <nil> <nil>, next 0:100::/24, overlap 10.0.0.0/8 does not fully contain 10.0.0.5/24, Kubernetes' number 7 10.0.0.12
EOF
