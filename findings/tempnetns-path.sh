#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/containernetworking/plugins v1.10.0, pkg/ns: TempNetNS returns a NetNS whose Path leads to another namespace.
#
# A good guess: Path is "the filesystem path representing this object's network namespace", as its comment says, and GetNS(n.Path())
# opens the same namespace as n. So it is for the namespaces of GetNS and of testutils.NewNS.
#
# What happens: TempNetNS makes the namespace on a thread, opens /proc/PID/task/TID/ns/net of that thread, and sends the thread back to the
# namespace that it came from. Path is still that file of /proc. The file now names the caller's own namespace, and no error says so. If the
# thread has ended, the file does not exist. Code that gives the path to ip(8), to a plugin as CNI_NETNS, or to GetNS, changes the caller's
# namespace. Fd and Do are right: /proc/self/fd/N with the number of Fd is a path that leads to the namespace.
#
# The script needs root, and Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'EOF'
module example.com/tempnetns

go 1.26

require github.com/containernetworking/plugins v1.10.0
EOF
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"os"

	"github.com/containernetworking/plugins/pkg/ns"
)

func must[T any](v T, err error) T {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	return v
}

func main() {
	temp := must(ns.TempNetNS())
	defer temp.Close()
	inode := func(path string) string {
		target, err := os.Readlink(path)
		if err != nil {
			return "no file"
		}
		return target
	}
	own, by := inode("/proc/self/ns/net"), inode(temp.Path())
	real := inode(fmt.Sprintf("/proc/self/fd/%d", temp.Fd()))
	within := ""
	if err := temp.Do(func(ns.NetNS) error { within = inode("/proc/thread-self/ns/net"); return nil }); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("Do and Fd lead to the same:", real == within)
	fmt.Println("Fd leads to the caller's own:", real == own)
	fmt.Println("Path leads to the new namespace:", by == real)
	fmt.Println("Path leads to the caller's own, or nowhere:", by == own || by == "no file")
}
EOF
go mod tidy >/dev/null 2>&1
go list -m github.com/containernetworking/plugins
go build -o probe .
./probe | tee seen
cat >want <<'EOF'
Do and Fd lead to the same: true
Fd leads to the caller's own: false
Path leads to the new namespace: false
Path leads to the caller's own, or nowhere: true
EOF
diff want seen
