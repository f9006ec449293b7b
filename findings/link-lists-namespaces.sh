#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, by github.com/vishvananda/netlink v1.3.1: what a list of a node's links costs, if each pod has a pair of veth links.
#
# A good guess: each link of a list costs the same, wherever the other ends of the pairs are.
#
# What happens: with 200 pairs, the guess is right. With 1600 pairs, each link costs more than twice as much if each other end is in a
# namespace of its own, as on a node with pods, than if all other ends are in one namespace. For each link, the kernel goes through the list of the namespaces that
# this namespace knows, to find the number of the one with the other end (peernet2id, net_eq_idr). So the cost grows with the square of the
# pods. Many programs of a node list all links, for example agents that count bytes. The script needs root and Go, and takes a minute.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && printf 'module example.com/lists\n\ngo 1.26\n\nrequire github.com/vishvananda/netlink v1.3.1\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// cost returns the CPU time of the kernel, in microseconds, for each link of a list: the least of five measurements.
func cost(links int) (least float64) {
	least = 1e9
	for range 5 {
		var before, after syscall.Rusage
		must(syscall.Getrusage(syscall.RUSAGE_SELF, &before))
		for range 32000 / links {
			_, err := netlink.LinkList()
			must(err)
		}
		must(syscall.Getrusage(syscall.RUSAGE_SELF, &after))
		least = min(least, float64(after.Stime.Nano()-before.Stime.Nano())/1000/32000)
	}
	return least
}

func main() {
	own, n := os.Args[1] == "own", 0
	costs, other := []float64{}, (*exec.Cmd)(nil)
	for _, links := range []int{200, 1600} {
		for ; n < links; n++ {
			if own || other == nil {
				other = exec.Command("sleep", "600")
				other.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
				must(other.Start())
			}
			must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("n", n)}, PeerName: fmt.Sprint("p", n),
				PeerNamespace: netlink.NsPid(other.Process.Pid)}))
		}
		costs = append(costs, cost(links))
	}
	fmt.Println(costs[0], costs[1])
}
EOF
go mod tidy >/dev/null 2>&1 && go build -o probe . && uname -sr
one=$(unshare --net ./probe one) own=$(unshare --net ./probe own)
echo "$one $own" | tee /dev/stderr | awk '{
	print "200 links: with namespaces of their own, a link costs over 1.7 times as much:", ($3 > 1.7 * $1) ? "yes" : "no"
	print "1600 links: with namespaces of their own, a link costs over 1.7 times as much:", ($4 > 1.7 * $2) ? "yes" : "no" }' | tee seen
diff seen - <<'EOF' && echo "as described"
200 links: with namespaces of their own, a link costs over 1.7 times as much: no
1600 links: with namespaces of their own, a link costs over 1.7 times as much: yes
EOF
