// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// before is the directory with the programs of the release before this one. In this directory, the file "commit" names
// the commit from which make has built the programs.
const before = "../../.cache/before"

// twoReleases exchanges the programs of a node that has pods. The node first gets the programs of the release before
// this one. Then the test installs three times: the present programs, the programs of the release before, and the
// present programs again. Each time, the installed programs delete a pod that the other programs have made, run a
// collection, and find nothing to repair. Running pods must lose no call.
func (w *world) twoReleases(t *testing.T) {
	commit, err := os.ReadFile(before + "/commit")
	check(t, err)
	old, now := must(filepath.Abs(before+"/bin")), must(filepath.Abs("../../bin"))
	n := w.join(t, "releases", cluster.NodeOptions{Conflist: conflist(t, "10-cni-ipvlan-vpc-k8s")})
	clean := findings(t, n)
	r := &releasing{world: w, node: n}
	check(t, n.Install(old))
	stays, other := r.pod(t, "stays"), r.pod(t, "other")
	w.apply(t, service("stays", "stays"))
	addr := w.serviceAddr(t, "stays")
	virtual := netip.AddrPortFrom(addr.addr, addr.http)
	w.sees(t, other, "http", virtual, other.addr)
	stop := calls(
		func() error { _, err := get(w.Peer.NS, netexec(stays.addr, "clientip")); return err },
		func() error { _, err := w.call(other, "http", serverOf(stays)); return err },
		func() error { _, err := w.call(other, "http", virtual); return err })
	r.pod(t, "old1")
	for i, dir := range []string{now, old, now} {
		check(t, n.Install(dir))
		last := r.last
		w.sees(t, other, "http", serverOf(r.pod(t, fmt.Sprint("release", i))), other.addr)
		w.remove(t, "pod", last) // the programs of the other release have made this pod
		r.maintain(t, dir)
	}
	made, lost := stop()
	t.Logf("%d calls while the programs of %.12s and those of now took turns", made, commit)
	for _, err := range lost {
		t.Error(err)
	}
	w.remove(t, "service", "stays")
	for _, name := range []string{r.last, "stays", "other"} {
		w.remove(t, "pod", name)
	}
	w.endsClean(t, n, clean)
}

// A releasing is a node whose programs the test exchanges.
type releasing struct {
	*world
	node *cluster.Node
	last string // the newest pod
}

// pod starts a pod on the node.
func (r *releasing) pod(t *testing.T, name string) pod {
	t.Helper()
	r.apply(t, podOn(name, r.node.Name, server()))
	r.last = name
	return r.ready(t, name, 1)[0]
}

// maintain runs the commands of a release's units. There must be nothing to repair.
func (r *releasing) maintain(t *testing.T, dir string) {
	t.Helper()
	for _, args := range [][]string{{"repair"}, {"registry-gc", "--free-after=1h"}} {
		out, err := r.node.Run(t.Context(), filepath.Join(dir, tool), args...)
		check(t, err)
		if args[0] == "repair" && strings.TrimSpace(out) != "" {
			t.Errorf("the programs of %s repair: %s", dir, out)
		}
	}
}
