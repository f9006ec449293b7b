// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// TestOtherInstance: an instance is launched from an image that has the registry of another node. The first command
// changes nothing of the other node in EC2. It keeps the old file of the registry under another name.
func TestOtherInstance(t *testing.T) {
	for name, do := range map[string]func(w *world, eni string) error{
		"ADD": func(w *world, _ string) error { _, err := w.acquire(2); return err },
		"collect": func(w *world, _ string) error {
			_, err := w.pool().Collect(w.Context(), less.Collection{FreeAfter: time.Minute, Max: -1})
			return err
		},
		"warm": func(w *world, _ string) error {
			w.policy.Warm = registry.Warm{Min: 2}
			_, err := w.pool().Fill(w.Context())
			return err
		},
		// Remove may succeed or fail.
		"remove": func(w *world, eni string) error { _ = w.pool().Remove(w.Context(), eni); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			w.mustAcquire(1)
			if name != "ADD" { // so that the command has something to release
				w.end(1)
				w.Age(24 * time.Hour)
			}
			eni := w.ENIs()[1].ID
			other, err := w.EC2.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-node"})
			must(t, err)
			first := w.Instance
			w.Instance, w.cloud.MetadataURL = other, simtest.Serve(t, other.Metadata())
			w.Host, w.Path = nltest.NS(t, "node")
			w.Edit(func(s *registry.State) {
				s.Instance.Boot = "that of the first instance"
			})
			before := first.ENIs()
			must(t, do(w, eni))
			if after := first.ENIs(); !reflect.DeepEqual(before, after) {
				t.Errorf("the other instance has %+v, and had %+v", after, before)
			}
			aside, err := filepath.Glob(filepath.Join(w.Dir, "registry.json.other-*"))
			must(t, err)
			s := w.State()
			if _, knows := s.ENIs[eni]; knows || s.Instance.ID != other.ID || len(aside) != 1 {
				t.Errorf("the registry is of %s, has %v, and %v are set aside", s.Instance.ID, s.ENIs, aside)
			}
			if name == "ADD" && !slices.ContainsFunc(other.ENIs(), func(e ec2sim.ENI) bool { return e.Index > 0 }) {
				t.Errorf("the pod has no ENI of this instance: %+v", other.ENIs())
			}
		})
	}
}

// TestInstanceAsked: the node reads its instance ID from metadata once after each boot, and not in each growth.
func TestInstanceAsked(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, wires *wires) {
		w.mustAcquire(1)
		asked := func(do func()) int64 { n := wires.asked.Load(); do(); return wires.asked.Load() - n }
		if n := asked(func() { w.mustAcquire(2) }); n != 0 {
			t.Errorf("a growth of this boot asks metadata %d times", n)
		}
		w.Edit(func(s *registry.State) { s.Instance.Boot = "an earlier one" })
		if n := asked(func() { w.mustAcquire(3) }); n == 0 {
			t.Error("the first growth after a boot does not ask metadata")
		}
		if n := asked(func() { w.mustAcquire(4) }); n != 0 {
			t.Errorf("a later growth asks metadata %d times", n)
		}
	})
}
