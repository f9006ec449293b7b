// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" { // if CNI_COMMAND is set, the test binary is the plugin
		plugin.Unhurried = true
		asPart(os.Getenv(partOf))
		plugin.Main("cni-ipvlan-vpc-k8s", Commands())
	}
	os.Exit(nltest.Guard{M: m}.Run())
}

// A node has the links of two ENIs. Its registry has some addresses of the second ENI.
type node struct {
	*testing.T
	ns, vpc *nl.NS
	more    int // further addresses in the registry
}

const eniMAC = "0a:00:00:00:00:02"

func newNode(t *testing.T) node {
	t.Helper()
	nltest.Need(t, "ipvlan")
	return newNodeWithout(t)
}

// newNodeWithout makes a node, and does not need ipvlan in the kernel.
func newNodeWithout(t *testing.T) node {
	t.Helper()
	nltest.Need(t, "root", "nftables")
	n := node{T: t}
	n.ns, _ = nltest.NS(t, "node")
	n.vpc, _ = nltest.NS(t, "vpc")
	n.must(nl.Wiring{
		{NS: n.ns, Object: nl.Veth{Name: "eth0", MAC: "0a:00:00:00:00:01", Peer: "eni0", PeerNS: n.vpc, MTU: 9001}},
		{NS: n.ns, Object: nl.Addr{Prefix: netip.MustParsePrefix("10.0.0.10/24"), Dev: "eth0"}},
		{NS: n.ns, Object: nl.Veth{Name: "ens6", MAC: eniMAC, Peer: "eni1", PeerNS: n.vpc, MTU: 9001}},
	}.Add())
	dir, err := os.MkdirTemp("/run", "chain")
	n.must(err)
	t.Cleanup(func() { n.must(os.RemoveAll(dir)) })
	t.Setenv("CNI_IPVLAN_VPC_STATE_DIR", dir)
	n.must(n.registry().Change(t.Context(), learnt))
	return n
}

// learnt fills the registry, so that no plugin needs to ask EC2 or the metadata service.
func learnt(s *registry.State) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	s.Instance = registry.Instance{ID: "i-1", Type: "m5.large", ENIs: 3, IPv4PerENI: 10}
	s.VPCs["vpc-1"] = registry.VPC{CIDRs: []netip.Prefix{prefix("10.0.0.0/16")}}
	s.ENIs["eni-1"] = registry.ENI{MAC: "0a:00:00:00:00:01", CIDR: prefix("10.0.0.0/24"), VPC: "vpc-1",
		Addrs: []netip.Addr{addr("10.0.0.10")}}
	eni := registry.ENI{MAC: eniMAC, Index: 1, CIDR: prefix("10.0.1.0/24"), VPC: "vpc-1", Serving: true, Managed: true}
	for a := addr("10.0.1.20"); len(eni.Addrs) < 4; a = a.Next() {
		eni.Addrs = append(eni.Addrs, a)
		s.Free.Set(a, time.Time{})
	}
	s.ENIs["eni-2"] = eni
}

func (n node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// within returns the node for a subtest.
func (n node) within(t *testing.T) node { return node{t, n.ns, n.vpc, n.more} }

func (n node) registry() *registry.Registry {
	n.Helper()
	r, err := registry.Open(registry.Dir())
	n.must(err)
	return r
}

// vacant checks that no attachment has a lease, and that no ADD waits. All addresses must be free, except those with a
// lease without an attachment.
func (n node) vacant() {
	n.Helper()
	s, err := n.registry().View()
	n.must(err)
	kept := 0 // leases of a namespace whose link has lost its group: a GC ends such leases
	for _, l := range s.Leases.All() {
		if l.Key == (registry.Key{}) {
			kept++
		}
	}
	if s.Leases.Len() > kept || len(s.Waiters) > 0 || s.Free.Len()+kept != 4+n.more {
		n.Errorf("leases %v, waiters %v, free %v", maps.Collect(s.Leases.All()), s.Waiters, maps.Collect(s.Free.All()))
	}
}

// ofPair matches the number of a pod's routing table. This number is computed from the index of the pod's veth pair, so
// each run has other numbers.
var ofPair = regexp.MustCompile(`(table|lookup) 2[67]\d `)

func (n node) same(what, want, got string) {
	n.Helper()
	lines := func(dump string) []string { return strings.Split(ofPair.ReplaceAllString(dump, "$1 N "), "\n") }
	if d := cmp.Diff(lines(want), lines(got)); d != "" {
		n.Errorf("%s: -want +got\n%s", what, d)
	}
}

// config returns a complete configuration with additional keys.
func config(keys string) string {
	return `{"cniVersion": "1.0.0", "name": "net", "type": "cni-ipvlan-vpc-k8s", "interfaceIndex": 1, "secGroupIds": [], "reuseIPWait": 0,
		"hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true` + keys + `}`
}

// request returns a request for the pod whose namespace is at path.
func (n node) request(path, keys string) *plugin.Request[Config] {
	n.Helper()
	r := &plugin.Request[Config]{Network: "net", Attachment: plugin.Attachment{ContainerID: "pod1", IfName: "eth0"},
		NetNS: path,
		Pod:   plugin.Pod{Namespace: "default", Name: "pod1"}}
	n.must(json.Unmarshal([]byte(config(keys)), &r.Config))
	n.must(r.Config.Validate())
	return r
}

func (n node) ADD(r *plugin.Request[Config]) (result *types100.Result, err error) {
	err = n.ns.Do(func() (err error) { result, err = Commands().Add(n.Context(), r); return err })
	return result, err
}

func (n node) DEL(r *plugin.Request[Config]) error {
	return n.ns.Do(func() error { return Commands().Del(n.Context(), r) })
}

func (n node) CHECK(r *plugin.Request[Config], result *types100.Result) error {
	final := *r
	final.Prev = result
	return n.ns.Do(func() error { return Commands().Check(n.Context(), &final) })
}

func (n node) GC(r *plugin.Request[Config], valid ...plugin.Attachment) error {
	all := *r
	all.Attachment, all.Valid = plugin.Attachment{}, valid
	return n.ns.Do(func() error { return Commands().GC(n.Context(), &all) })
}

// three runs the ADDs of the three plugins one after the other, as a runtime does.
func (n node) three(r *plugin.Request[Config]) (result *types100.Result, err error) {
	err = n.ns.Do(func() (err error) {
		ctx, step := n.Context(), *r
		if step.Prev, _, err = lease.Add(ctx, requestOf(&step, r.Config.ipam), lease.Program(ctx, &step)); err != nil {
			return err
		}
		if step.Prev, err = ipvlan.Commands(nil).Add(ctx, requestOf(&step, r.Config.ipvlan)); err != nil {
			return err
		}
		result, err = ptp.Commands().Add(ctx, requestOf(&step, r.Config.ptp))
		return err
	})
	return result, err
}

// TestSame: the combined plugin and the three plugins add the same objects. Each of these two chains checks and deletes
// the pods of the other chain. Each command succeeds a second time.
func TestSame(t *testing.T) {
	n := newNode(t)
	pod, path := nltest.NS(t, "pod")
	r := n.request(path, "")
	bare := nltest.Dump(t, pod)
	_, err := n.three(r)
	n.must(err)
	made := nltest.Dump(t, n.ns, pod)
	for range 2 {
		n.must(n.DEL(r))
		n.same("DEL left something of the pod", bare, nltest.Dump(t, pod))
		n.vacant()
	}
	alone := nltest.Dump(t, n.ns)
	var result *types100.Result
	// This change makes 10.0.1.20 the address that has been free longest, so the next ADD takes it.
	n.must(n.registry().Change(t.Context(), func(s *registry.State) {
		s.Free.Set(netip.MustParseAddr("10.0.1.20"), time.Time{})
	}))
	for range 2 {
		result, err = n.ADD(r)
		n.must(err)
		n.same("the one made what the three do not", made, nltest.Dump(t, n.ns, pod))
		n.must(n.CHECK(r, result))
	}
	r.Prev = result
	n.must(n.ns.Do(func() error {
		for _, c := range []func(context.Context, *plugin.Request[Config]) error{plugins[2].Check, plugins[1].Check,
			plugins[0].Check, plugins[2].Del, plugins[1].Del, plugins[0].Del} {
			n.must(c(n.Context(), r))
		}
		return nil
	}))
	n.same("the three left something", alone, nltest.Dump(t, n.ns))
	n.vacant()
	if err := n.CHECK(r, result); err == nil {
		t.Error("CHECK finds nothing wrong with a pod that is deleted")
	}
}

// takesBack makes two ADDs fail by the additional keys in more: one before the pod has its network, and one while the
// pod runs.
func (n node) takesBack(keys, more string) {
	n.Helper()
	pod, path := nltest.NS(n, "pod")
	good, bad := n.request(path, keys), n.request(path, keys+more)
	before := nltest.Dump(n, n.ns, pod)
	if _, err := n.ADD(bad); err == nil || !strings.Contains(err.Error(), "eth9") {
		n.Fatalf("ADD: %v", err)
	}
	n.same("ADD failed and left something", before, nltest.Dump(n, n.ns, pod))
	n.vacant()

	result, err := n.ADD(good)
	n.must(err)
	whole := nltest.Dump(n, n.ns, pod)
	if _, err := n.ADD(bad); err == nil {
		n.Fatal("ADD: no error")
	}
	n.same("the second ADD failed and took something", whole, nltest.Dump(n, n.ns, pod))
	n.must(n.CHECK(good, result))
	n.must(n.DEL(good))
	n.vacant()
}

// TestTakeBack: a failing ADD leaves nothing, even without a DEL. If the pod already runs, a failing ADD does not
// change it.
func TestTakeBack(t *testing.T) {
	for name, keys := range map[string]string{"ipvlan": `, "master": "eth9"`,
		"unnumbered-ptp": `, "hostInterface": "eth9"`} {
		t.Run(name, func(t *testing.T) {
			newNode(t).takesBack("", keys)
		})
	}
}

// TestStatus: STATUS succeeds on a node on which a pod can start, and fails if the ipam plugin's program is missing.
func TestStatus(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	t.Setenv("CNI_PATH", "/nonexistent:"+dir)
	r := n.request("", "")
	r.Attachment = plugin.Attachment{}
	status := func() error { return n.ns.Do(func() error { return Commands().Status(t.Context(), r) }) }
	err := status()
	if e, ok := errors.AsType[*plugin.Error](err); !ok || e.Code != plugin.CodeNotAvailable ||
		!strings.Contains(err.Error(), lease.GrowProgram) {
		t.Errorf("STATUS without %s: %v", lease.GrowProgram, err)
	}
	n.must(os.WriteFile(filepath.Join(dir, lease.GrowProgram), nil, 0o755))
	n.must(status())
	reg, err := registry.Open(registry.Dir())
	n.must(err)
	unlock, err := reg.Lock(t.Context(), "registry")
	n.must(err)
	defer unlock()
	n.must(status()) // STATUS does not wait for the lock
}

// TestGC: a GC keeps the pod with the valid attachment, and deletes the other pod.
func TestGC(t *testing.T) {
	n := newNode(t)
	_, path := nltest.NS(t, "pod")
	r := n.request(path, "")
	result, err := n.ADD(r)
	n.must(err)
	alone := nltest.Dump(t, n.ns)

	other := n.request("", "")
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
}
