// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestTidiedAgain: a collection removes objects of the node, and then cannot write the registry. When it looks at the
// node again, it finds nothing to remove. So it must remember what it has removed.
func TestTidiedAgain(t *testing.T) {
	nltest.Need(t, "nftables")
	w := newWorld(t, "m5.large", 20)
	p := w.pool()
	rule := nl.Rule{Pref: 512, Mark: 0x2000, Mask: 0x2000, Table: nl.MainTable, Protocol: nl.RouteProtocol}
	must(t, nl.Wiring{{NS: w.Host, Object: rule}}.Add())
	// This symlink makes the write of the registry fail, as in a deleted directory.
	must(t, os.Symlink("deleted/file", filepath.Join(w.Dir, "registry.json.old")))
	var c less.Collecting
	if err := p.tidyNode(t.Context(), &c); err == nil {
		t.Fatal("the registry was written")
	}
	if !c.Tidied {
		t.Error("no command puts back what a pod needs that comes now")
	}
}

// TestTidyRouted: pods of the node have slaves, and no pod is routed. A collection removes the table that serves only
// routed pods. It leaves the table if a lease may belong to a routed pod that is about to start.
func TestTidyRouted(t *testing.T) {
	nltest.Need(t, "nftables")
	table := nl.Table{Family: "inet", Name: nl.ENITable}
	for name, c := range map[string]struct {
		change func(w *world, c *less.Collecting)
		stays  bool
	}{
		"each pod has a link of the ENI": {func(*world, *less.Collecting) {}, false},
		"a pod has no link yet":          {func(w *world, _ *less.Collecting) { w.mustAcquire(2) }, true},
		"a lease is newer than the look": {func(_ *world, c *less.Collecting) {
			c.Used.Looked = c.Used.Looked.Add(-time.Hour)
		}, true},
		"a namespace was not read": {func(_ *world, c *less.Collecting) { c.Used.Partial = true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			defer w.usePod(w.mustAcquire(1))()
			must(t, table.Add(w.Host))
			p := w.pool()
			used, err := p.InUse()
			must(t, err)
			collecting := less.Collecting{Used: used}
			c.change(w, &collecting)
			must(t, p.tidyNode(t.Context(), &collecting))
			if collecting.Tidied == c.stays {
				t.Errorf("tidied: %v", collecting.Tidied)
			}
			if err := table.Intact(w.Host); (err == nil) != c.stays {
				t.Errorf("the table: %v", err)
			}
		})
	}
}

// TestCollectionGivesWay: while EC2 throttles a call of a collection, an ADD that needs another action does not wait.
func TestCollectionGivesWay(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.cloud.Jitter = func(d time.Duration) time.Duration { return d / 100 }
	w.mustAcquire(1)
	w.EC2.Fail("DescribeNetworkInterfaces", throttling, -1)
	ctx, ends := context.WithTimeout(t.Context(), 2*time.Minute) // as registry-gc has
	defer ends()
	p, done := w.pool(), make(chan error)
	go func() { done <- p.EndBegun(ctx) }()
	for len(w.State().NotBefore) == 0 {
		runtime.Gosched()
	}
	w.policy.Timeout = 10 * time.Second
	if _, err := w.acquire(2); err != nil {
		t.Error(err)
		ends()
	}
	if err := <-done; err != nil {
		t.Errorf("it fails with %v", err)
	}
}

// TestEndWhileLooking: a collection has seen a pod, and the pod's DEL comes before the collection changes the registry.
// The pod's address then cools, as after any DEL.
func TestEndWhileLooking(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	a := w.mustAcquire(1)
	stop := w.usePod(a)
	w.Age(time.Hour)
	w.collect() // so that the next collection has nothing else to do
	dir := t.TempDir()
	seen, end := filepath.Join(dir, "1"), filepath.Join(dir, "2") // opening a pipe waits for the other end
	must(t, unix.Mkfifo(seen, 0o600))
	must(t, unix.Mkfifo(end, 0o600))
	p := w.pool()
	p.Shelves = []lease.Shelf{{Dir: "/proc", Below: "ns/net"}, {Dir: dir}}
	done := make(chan error)
	go func() {
		_, err := p.Collect(t.Context(), less.Collection{FreeAfter: time.Hour, Max: -1})
		done <- err
	}()
	opened(t, seen)
	stop()
	w.end(1)
	opened(t, end)
	must(t, <-done)
	s := w.State()
	if l, leased := s.Leases.At(a); leased || !s.Free.Has(a) {
		t.Errorf("%s is not free: %+v", a, l)
	}
}

// TestLooksOfCollection: a collection that compares a rebuilt registry with EC2 reads the namespaces equally often with
// many ENIs and with few. To read the namespaces of 1500 pods takes half a second.
func TestLooksOfCollection(t *testing.T) {
	looks := func(pods int) (enis, looks int) {
		w := newWorld(t, "t3.medium", 20)
		w.policy.Batch = 0
		for n := range pods {
			w.mustAcquire(n)
		}
		dir := t.TempDir()
		opens, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		must(t, err)
		defer unix.Close(opens)
		// The kernel joins equal events that follow each other, so the test also watches IN_CLOSE.
		_, err = unix.InotifyAddWatch(opens, dir, unix.IN_OPEN|unix.IN_CLOSE|unix.IN_ONLYDIR)
		must(t, err)
		p := w.pool()
		p.Shelves = []lease.Shelf{{Dir: "/proc", Below: "ns/net"}, {Dir: dir}}
		must1(p.Collect(t.Context(), less.Collection{FreeAfter: time.Hour, Max: -1}))(t)
		if !w.State().Rebuilt.Compared {
			t.Fatal("it has compared nothing")
		}
		events := make([]byte, 1<<16)
		n, err := unix.Read(opens, events)
		must(t, err)
		return len(w.State().ENIs), n / unix.SizeofInotifyEvent / 2 // the events have no names
	}
	few, once := looks(1)
	many, often := looks(7)
	if few >= many || once == 0 || once != often {
		t.Errorf("it looks %d times with %d ENIs, and %d times with %d", once, few, often, many)
	}
}

// opened waits until a collection has opened the pipe to read it.
func opened(t *testing.T, pipe string) {
	t.Helper()
	f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	must(t, err)
	must(t, f.Close())
}

// TestCollectProvisions: a collection unassigns addresses only if all networks of the node allow changes in EC2.
func TestCollectProvisions(t *testing.T) {
	for _, provision := range []lease.Provision{lease.ProvisionFull, lease.ProvisionAssign, lease.ProvisionNone} {
		w := newWorld(t, "m5.large", 20)
		w.policy.Batch = 4
		w.mustAcquire(1)
		w.Age(time.Hour)
		p := w.pool()
		p.Policy = lease.Common(w.policy, w.another(provision))
		done := must1(p.Collect(t.Context(), less.Collection{FreeAfter: time.Minute, Max: -1}))(t)
		if allowed := provision != lease.ProvisionNone; (len(done.Unassigned) > 0) != allowed {
			t.Errorf("another network has %s, and the collection has unassigned %v", provision, done.Unassigned)
		}
	}
}
