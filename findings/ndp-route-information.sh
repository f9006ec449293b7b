#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# mdlayher/ndp v1.1.0: routes in a router advertisement (RouteInformation). The receivers are the library and the kernel (Linux 6.18).
#
# A good guess: the library writes and reads each prefix length from 0 to 128. A program that reads an advertisement with it sees the same
# routes as the kernel. If the library does not support a length, it returns an error.
#
# What happens: the library writes all prefixes right. It reads only whole bytes of a prefix, so up to seven bits at its end become zero, if
# the length is not a multiple of 8. The length stays, and there is no error. So two neighbouring /60 become one and the same /60, which may
# be a third network. In AWS, VPCs and subnets have such lengths: a /44, /52 or /60. Lengths such as /48, /56, /64 and the /80 of an ENI
# are right, so few tests show it. The kernel makes the right routes. The script needs root, Go and ip.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.org/try\n\ngo 1.25\n\nrequire github.com/mdlayher/ndp v1.1.0\n' >go.mod
cat >main.go <<'END'
package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/ndp"
)

func must[T any](value T, err error) T {
	if err != nil { panic(err) }
	return value
}

func main() {
	all := netip.MustParseAddr("ff02::1")
	router, _, err := ndp.Listen(must(net.InterfaceByName("router")), ndp.LinkLocal)
	host, _, err2 := ndp.Listen(must(net.InterfaceByName("host")), ndp.LinkLocal)
	must(must(0, err), err2)
	must(0, host.JoinGroup(all))
	var ra ndp.RouterAdvertisement
	for _, text := range os.Args[1:] {
		prefix := netip.MustParsePrefix(text)
		ra.Options = append(ra.Options, &ndp.RouteInformation{Prefix: prefix.Addr(), PrefixLength: uint8(prefix.Bits()), RouteLifetime: time.Hour})
	}
	must(0, router.WriteTo(&ra, nil, all))
	must(0, host.SetReadDeadline(time.Now().Add(9*time.Second)))
	message, _, _, err := host.ReadFrom()
	for i, option := range must(message, err).(*ndp.RouterAdvertisement).Options {
		route := option.(*ndp.RouteInformation)
		fmt.Printf("%s: %s/%d\n", os.Args[1+i], route.Prefix, route.PrefixLength)
	}
}
END
CGO_ENABLED=0 GOFLAGS=-mod=mod go build -o try . 2>/dev/null
go version -m try | grep -oE 'mdlayher/ndp\sv[0-9.]+' | tr '\t' ' ' && uname -r
cases() {
	ip link add router type veth peer name host
	echo 2 >/proc/sys/net/ipv6/conf/host/accept_ra && echo 128 >/proc/sys/net/ipv6/conf/host/accept_ra_rt_info_max_plen
	for link in host router; do echo 0 >"/proc/sys/net/ipv6/conf/$link/accept_dad" && ip link set "$link" up; done
	sleep 3
	./try 2001:db8:20::/44 2001:db8:1:5000::/52 2001:db8:2:60{50,60}::/60 2001:db8:1:a000::fffc/126 2001:db8:1:9000:5::/80
	sleep 1
	echo "kernel: $(ip -6 route show dev host proto ra | sed 's/ .*//' | paste -sd ' ')"
}
export -f cases
unshare --net bash -euo pipefail -c cases | tee seen
diff - seen <<'END'
2001:db8:20::/44: 2001:db8::/44
2001:db8:1:5000::/52: 2001:db8:1::/52
2001:db8:2:6050::/60: 2001:db8:2:6000::/60
2001:db8:2:6060::/60: 2001:db8:2:6000::/60
2001:db8:1:a000::fffc/126: 2001:db8:1:a000::ff00/126
2001:db8:1:9000:5::/80: 2001:db8:1:9000:5::/80
kernel: 2001:db8:1:5000::/52 2001:db8:1:9000:5::/80 2001:db8:1:a000::fffc/126 2001:db8:2:6050::/60 2001:db8:2:6060::/60 2001:db8:20::/44
END
