#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/florianl/go-tc v0.4.5-0.20240822175159, and github.com/vishvananda/netlink v1.3.1 (Linux 6.18): tbf above 34 Gbit/s.
#
# A good guess: a program lists the queueing disciplines of all links, and takes those of its own link. Limits of other links do not matter. A
# rate of 40 Gbit/s, as large instances have, is one more number.
#
# What happens: 34.36 Gbit/s are as many bytes per second as 32 bits can hold. Above it, the kernel adds an attribute with 64 bits. go-tc
# does not know it for tbf, and gives up: Get returns an error, and only what the kernel listed before. So a limit of one link hides the
# links after it from each program with this library. With a slower rate and a faster peak rate it is the same. Rates of htb are read. The
# list of classes of one link fails if the link has a tbf, at any rate, since the kernel lists one class for it. netlink reads all of them.
# The script needs root, Go, ip(8) and tc(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/limits\n\ngo 1.26\n\nrequire (\n\tgithub.com/florianl/go-tc v0.4.5-0.20240822175159-7926c32f7299\n\tgithub.com/vishvananda/netlink v1.3.1\n)\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"os"

	"github.com/florianl/go-tc"
	"github.com/vishvananda/netlink"
)

func main() {
	conn, err := tc.Open(&tc.Config{})
	if err != nil {
		panic(err)
	}
	list, err := conn.Qdisc().Get()
	fmt.Printf("%s: go-tc: error %v, links", os.Args[1], err != nil)
	for _, q := range list {
		link, _ := netlink.LinkByIndex(int(q.Ifindex))
		if q.Kind != "noqueue" {
			fmt.Print(" ", link.Attrs().Name)
		}
	}
	all, err := netlink.QdiscList(nil)
	fmt.Printf("; netlink: error %v, %d", err != nil, len(all))
	link, _ := netlink.LinkByName("eth1")
	classes, err := conn.Class().Get(&tc.Msg{Ifindex: uint32(link.Attrs().Index)})
	fmt.Printf("; classes: error %v, %d\n", err != nil, len(classes))
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/florianl/go-tc github.com/vishvananda/netlink && CGO_ENABLED=0 go build -o probe .
cases() {
	for i in 0 1 2; do ip link add eth$i type veth peer name peer$i && tc qdisc add dev eth$i root pfifo; done
	# try WORDS: the lists with this discipline on eth1
	try() {
		tc qdisc del dev eth1 root && xargs tc qdisc add dev eth1 root handle 1: <<<"$1"
		[[ $1 == tbf* ]] || tc class add dev eth1 parent 1: classid 1:1 htb rate 40gbit quantum 9000
		./probe "$1"
	}
	try 'tbf rate 34gbit burst 1m latency 5ms' && try 'tbf rate 35gbit burst 1m latency 5ms'
	try 'tbf rate 8mbit burst 20k latency 5ms peakrate 40gbit mtu 2000' && try 'htb default 1'
}
export -f cases
unshare --net bash -euo pipefail -c cases | tee seen
diff - seen <<'EOF'
tbf rate 34gbit burst 1m latency 5ms: go-tc: error false, links eth0 eth1 eth2; netlink: error false, 3; classes: error true, 0
tbf rate 35gbit burst 1m latency 5ms: go-tc: error true, links eth0; netlink: error false, 3; classes: error true, 0
tbf rate 8mbit burst 20k latency 5ms peakrate 40gbit mtu 2000: go-tc: error true, links eth0; netlink: error false, 3; classes: error true, 0
htb default 1: go-tc: error false, links eth0 eth1 eth2; netlink: error false, 3; classes: error false, 1
EOF
