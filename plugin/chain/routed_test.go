// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"net/netip"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// byVeth configures routed pods. byName also gives their pairs names for engines of NetworkPolicy.
const (
	byVeth = `, "dataPath": "veth"`
	byName = byVeth + `, "vethPrefix": "eni"`
)

// two runs the ADDs of the ipam and unnumbered-ptp plugins, without ipvlan.
func (n node) two(r *plugin.Request[Config]) (result *types100.Result, err error) {
	err = n.ns.Do(func() (err error) {
		ctx, step := n.Context(), *r
		if step.Prev, _, err = lease.Add(ctx, requestOf(&step, r.Config.ipam), lease.Program(ctx, &step)); err != nil {
			return err
		}
		result, err = ptp.Commands().Add(ctx, requestOf(&step, r.Config.ptp))
		return err
	})
	return result, err
}

// TestRoutedSame: the combined plugin, the three plugins, and two plugins without ipvlan add the same routed pod. Each
// chain checks and deletes the pods of the other chains.
func TestRoutedSame(t *testing.T) {
	n := newNodeWithout(t)
	pod, path := nltest.NS(t, "pod")
	r := n.request(path, byVeth)
	adds := map[string]func(*plugin.Request[Config]) (*types100.Result, error){"one": n.ADD, "three": n.three,
		"two": n.two}
	chains := map[string][]plugin.Commands[Config]{"three": plugins[:3], "two": {plugins[0], plugins[2]}}
	bare := nltest.Dump(t, pod)
	_, err := n.ADD(r)
	n.must(err)
	made := nltest.Dump(t, n.ns, pod)
	n.must(n.DEL(r))
	alone := nltest.Dump(t, n.ns)
	for by, add := range adds {
		for _, end := range []string{"one", "three", "two"} {
			n.must(n.registry().Change(t.Context(), func(s *registry.State) { // so this address is the longest free
				s.Free.Set(netip.MustParseAddr("10.0.1.20"), time.Time{})
			}))
			var result *types100.Result
			for range 2 {
				result, err = add(r)
				n.must(err)
				n.same(by+" made another pod", made, nltest.Dump(t, n.ns, pod))
			}
			n.must(n.CHECK(r, result))
			final := *r
			final.Prev = result
			for range 2 {
				n.must(n.ns.Do(func() error {
					if end == "one" {
						return Commands().Del(t.Context(), &final)
					}
					return n.inTurn(chains[end], &final)
				}))
				n.same(end+" left something of what "+by+" made", bare, nltest.Dump(t, pod))
				n.same(end+" left something on the node", alone, nltest.Dump(t, n.ns))
				n.vacant()
			}
		}
	}
}

// If the pod has its pair, inTurn runs the CHECKs of a chain. Then it runs the DELs of the chain, from the last plugin
// to the first.
func (n node) inTurn(chain []plugin.Commands[Config], r *plugin.Request[Config]) error {
	n.Helper()
	if _, err := n.ns.LinkByName(ptp.VethName(r.Network, r.Attachment)); err == nil {
		for _, c := range chain {
			n.must(c.Check(n.Context(), r))
		}
	}
	for i := range chain {
		n.must(chain[len(chain)-1-i].Del(n.Context(), r))
	}
	return nil
}

func TestRoutedTakeBack(t *testing.T) {
	newNodeWithout(t).takesBack(byVeth, `, "hostInterface": "eth9"`)
}

// TestRoutedGC: a GC keeps the routed pod with the valid attachment, and deletes the other routed pod. After the last
// pod and RemoveShared, the node is as it was before the first pod.
func TestRoutedGC(t *testing.T) {
	n := newNodeWithout(t)
	before := nltest.Dump(t, n.ns)
	_, path := nltest.NS(t, "pod")
	r := n.request(path, byVeth)
	result, err := n.ADD(r)
	n.must(err)
	alone := nltest.Dump(t, n.ns)
	other := n.request("", byVeth)
	other.ContainerID = "pod2"
	_, other.NetNS = nltest.NS(t, "other")
	_, err = n.ADD(other)
	n.must(err)
	nltest.Remove(t, other.NetNS)
	n.must(n.GC(r, r.Attachment))
	n.same("GC left something", alone, nltest.Dump(t, n.ns))
	n.must(n.CHECK(r, result))
	n.must(n.GC(r))
	n.must(n.DEL(r))
	n.vacant()
	if _, err := n.ns.RemoveShared(); err != nil {
		t.Error(err)
	}
	n.same("RemoveShared left something", before, nltest.Dump(t, n.ns))
	n.must(nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}.Check(n.ns))
}
