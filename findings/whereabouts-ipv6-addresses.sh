#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# whereabouts v0.9.2, an IPAM plugin for whole clusters: which IPv6 addresses it keeps for pods.
#
# A good guess: the plugin stores each address in the pool of its range, and no other pod gets the address. DEL of the pod frees it. A range
# of IPv6 may be as large as a subnet or larger, and `range_start` may be any address in it.
#
# What happens: the pool stores the distance of an address from the start of its range, as a number of 64 bits. The plugin reads the number
# again with a sign. So from the middle of a /64 on, where the last 64 bits begin with 8 or more, it ignores its own entry. In a larger
# range such as a /48, the upper bits are lost, and the entry is read as another address. So the next pod gets the same address, and DEL of
# either pod frees no address, or another one. If `enable_overlapping_ranges` is true, a second store of whole addresses keeps pods
# apart. But DEL then leaves the address in this store for ever. This was seen with a fake client, and takes longer than this script. The
# script runs the plugin's assignment, and its two functions between the list of addresses and the pool. It needs Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/pools\n\ngo 1.26\n\nrequire github.com/k8snetworkplumbingwg/whereabouts v0.9.2\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"

	"github.com/k8snetworkplumbingwg/whereabouts/pkg/allocate"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/types"
)

func try(subnet, start string) {
	_, first, _ := net.ParseCIDR(subnet)
	config := types.RangeConfiguration{Range: subnet, RangeStart: net.ParseIP(start)}
	pool := stored{} // what the plugin writes to the API server, and reads from it
	fmt.Printf("%s from %s:", subnet, start)
	for _, pod := range []string{"a", "b"} {
		ip, list, err := allocate.AssignIP(config, toIPReservationList(pool, first.IP), pod, "ns/"+pod, "net1")
		if err != nil {
			panic(err)
		}
		if pool, err = toAllocationMap(list, first.IP); err != nil {
			panic(err)
		}
		fmt.Printf(" ADD of %s %v, in the pool %d.", pod, ip.IP, len(pool))
	}
	for _, pod := range []string{"a", "b"} {
		_, ip := allocate.DeallocateIP(toIPReservationList(pool, first.IP), pod, "net1")
		fmt.Printf(" DEL of %s frees %v.", pod, ip)
	}
	fmt.Println()
}

func main() {
	try("10.0.0.0/16", "10.0.128.9")
	try("fd00::/64", "fd00::7fff:0:0:9")
	try("fd00::/64", "fd00::8000:0:0:9")
	try("fd00::/48", "fd00:0:0:7::9")
}
EOF
plugin=$(go mod download -json github.com/k8snetworkplumbingwg/whereabouts@v0.9.2 | sed -n 's/.*"Dir": "\(.*\)",/\1/p')
{
	printf 'package main\n\nimport (\n\t"fmt"\n\t"net"\n\t"strconv"\n\n\t"github.com/k8snetworkplumbingwg/whereabouts/pkg/iphelpers"\n'
	printf '\t"github.com/k8snetworkplumbingwg/whereabouts/pkg/logging"\n\twhereaboutstypes "github.com/k8snetworkplumbingwg/whereabouts/pkg/types"\n'
	printf '\twhereaboutsv1alpha1 "github.com/k8snetworkplumbingwg/whereabouts/pkg/api/whereabouts.cni.cncf.io/v1alpha1"\n)\n\n'
	printf 'type stored = map[string]whereaboutsv1alpha1.IPAllocation\n\n'
	sed -n '/^func toIPReservationList/,/^}/p; /^func toAllocationMap/,/^}/p' "$plugin/pkg/storage/kubernetes/ipam.go"
} >pool.go
go mod tidy >/dev/null 2>&1 && go list -m github.com/k8snetworkplumbingwg/whereabouts && CGO_ENABLED=0 go build -o probe .
./probe 2>/dev/null | tee seen
diff - seen <<'EOF'
10.0.0.0/16 from 10.0.128.9: ADD of a 10.0.128.9, in the pool 1. ADD of b 10.0.128.10, in the pool 2. DEL of a frees 10.0.128.9. DEL of b frees 10.0.128.10.
fd00::/64 from fd00::7fff:0:0:9: ADD of a fd00::7fff:0:0:9, in the pool 1. ADD of b fd00::7fff:0:0:a, in the pool 2. DEL of a frees fd00::7fff:0:0:9. DEL of b frees fd00::7fff:0:0:a.
fd00::/64 from fd00::8000:0:0:9: ADD of a fd00::8000:0:0:9, in the pool 1. ADD of b fd00::8000:0:0:9, in the pool 1. DEL of a frees <nil>. DEL of b frees <nil>.
fd00::/48 from fd00:0:0:7::9: ADD of a fd00:0:0:7::9, in the pool 1. ADD of b fd00:0:0:7::9, in the pool 1. DEL of a frees <nil>. DEL of b frees fd00::9.
EOF
