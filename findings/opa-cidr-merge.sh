#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/open-policy-agent/opa v1.22.4: net.cidr_merge for a list of addresses, such as those of an ENI or of pods.
#
# A good guess: the function is for "IP addresses and subnets", and returns the smallest list of subnets with the same addresses. So an
# address without a prefix length counts as a /32, as it does for net.cidr_contains, and as for each list of addresses in AWS or Kubernetes.
# Two neighbouring addresses give a /31, or two /32.
#
# What happens: an address gets the mask of its class, from the time before subnets had prefix lengths. Two pods of 10.0.0.0/8 give the whole
# 10.0.0.0/8, that is 16 million addresses. A pod of 172.31.0.0/16 gives a /16, and one of 192.168.0.0/16 a /24. A single address
# keeps its host bits, as 10.0.1.5/8, which is no subnet. With /32 behind each address, all is right. The function returns no error, except
# for an IPv6 address without a prefix length. The script needs Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/merge\n\ngo 1.26\n\nrequire github.com/open-policy-agent/opa v1.22.4\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/open-policy-agent/opa/v1/rego"
)

func main() {
	for _, query := range os.Args[1:] {
		results, err := rego.New(rego.Query(query)).Eval(context.Background())
		if err != nil || len(results) == 0 {
			fmt.Println(query, "is undefined", err)
			continue
		}
		fmt.Println(query, "=", results[0].Expressions[0].Value)
	}
}
EOF
export CGO_ENABLED=0 GOFLAGS=-mod=mod
go build -o probe . 2>/dev/null && go list -m github.com/open-policy-agent/opa
./probe 'net.cidr_merge(["10.0.1.4", "10.0.1.5"])' 'net.cidr_merge(["10.0.1.4/32", "10.0.1.5/32"])' 'net.cidr_merge(["10.0.1.5"])' \
	'net.cidr_merge(["10.0.1.5", "10.200.0.0/24"])' 'net.cidr_merge(["172.31.0.9", "172.31.5.0/24"])' \
	'net.cidr_merge(["100.64.0.9", "100.64.0.10"])' 'net.cidr_merge(["169.254.20.10", "169.254.20.11"])' \
	'net.cidr_merge(["192.168.1.5", "192.168.1.6"])' 'net.cidr_contains("10.0.1.0/24", "10.0.1.5")' \
	'net.cidr_merge(["2001:db8::1"])' 'net.cidr_merge(["2001:db8::2/128", "2001:db8::3/128"])' | tee seen
diff - seen <<'EOF'
net.cidr_merge(["10.0.1.4", "10.0.1.5"]) = [10.0.0.0/8]
net.cidr_merge(["10.0.1.4/32", "10.0.1.5/32"]) = [10.0.1.4/31]
net.cidr_merge(["10.0.1.5"]) = [10.0.1.5/8]
net.cidr_merge(["10.0.1.5", "10.200.0.0/24"]) = [10.0.0.0/8]
net.cidr_merge(["172.31.0.9", "172.31.5.0/24"]) = [172.31.0.0/16]
net.cidr_merge(["100.64.0.9", "100.64.0.10"]) = [100.0.0.0/8]
net.cidr_merge(["169.254.20.10", "169.254.20.11"]) = [169.254.0.0/16]
net.cidr_merge(["192.168.1.5", "192.168.1.6"]) = [192.168.1.0/24]
net.cidr_contains("10.0.1.0/24", "10.0.1.5") = true
net.cidr_merge(["2001:db8::1"]) is undefined <nil>
net.cidr_merge(["2001:db8::2/128", "2001:db8::3/128"]) = [2001:db8::2/127]
EOF
