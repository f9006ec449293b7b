// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// TestRoutedRenamed: udev renames the link of a new ENI after the ADD of the first routed pod. Restore puts back the
// objects that had the old name, and a collection deletes the leftovers. Then CHECK succeeds, also for a pod with a
// slave of the ENI, and even if another new link gets the old name.
func TestRoutedRenamed(t *testing.T) {
	f := newFabric(t)
	serve(t, f.other, ":8080")
	serve(t, f.router, internet+":443")
	p, slave := f.routed("pod1", pod1Addr, dual), f.pod("pod2", pod2Addr)
	must(t, f.ADD(p))
	must(t, f.ADD(slave))
	rename := "ip link set eth1 name ens6"
	nltest.Shell(t, f.node, rename+" || { ip link set eth1 down && "+rename+" && ip link set ens6 up; }") // Linux < 6.2
	must(t, f.CHECK(slave))
	if (nl.IPVlan{}).Supported(f.node) == nil {
		must(t, f.in(slave, func(r *plugin.Request[ptp.Config]) error {
			return ipvlan.Commands(nil).Check(t.Context(), &plugin.Request[ipvlan.Config]{Network: r.Network,
				Attachment: r.Attachment, NetNS: r.NetNS, Prev: slave.result})
		}))
	}
	if l := f.missing(slave); !l.None() {
		t.Errorf("the pod with a link of the ENI misses %v, %v, %v", l.Node, l.Pod, l.Changed)
	}
	for _, want := range []string{"pref 1015 iif ens6", "_ask.ens6"} {
		if err := f.CHECK(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("CHECK says %v, not %q", err, want)
		}
	}
	l := f.missing(p)
	if !l.Serious() || len(l.Pod) > 0 || l.Changed != nil {
		t.Errorf("it misses %v, %v, %v", l.Node, l.Pod, l.Changed)
	}
	_, err := f.restore(l)
	must(t, err)
	must(t, f.GC(p, p.request.Attachment, slave.request.Attachment))
	if text := f.nft("list", "ruleset"); strings.Contains(text, "eth1") {
		t.Errorf("the old name is left:\n%s", text)
	}
	right := func() {
		t.Helper()
		must(t, f.CHECK(p))
		if l := f.missing(p); !l.None() {
			t.Errorf("it misses %v, %v, %v", l.Node, l.Pod, l.Changed)
		}
		for _, to := range []string{otherAddr + ":8080", internet + ":443"} {
			if _, err := call(p.NS, "tcp4", to); err != nil {
				t.Error(err)
			}
		}
	}
	right()
	nltest.Shell(t, f.node, "ip link add eth1 type veth peer name far1")
	right()
	must(t, f.DEL(p))
}
