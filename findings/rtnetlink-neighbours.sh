#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/jsimonetti/rtnetlink/v2 v2.3.0 and its package rtnl (Linux 6.18): neighbours, and addresses of point-to-point links.
#
# A good guess: AddrAdd of an address with /31 gives what `ip address add` gives, and the far end answers. Addrs returns the link's own
# addresses, and AddrDel deletes one of them. Neigh.Delete deletes the neighbours of the link whose index it gets. Neigh.New makes the
# neighbour that it is told, or returns an error.
#
# What happens: AddrAdd sets a broadcast address for every IPv4 prefix. For a /31 this is the far end. The kernel then takes the far end for a
# broadcast address: a connection to it is "Network is unreachable". ParseAddr refuses the lower address of a /31, and the first address of an
# ENI's /28 or /80. If an address has a peer, Addrs returns the peer's address, and AddrDel does not find the link's own address.
# Neigh.Delete ignores the index, and always fails with EINVAL. Neigh.New with an IPv4 address from net.ParseIP succeeds, and makes a
# permanent neighbour 0.0.0.0, because net.ParseIP returns 16 bytes. The script needs root, Go and ip.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/neighbours\n\ngo 1.26\n\nrequire github.com/jsimonetti/rtnetlink/v2 v2.3.0\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"
	"os"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/jsimonetti/rtnetlink/v2/rtnl"
)

func main() {
	c, _ := rtnl.Dial(nil)
	link, _ := net.InterfaceByName("ens6")
	ip, subnet, _ := net.ParseCIDR(os.Args[2])
	address := net.IPNet{IP: ip, Mask: subnet.Mask}
	attributes := rtnetlink.NeighAttributes{Address: ip, LLAddress: net.HardwareAddr{2, 0, 0, 0, 0, 9}}
	neighbour := rtnetlink.NeighMessage{Family: 2, Index: uint32(link.Index), State: 0x80, Attributes: &attributes}
	do := map[string]func() (any, error){
		"ParseAddr":    func() (any, error) { return rtnl.ParseAddr(os.Args[2]) },
		"AddrAdd":      func() (any, error) { return nil, c.AddrAdd(link, &address) },
		"AddrDel":      func() (any, error) { return nil, c.AddrDel(link, &address) },
		"Addrs":        func() (any, error) { return c.Addrs(link, 2) },
		"Neigh.New":    func() (any, error) { return nil, c.Conn.Neigh.New(&neighbour) },
		"Neigh.Delete": func() (any, error) { return nil, c.Conn.Neigh.Delete(uint32(link.Index)) },
	}
	got, err := do[os.Args[1]]()
	fmt.Println(os.Args[1], os.Args[2], got, err)
}
EOF
GOFLAGS=-mod=mod CGO_ENABLED=0 go build -o probe . 2>/dev/null && go list -m github.com/jsimonetti/rtnetlink/v2 && uname -r >&2
cases() {
	mount -t tmpfs none /run && ip netns add far && ip link add name ens6 type veth peer name ens6 netns far
	ip link set dev ens6 up && ip -n far link set dev ens6 up && ip -n far addr add 192.0.2.1/31 dev ens6
	for how in 'ip addr add 192.0.2.0/31 dev ens6' './probe AddrAdd 192.0.2.0/31'; do
		$how
		echo "$how: $( (timeout 2 bash -c 'exec 3<>/dev/tcp/192.0.2.1/99' || :) 2>&1 | grep -o 'connect: .*')" && ip addr flush dev ens6
	done
	for address in 192.0.2.0/31 10.0.1.16/28 2001:db8:0:0:1::/80; do ./probe ParseAddr $address; done
	ip addr add 192.0.2.5 peer 192.0.2.9/32 dev ens6 && ./probe Addrs 192.0.2.5/32 && ./probe AddrDel 192.0.2.5/32
	./probe Neigh.New 192.0.2.7/32 && ip neigh show nud permanent && ./probe Neigh.Delete 192.0.2.7/32
}
export -f cases && unshare --net --mount bash -euo pipefail -c cases | tee seen
diff - <(sed 's/ *$//' seen) <<'EOF'
ip addr add 192.0.2.0/31 dev ens6: connect: Connection refused
AddrAdd 192.0.2.0/31 <nil> <nil>
./probe AddrAdd 192.0.2.0/31: connect: Network is unreachable
ParseAddr 192.0.2.0/31 <nil> address 192.0.2.0: attempted to parse a subnet address into a host address
ParseAddr 10.0.1.16/28 <nil> address 10.0.1.16: attempted to parse a subnet address into a host address
ParseAddr 2001:db8:0:0:1::/80 <nil> address 2001:db8:0:0:1::: attempted to parse a subnet address into a host address
Addrs 192.0.2.5/32 [192.0.2.9/32] <nil>
AddrDel 192.0.2.5/32 <nil> address 192.0.2.5: address not found
Neigh.New 192.0.2.7/32 <nil> <nil>
0.0.0.0 dev ens6 lladdr 02:00:00:00:00:09 PERMANENT
Neigh.Delete 192.0.2.7/32 <nil> netlink receive: invalid argument
EOF
