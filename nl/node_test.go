// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestKeepOpen: calls with the same context open each namespace once. The namespace stays open until the use of the
// context ends.
func TestKeepOpen(t *testing.T) {
	node := func(use func() (*nl.NS, error)) *nl.NS {
		t.Helper()
		n, err := use()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	_, path := nltest.NS(t, "pod")
	_, path2 := nltest.NS(t, "other")
	ctx, release := nl.KeepOpen(t.Context())
	first := node(func() (*nl.NS, error) { return nl.NodeOf(ctx) })
	for range 2 {
		if again := node(func() (*nl.NS, error) { return nl.NodeOf(ctx) }); again != first {
			t.Error("the context has opened the node's namespace twice")
		}
		if err := first.Close(); err != nil {
			t.Error(err)
		}
		if _, err := first.Links(); err != nil {
			t.Errorf("the namespace was closed although the context keeps it: %v", err)
		}
	}
	open := func() (*nl.NS, error) { return first.OpenOther("pod", path) }
	pod := node(open)
	other := node(func() (*nl.NS, error) { return first.OpenOther("other", path2) })
	if err := other.Close(); err != nil || other == pod || other.Close() == nil {
		t.Errorf("a second path leads to the namespace of the first, or stays open: %v", err)
	}
	if err := pod.Close(); err != nil || node(open) != pod {
		t.Errorf("the pod's namespace was opened twice: %v", err)
	}
	if _, err := pod.Links(); err != nil {
		t.Errorf("the pod's namespace was closed although the context keeps it: %v", err)
	}
	release()
	if err := pod.Close(); err == nil {
		t.Error("the pod's namespace was open after the end of the command")
	}
	if err := first.Close(); err == nil {
		t.Error("the namespace was open after the end of the command")
	}
	own := node(func() (*nl.NS, error) { return nl.NodeOf(t.Context()) })
	if err := own.Close(); own == first || err != nil {
		t.Errorf("without a keeper: the kept namespace, %v", err)
	}
	if err := own.Close(); err == nil {
		t.Error("the namespace stayed open after Close")
	}
	_, unused := nl.KeepOpen(t.Context())
	unused()
}
