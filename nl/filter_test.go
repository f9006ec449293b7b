// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestHooks: a link has a hook for what goes out only if there is a filter for that. Where
// there is none, such a filter is not taken for one for what comes in, and is refused.
func TestHooks(t *testing.T) {
	host, pod := two(t)
	links := nl.Wiring{{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}}, {host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}}}
	splice := nl.Wiring{{pod, nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}}}
	forbid := nl.Wiring{{pod, forbidden}}
	if err := errors.Join(links.Add(), splice.Add(), splice.Check()); err != nil {
		t.Fatal(err)
	}
	hooks(t, pod, "ingress", "ingress")
	for _, err := range []error{forbidden.Check(pod), forbidden.Del(pod)} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what goes out, before Add: %v", err)
		}
	}
	if err := forbid.Add(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Add of what goes out: %v", err)
	}
	if err := splice.Check(); err != nil {
		t.Errorf("after that: %v", err)
	}

	if err := errors.Join(links.Del(), links.Add(), forbid.Add(), splice.Add(), forbid.Check(), splice.Check()); err != nil {
		t.Fatal(err)
	}
	hooks(t, pod, "clsact", "clsact")
}

// hooks wants the links eth0 and eth1 to have these kinds of qdisc for their filters.
func hooks(t *testing.T, n *nl.NS, want ...string) {
	t.Helper()
	var got []string
	for _, dev := range forbidden.Devs {
		l, err := n.LinkByName(dev)
		if err != nil {
			t.Fatal(err)
		}
		var all []netlink.Qdisc
		if err := n.Do(func() (err error) {
			all, err = netlink.QdiscList(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: l.Index}})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		for _, q := range all {
			if q.Attrs().Parent == netlink.HANDLE_INGRESS {
				got = append(got, q.Type())
			}
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("qdiscs: -want +got\n%s", d)
	}
}
