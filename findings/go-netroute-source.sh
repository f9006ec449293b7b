#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/libp2p/go-netroute v0.4.0: RouteWithSrc, on a node whose rules choose a table by the source.
#
# A good guess: since v0.4.0 the package asks the kernel. RouteWithSrc then returns what `ip route get DESTINATION from SOURCE` shows: the
# interface and the gateway of the ENI that has the source. For Go, 16 bytes and 4 bytes can be the same IPv4 address: net.ParseIP returns
# 16 bytes, and Equal compares both forms as equal. Package netroute itself shortens the destination to 4 bytes.
#
# What happens: the package does not shorten the source. So the first four bytes of the sixteen, which are zero, reach the kernel as the
# source. The kernel then routes as if there were no source: by another ENI, with another source, and without an error. After To4, the
# answer is right. With IPv6, it is right, too. An ENI of EC2 drops packets with the address of another ENI. If the machine does not have
# the source, the kernel returns an error. The package returns this error only after To4. The script needs root, Go and ip(8).
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/source\n\ngo 1.26\n\nrequire github.com/libp2p/go-netroute v0.4.0\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"
	"os"

	"github.com/libp2p/go-netroute"
)

func main() {
	r, err := netroute.New()
	if err != nil {
		panic(err)
	}
	source, destination := net.ParseIP(os.Args[1]), net.ParseIP(os.Args[2])
	ask := func(form string, source net.IP) {
		link, gateway, from, err := r.RouteWithSrc(nil, source, destination)
		name := "no interface"
		if link != nil {
			name = link.Name
		}
		fmt.Printf("  %s, %d bytes: %s via %v from %v, error: %v\n", form, len(source), name, gateway, from, err)
	}
	ask("ParseIP", source)
	if short := source.To4(); short != nil {
		ask(fmt.Sprint("To4, equal: ", source.Equal(short)), short)
	}
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/libp2p/go-netroute
CGO_ENABLED=0 go build -o probe .
cases() {
	local i
	ip link set lo up
	for i in 0 1; do
		ip link add eth$i type veth peer name peer$i && ip link set eth$i up && ip link set peer$i up
		ip addr add 10.$i.0.5/24 dev eth$i && ip addr add fd00:$i::5/64 dev eth$i nodad
		ip route add default via 10.$i.0.1 table 10$i && ip rule add from 10.$i.0.5 table 10$i
		ip route add default via fd00:$i::1 table 10$i && ip -6 rule add from fd00:$i::5 table 10$i
	done
	ip route add default via 10.0.0.1 && ip route add default via fd00:0::1
	while read -r from to; do
		echo "from $from: kernel: $(ip route get "$to" from "$from" 2>&1 | grep -oE '(via [^ ]+ dev [a-z0-9]+|Network is unreach.*)')"
		./probe "$from" "$to"
	done <<<$'10.1.0.5 192.0.2.1\nfd00:1::5 2001:db8::1\n10.7.0.7 192.0.2.1'
}
export -f cases
unshare --net bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
from 10.1.0.5: kernel: via 10.1.0.1 dev eth1
  ParseIP, 16 bytes: eth0 via 10.0.0.1 from 10.0.0.5, error: <nil>
  To4, equal: true, 4 bytes: eth1 via 10.1.0.1 from 10.1.0.5, error: <nil>
from fd00:1::5: kernel: via fd00:1::1 dev eth1
  ParseIP, 16 bytes: eth1 via fd00:1::1 from fd00:1::5, error: <nil>
from 10.7.0.7: kernel: Network is unreachable
  ParseIP, 16 bytes: eth0 via 10.0.0.1 from 10.0.0.5, error: <nil>
  To4, equal: true, 4 bytes: no interface via <nil> from <nil>, error: netlink error: network is unreachable
EOF
