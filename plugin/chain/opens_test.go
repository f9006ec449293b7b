// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
)

// TestOpensOnce: a command opens the pod's namespace once for all plugins.
func TestOpensOnce(t *testing.T) {
	n := newNode(t)
	_, path := nltest.NS(t, "pod")
	for _, verb := range []string{"ADD", "DEL"} {
		tr := &trace.Trace{Counts: func(c trace.Call) string {
			if c.Nr == unix.SYS_OPENAT && c.Text(1) == path {
				return path
			}
			return ""
		}}
		if status := (victim{node: n, verb: verb}).run(n.request(path, ""), tr); !status.Exited() ||
			status.ExitStatus() != 0 {
			t.Fatalf("%s: status %x", verb, status)
		}
		if len(tr.Seen) != 1 {
			t.Errorf("%s opened the pod's namespace %d times, want once", verb, len(tr.Seen))
		}
	}
}
