// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestKeepNode: all that use one context have one namespace, which stays open until the end.
func TestKeepNode(t *testing.T) {
	node := func(use func() (*nl.NS, error)) *nl.NS {
		t.Helper()
		n, err := use()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	ctx, release := nl.KeepNode(t.Context())
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
	release()
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
	_, unused := nl.KeepNode(t.Context())
	unused()
}
