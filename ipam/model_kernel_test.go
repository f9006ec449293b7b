// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// A kernel is a node's namespace and some namespaces for pods, which one history after
// another uses: to make a namespace takes longer than a history.
type kernel struct {
	host  *nl.NS
	dir   string // where the names of the namespaces in use are
	slots []*slot
}

// A slot is a namespace for one pod at a time.
type slot struct {
	ns   *nl.NS
	path string
	pod  string // that has it; empty: none
	has  nl.Wiring
}

// newKernel makes namespaces for so many pods, and has UsedAddrs look at these alone.
func newKernel(t *testing.T, pods int) *kernel {
	t.Helper()
	nltest.Need(t, "root", "netns")
	host, _ := nltest.NS(t, "model-node")
	k := &kernel{host: host, dir: t.TempDir()}
	for range pods {
		ns, path := nltest.NS(t, "model-pod")
		k.slots = append(k.slots, &slot{ns: ns, path: path})
	}
	for _, ns := range k.all() {
		must(t, nl.Wiring{{NS: ns, Object: nl.Up{Dev: "lo"}}}.Add())
	}
	was := lease.Shelves
	lease.Shelves = []lease.Shelf{{Folder: k.dir}}
	t.Cleanup(func() { lease.Shelves = was })
	return k
}

func (k *kernel) all() []*nl.NS {
	all := []*nl.NS{k.host}
	for _, s := range k.slots {
		all = append(all, s.ns)
	}
	return all
}

// path is where the namespace of a pod is, if it has one.
func (k *kernel) path(pod string) string { return filepath.Join(k.dir, pod) }

func (k *kernel) slot(pod string) *slot {
	if i := slices.IndexFunc(k.slots, func(s *slot) bool { return s.pod == pod }); i >= 0 {
		return k.slots[i]
	}
	return nil
}

// start makes a namespace for a pod, as the runtime does before an ADD; false if there is none left.
func (k *kernel) start(t *testing.T, pod string) bool {
	s := k.slot("")
	if s == nil {
		return false
	}
	s.pod = pod
	must(t, os.Symlink(s.path, k.path(pod)))
	return true
}

// wire gives the addresses to the pod, and routes to it, as the other plugins do.
func (k *kernel) wire(t *testing.T, pod string, addrs []netip.Addr) {
	s := k.slot(pod)
	for _, a := range addrs {
		host := netip.PrefixFrom(a, a.BitLen())
		s.has = append(s.has, nl.Step{NS: s.ns, Object: nl.Addr{Prefix: host, Dev: "lo", NoDAD: a.Is6()}},
			nl.Step{NS: k.host, Object: nl.Route{Dst: host, Dev: "lo"}})
	}
	if err := s.has.Add(); err != nil {
		t.Fatalf("wire %s: %v", pod, err)
	}
}

// stop ends a pod without a DEL: its addresses, its routes, its namespace are gone.
func (k *kernel) stop(t *testing.T, pod string) {
	s := k.slot(pod)
	if s == nil {
		return
	}
	must(t, s.has.Del())
	s.pod, s.has = "", nil
	if err := os.Remove(k.path(pod)); !errors.Is(err, fs.ErrNotExist) {
		must(t, err)
	}
}

// clear stops all.
func (k *kernel) clear(t *testing.T) {
	for _, s := range k.slots {
		if s.pod != "" {
			k.stop(t, s.pod)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("the test itself: %w", err))
	}
}
