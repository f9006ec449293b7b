// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestTidiedAgain: the directory is deleted while a collection removes what serves all pods, and
// so it looks again, and finds nothing. Its caller hears that something was removed.
func TestTidiedAgain(t *testing.T) {
	nltest.Need(t, "nftables")
	w := newWorld(t, "m5.large", 20)
	p := w.pool()
	rule := nl.Rule{Pref: 512, Mark: 0x2000, Mask: 0x2000, Table: nl.MainTable, Protocol: nl.RouteProtocol}
	must(t, nl.Wiring{{NS: w.host, Object: rule}}.Add())
	// The next file cannot be made in a directory that is not there: as in one that was deleted.
	must(t, os.Symlink("deleted/file", filepath.Join(w.dir, "registry.json.new")))
	var c Collection
	if err := p.tidy(t.Context(), &c); err == nil {
		t.Fatal("the registry was written")
	}
	if !c.Tidied {
		t.Error("nobody puts back what a pod needs that comes now")
	}
}
