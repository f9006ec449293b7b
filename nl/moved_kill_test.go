// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
)

// If MOVE_CARD is set, the test binary moves a card into the pod whose namespace is at MOVE_TO, or from there back to
// the node.
func init() {
	verb := os.Getenv("MOVE_CARD")
	if verb == "" {
		return
	}
	if err := moveCard(verb, os.Getenv("MOVE_TO")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// moveCard runs Add or Del of the card. The process is in the node's namespace.
func moveCard(verb, path string) error {
	node, err := nl.Node()
	if err != nil {
		return err
	}
	pod, err := nl.Open("pod", path)
	if err != nil {
		return err
	}
	w := nl.Wiring{{NS: node, Object: bay{pod: pod}.moved()}}
	if verb == "DEL" {
		return w.Del()
	}
	return w.Add()
}

// TestMovedLinkKill kills Add and Del after each system call. The card is then either on the node, or completely in the
// pod. After another Del, the card is on the node, and the next Add succeeds. Before each kill of an Add, the test runs
// another Add in which the same system call fails.
func TestMovedLinkKill(t *testing.T) {
	b := newBay(t)
	before := nltest.Dump(t, b.node, b.pod)
	w := nl.Wiring{{NS: b.node, Object: b.moved()}}
	for _, verb := range []string{"ADD", "DEL"} {
		points := trace.Everywhere(t, verb, func(t *testing.T, tr *trace.Trace) {
			b := b
			b.T = t
			if verb == "ADD" {
				if b.run(verb, tr.Again(syscall.ENOMEM)).ExitStatus() != 1 {
					b.must(w.Del()) // Add has succeeded without this call
				}
				b.same("Add failed", before)
			} else {
				b.must(w.Add())
			}
			if status := b.run(verb, tr); status.Exited() && status.ExitStatus() != 0 {
				t.Fatalf("status %d", status.ExitStatus())
			}
			if _, err := b.pod.FindMAC(cardMAC); errors.Is(err, fs.ErrNotExist) {
				b.same("killed while the card is on the node", before)
			} else {
				b.must(errors.Join(err, w.Check()))
			}
			b.must(w.Del())
			b.same("Del", before)
			b.must(errors.Join(w.Add(), w.Check(), w.Del()))
			b.same("Add and Del", before)
		})
		t.Logf("%s was killed at %d points", verb, points)
	}
}

// run runs a verb as a process on the node.
func (b bay) run(verb string, tr *trace.Trace) (status syscall.WaitStatus) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "MOVE_CARD="+verb, "MOVE_TO="+b.path)
	b.must(b.node.Do(func() (err error) { status, err = tr.Run(cmd); return err }))
	return status
}
