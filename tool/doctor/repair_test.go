// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/repair"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// repairConflist takes a serviceLoop.
const repairConflist = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "cni-ipvlan-vpc-k8s", "interfaceIndex": 1, "secGroupIds": [],
	"ipFamilies": ["IPv4", "IPv6"], "hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true, "serviceLoop": %q}]}`

// A dual is a node with a pod that has an address of each family.
type dual struct {
	t        *testing.T
	node     *nl.NS
	conflist string
	registry *registry.Registry
	owner    registry.Lease
}

// own is the node's address of IPv6.
var own = nl.Addr{Prefix: netip.MustParsePrefix("fd00::10/64"), Dev: "eth0", NoDAD: true}

func newDual(t *testing.T, loop string) *dual {
	nltest.Need(t, "nftables")
	d := &dual{t: t, conflist: filepath.Join(t.TempDir(), "10.conflist")}
	d.node, _ = nltest.NS(t, "node")
	pod, path := nltest.NS(t, "pod")
	router, _ := nltest.NS(t, "router")
	for _, s := range (nl.Wiring{
		{NS: d.node, Object: nl.Veth{Name: "eth0", Peer: "eni0", PeerNS: router}},
		{NS: pod, Object: nl.Veth{Name: "eth0", Peer: "eni1", PeerNS: router}},
		{NS: d.node, Object: nl.Addr{Prefix: netip.MustParsePrefix("10.0.0.10/24"), Dev: "eth0"}},
		{NS: d.node, Object: own},
	}) {
		want(t, (nl.Wiring{s}).Add())
	}
	want(t, os.WriteFile(d.conflist, fmt.Appendf(nil, repairConflist, loop), 0o600))
	t.Setenv("CNI_IPVLAN_VPC_STATE_DIR", t.TempDir())
	var err error
	d.registry, err = registry.Open(registry.Dir())
	want(t, err)
	d.owner = registry.Lease{
		Key:          registry.Key{Network: "pods", Attachment: registry.Attachment{ContainerID: "c1", IfName: "eth0"}},
		PodNamespace: "default", PodName: "web", NetNS: path, ENI: "eni-1", Since: time.Now(),
	}
	want(t, d.registry.Update(t.Context(), d.lease))
	want(t, d.node.Do(d.add))
	return d
}

// lease gives the pod its addresses.
func (d *dual) lease(s *registry.State) error {
	p := netip.MustParsePrefix
	e := registry.ENI{MAC: "02:00:00:00:00:01", Index: 1, Subnet: "subnet-1", VPC: "vpc-1", CIDR: p("10.0.1.0/24"), CIDR6: p("fd00:0:1::/64"),
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.1.5"), netip.MustParseAddr("fd00:0:1::5")}}
	s.ENIs[d.owner.ENI] = e
	s.VPCs[e.VPC] = registry.VPC{CIDRs: []netip.Prefix{p("10.0.0.0/16")}, CIDRs6: []netip.Prefix{p("fd00::/48")}}
	for _, a := range e.Addrs {
		s.Leases.Set(a, d.owner)
	}
	return nil
}

// add is the ADD of the pod, as far as it is the last plugin's.
func (d *dual) add() error {
	networks, err := conf.Networks(d.conflist)
	want(d.t, err)
	state, err := d.registry.View()
	want(d.t, err)
	config, err := conf.Decode(d.conflist, networks[0].IPAM)
	want(d.t, err)
	added, err := lease.Recall(state, d.owner, config)
	want(d.t, err)
	_, err = ptp.Commands().Add(d.t.Context(), &plugin.Request[ptp.Config]{
		Network: d.owner.Network, Attachment: d.owner.Attachment, NetNS: d.owner.NetNS,
		Pod: plugin.Pod{Namespace: d.owner.PodNamespace, Name: d.owner.PodName}, Config: networks[0].Pair, Prev: added})
	return err
}

// offAndOn disables IPv6 on the node and enables it again; the node gets its address back.
func (d *dual) offAndOn() {
	d.t.Helper()
	const all = "net/ipv6/conf/all/disable_ipv6"
	want(d.t, (nl.Wiring{{NS: d.node, Object: nl.Sysctl{Key: all, Value: "1"}}}).Add())
	want(d.t, (nl.Wiring{{NS: d.node, Object: nl.Sysctl{Key: all, Value: "0"}}, {NS: d.node, Object: own}}).Add())
}

func (d *dual) repair() (did []string, err error) {
	want(d.t, d.node.Do(func() error { did, err = repair.Node(d.t.Context(), d.conflist); return nil }))
	return did, err
}

// TestRepairIPv6: IPv6 is disabled on a node and enabled again. repair puts back from the registry
// what the kernel has taken of a pod's, and so does doctor --fix; without a lease they say so.
func TestRepairIPv6(t *testing.T) {
	for _, loop := range []string{"", "none"} {
		t.Run(loop, func(t *testing.T) { testIPv6(t, newDual(t, loop)) })
	}
	d := newDual(t, "")
	d.offAndOn()
	want(t, d.registry.Update(t.Context(), func(s *registry.State) error { s.EndOf(d.owner.Key, time.Now(), time.Time{}); return nil }))
	if did, err := d.repair(); len(did) > 0 || err == nil || !strings.Contains(err.Error(), "the registry has no lease with the address") {
		t.Errorf("without a lease: %v, %v", did, err)
	}
}

// TestRepairPair: somebody has deleted all that is ours on a node with a running pod. repair gives
// the pod its veth pair again, and all that goes with it, but not while its ADD may be under
// way, nor to a pod that has ended.
func TestRepairPair(t *testing.T) {
	for _, loop := range []string{"", "none"} {
		t.Run(loop, func(t *testing.T) { testPair(t, newDual(t, loop)) })
	}
}

// TestRepairLimits: the pod has a limit of its bandwidth. Only the runtime knows it, and the repaired pair has it again. A kernel that
// has no limits shows by its refusal that it was asked for one.
func TestRepairLimits(t *testing.T) {
	d := newDual(t, "")
	pod, _ := d.running()
	dir := t.TempDir()
	defer func(were []string) { repair.Caches = were }(repair.Caches)
	repair.Caches = []string{filepath.Join(dir, "none"), dir}
	want(t, os.WriteFile(filepath.Join(dir, "pods-c1-eth0"), []byte(`{"kind": "cniCacheV1", "containerId": "c1", "capabilityArgs":
		{"bandwidth": {"ingressRate": 8000000, "ingressBurst": 4294967295, "egressRate": 0}, "io.kubernetes.cri.pod-annotations": {"a": "b"}}}`), 0o600))
	limit := nl.Limit{Devs: []string{"eth0", "eth1"}, Rate: 1000000, Burst: 128 << 10}
	d.owner.Since = d.owner.Since.Add(-time.Hour)
	want(t, d.registry.Update(t.Context(), d.lease))
	want(t, d.node.DelGroup(nl.OwnGroup))
	if did, err := d.repair(); err != nil || len(did) != 1 || limit.Check(pod) == nil {
		t.Errorf("without the capability: %v, %v", did, err)
	}
	text, err := os.ReadFile(d.conflist)
	want(t, err)
	capable := strings.Replace(string(text), `"serviceLoop"`, `"capabilities": {"bandwidth": true}, "serviceLoop"`, 1)
	want(t, os.WriteFile(d.conflist, []byte(capable), 0o600))
	want(t, d.node.DelGroup(nl.OwnGroup))
	if _, err = d.repair(); err == nil {
		err = limit.Check(pod)
	}
	if err != nil && !strings.Contains(err.Error(), "a limit of the bandwidth needs the kernel's modules") {
		t.Error(err)
	}
}

// running gives the pod its addresses, as the second plugin does.
func (d *dual) running() (pod *nl.NS, addrs nl.Wiring) {
	pod, err := nl.Open("pod", d.owner.NetNS)
	want(d.t, err)
	d.t.Cleanup(func() { pod.Close() })
	addrs = nl.Wiring{{NS: pod, Object: nl.Addr{Prefix: netip.MustParsePrefix("10.0.1.5/24"), Dev: "eth0"}},
		{NS: pod, Object: nl.Addr{Prefix: netip.MustParsePrefix("fd00:0:1::5/64"), Dev: "eth0", NoDAD: true}}}
	want(d.t, addrs.Add())
	return pod, addrs
}

func testPair(t *testing.T, d *dual) {
	pod, addrs := d.running()
	state := func() string {
		numbers := regexp.MustCompile(`(table|lookup) 2(5[6-9]|[67]\d)`) // they go by the index of the pair
		return numbers.ReplaceAllString(nltest.Dump(t, d.node, pod), "$1 N")
	}
	before := state()
	want(t, d.node.DelGroup(nl.OwnGroup))
	_, err := repair.RemoveDetached(d.node)
	want(t, err)
	_, err = d.node.RemoveShared()
	want(t, err)
	keeps := func(why string) {
		t.Helper()
		bare := state()
		if did, err := d.repair(); len(did) > 0 || err != nil || state() != bare {
			t.Errorf("%s: repair has put back %v; %v", why, did, err)
		}
	}
	keeps("while the ADD may be under way")
	d.owner.Since = d.owner.Since.Add(-time.Hour)
	want(t, d.registry.Update(t.Context(), d.lease))
	want(t, addrs.Del())
	keeps("of a pod that has had its DEL")
	want(t, addrs.Add())
	registered, err := d.registry.View()
	want(t, err)
	p := &Node{given: d.conflist, pool: &ipam.Pool{Pool: lease.Pool{Host: d.node}}, state: registered}
	if found, err := p.lost(); err != nil || len(found) != 1 || !strings.Contains(found[0].Means, "somebody has deleted the veth pair of a running pod") {
		t.Errorf("doctor: %v, %v", found, err)
	}
	if did, err := d.repair(); err != nil || !slices.Equal(did, []string{"veth pair of default/web"}) {
		t.Errorf("repair: %v, %v", did, err)
	}
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(state(), "\n")); diff != "" {
		t.Errorf("-before +after\n%s", diff)
	}
	if did, err := d.repair(); len(did) > 0 || err != nil {
		t.Errorf("of what is there it has put back %v; %v", did, err)
	}
}

func testIPv6(t *testing.T, d *dual) {
	before := nltest.Dump(t, d.node)
	state, err := d.registry.View()
	want(t, err)
	p := &Node{given: d.conflist, pool: &ipam.Pool{Pool: lease.Pool{Host: d.node}}, state: state}
	for name, fix := range map[string]func(){
		"repair": func() {
			if did, err := d.repair(); err != nil || !slices.Equal(did, []string{"IPv6 of default/web"}) {
				t.Errorf("repair: %v, %v", did, err)
			}
		},
		"doctor": func() {
			found, err := p.lost()
			if err != nil || len(found) != 1 || !strings.Contains(found[0].Means, "IPv6") {
				t.Fatalf("doctor: %v, %v", found, err)
			}
			want(t, d.node.Do(func() error { _, err := found[0].fix(t.Context()); return err }))
		},
	} {
		d.offAndOn()
		fix()
		if d := cmp.Diff(strings.Split(before, "\n"), strings.Split(nltest.Dump(t, d.node), "\n")); d != "" {
			t.Errorf("%s: -before +after\n%s", name, d)
		}
	}
	if did, err := d.repair(); len(did) > 0 || err != nil {
		t.Errorf("of what is there it has put back %v; %v", did, err)
	}
}

func want(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRepairGuard: a program has deleted what keeps pods from sending to the node as if from the VPC. doctor finds that, also that the
// node believes routers on the link of a secondary ENI, and repair puts the guard back.
func TestRepairGuard(t *testing.T) {
	d := newDual(t, "")
	other, _ := nltest.NS(t, "vpc")
	want(t, nl.Wiring{
		{NS: d.node, Object: nl.Veth{Name: "ens6", MAC: "02:00:00:00:00:01", Peer: "eni6", PeerNS: other}},
		{NS: d.node, Object: nl.Sysctl{Key: "net/ipv6/conf/ens6/accept_ra", Value: "1"}},
		{NS: d.node, Object: nl.Guard{Link: "ens6"}},
	}.Add())
	found := func() (all []string) {
		want(t, d.node.Do(func() error {
			p, err := Open("", d.conflist, t.TempDir())
			want(t, err)
			defer p.Close()
			guards, err := p.checkGuards()
			want(t, err)
			for _, f := range append(guards, p.checkRouters("eni-1", nl.Link{Name: "ens6"})...) {
				all = append(all, f.About+" "+f.Severity)
			}
			return nil
		}))
		return all
	}
	if got := found(); !slices.Equal(got, []string{"ens6 (eni-1) note"}) {
		t.Errorf("with the guard: doctor finds %q", got)
	}
	for _, family := range []string{"inet", "arp"} {
		want(t, nl.Table{Family: family, Name: nl.GuardTable}.Del(d.node))
		if got := found(); !slices.Equal(got, []string{"ens6 error", "ens6 (eni-1) note"}) {
			t.Errorf("without the guard of %s: doctor finds %q", family, got)
		}
		did, err := d.repair()
		want(t, err)
		if !slices.ContainsFunc(did, func(s string) bool { return strings.Contains(s, nl.GuardTable) }) || (nl.Guard{Link: "ens6"}).Check(d.node) != nil {
			t.Errorf("without the guard of %s: repair has done %q", family, did)
		}
	}
}
