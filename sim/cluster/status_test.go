// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
)

// state is the directory of the registry on a node.
const state = "/run/cni-ipvlan-vpc-k8s"

// statusWhileLocked checks that a node stays Ready while a process holds the lock of the registry. A new pod waits for
// the lock, and then starts.
func (w *world) statusWhileLocked(t *testing.T) {
	w.apply(t, podOn("before", "node1", server()))
	before := w.ready(t, "before", 1)[0] // after this pod's ADD, node1 has a registry
	w.staysReady(t, "node1", func() {
		unlock := lock(t, w.Nodes[0].File(state))
		w.apply(t, podOn("waits", "node1", server()))
		time.Sleep(20 * time.Second) // kubelet asks the runtime for its status every five seconds
		if pods, err := w.pods(t.Context(), "waits"); err != nil || len(pods) > 0 {
			t.Errorf("a pod became ready without the registry: %v %v", pods, err)
		}
		unlock()
		seesHost(t, w.Peer.NS, serverOf(before), w.Peer.Addr())
		w.ready(t, "waits", 1)
	})
}

func serverOf(p pod) netip.AddrPort { return netip.AddrPortFrom(p.addr, port) }

// lock locks a directory as the registry does.
func lock(t *testing.T, dir string) (unlock func()) {
	t.Helper()
	f, err := os.Open(dir)
	check(t, err)
	check(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	return func() { check(t, f.Close()) }
}

// statusOfBrokenNode checks a node that lacks one of our programs. The node must not be Ready, and the reason must name
// the program. This also shows that the runtime calls STATUS.
func (w *world) statusOfBrokenNode(t *testing.T) {
	const program = "/opt/cni/bin/cni-ipvlan-vpc-k8s-grow"
	n := w.Nodes[0]
	check(t, os.Rename(n.File(program), n.File(program+".away")))
	t.Cleanup(func() { check(t, w.NodesReady(context.Background())) })
	err := cluster.Await(t.Context(), patience, func() error {
		is, err := w.readiness(t.Context(), n.Name)
		for _, want := range []string{"False ", "NetworkReady=false", filepath.Base(program)} {
			if err == nil && !strings.Contains(is, want) {
				err = fmt.Errorf("%s has no %s, and its condition is %q: want %q", n.Name, program, is, want)
			}
		}
		return err
	})
	check(t, errors.Join(err, os.Rename(n.File(program+".away"), n.File(program))))
}

// statusUnderLoad checks that a node stays Ready, and that a pod starts, while processes take all CPU.
func (w *world) statusUnderLoad(t *testing.T) {
	const busy = 25
	w.staysReady(t, "node1", func() {
		for range busy {
			defer spin(t, w.Nodes[0].Machine)()
		}
		w.apply(t, podOn("busy", "node1", server()))
		time.Sleep(40 * time.Second) // eight calls of STATUS
		w.ready(t, "busy", 1)
	})
}

// staysReady runs the function "during". Meanwhile, the node must be Ready, and the node's condition Ready must not
// change.
func (w *world) staysReady(t *testing.T, node string, during func()) {
	t.Helper()
	began, err := w.readiness(t.Context(), node)
	check(t, err)
	if !strings.HasPrefix(began, "True ") {
		t.Fatalf("%s is not Ready: %s", node, began)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	seen := make(chan map[string]bool, 1)
	go func() { seen <- w.watch(ctx, node) }()
	during()
	w.untilReported(t, node)
	last, err := w.readiness(t.Context(), node)
	check(t, err)
	end()
	all := <-seen
	all[last] = true
	delete(all, began)
	for c := range all {
		why := "not because of its network, but of its kubelet"
		if strings.Contains(c, "NetworkReady=false") {
			why = "because a STATUS has failed"
		}
		t.Errorf("%s was not Ready all the time, %s: %s, and then %s", node, why, began, c)
	}
}

// watch returns all values of readiness that a node has had until the context ends.
func (w *world) watch(ctx context.Context, node string) map[string]bool {
	seen := map[string]bool{}
	for ctx.Err() == nil {
		if c, err := w.readiness(ctx, node); err == nil {
			seen[c] = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return seen
}

// readiness returns the condition Ready of a node: its status, the time of its last change, and its message.
func (w *world) readiness(ctx context.Context, node string) (string, error) {
	return w.Kubectl(ctx, "get", "node", node, "-o",
		`jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.lastTransitionTime} {.message}{end}`)
}

// untilReported waits until kubelet has renewed the node's Lease once more.
func (w *world) untilReported(t *testing.T, node string) {
	t.Helper()
	first := ""
	await(t, func() error {
		last, err := w.Kubectl(t.Context(), "get", "lease", "--namespace=kube-node-lease", node, "-o",
			"jsonpath={.spec.renewTime}")
		if err != nil {
			return err // a new node has no Lease yet
		}
		if first = cmp.Or(first, last); last == first {
			return fmt.Errorf("no heartbeat of %s since %s", node, last)
		}
		return nil
	})
}

// spin starts a process that uses a CPU.
func spin(t *testing.T, m *machine.Machine) (stop func()) {
	t.Helper()
	c := m.Command(context.Background(), "sh", "-c", "echo $$; while :; do :; done")
	out, err := c.StdoutPipe()
	check(t, err)
	check(t, c.Start())
	pid, err := bufio.NewReader(out).ReadString('\n')
	check(t, err)
	return func() {
		_, err := m.Run(context.Background(), "kill", "-9", strings.TrimSpace(pid))
		check(t, err)
		c.Wait() // Wait returns an error, because the process was killed
	}
}
