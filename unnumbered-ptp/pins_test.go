// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPinsLost removes some of what pods share, in each way: the two programs of the next pod have
// to know of each other what they remember, or its services never answer.
func TestPinsLost(t *testing.T) {
	const dir = "/sys/fs/bpf"
	f := newFabric(t)
	must(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	f.add(f.node, kubeProxy("tcp4"))
	serve(t, f.other, ":8080")
	kept := func() []string {
		files, _ := filepath.Glob(dir + "/cni_ipvlan_vpc_k8s:*")
		return files
	}
	pods := 0
	next := func(name string) {
		pods++
		addr := fmt.Sprint("10.0.1.", 48+pods%16)
		t.Run(name, func(t *testing.T) {
			f := &fabric{t, f.router, f.node, f.other}
			p := f.pod(addr, addr)
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			if seen, err := call(p.NS, "tcp4", "172.20.0.10:80"); err != nil || seen != addr {
				t.Errorf("the service sees %q; %v", seen, err)
			}
		})
	}
	for some := range 1 << 4 {
		must(t, f.node.RemoveOwn())
		next("all")
		all := kept()
		if len(all) != 4 {
			t.Fatalf("%q are kept, want two maps and two programs", all)
		}
		for i, file := range all {
			if some>>i&1 != 0 {
				must(t, os.Remove(file))
			}
		}
		next(fmt.Sprintf("without %04b", some))
	}
}
