// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
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

// repairConflist is a format. Its argument is the value of the key serviceLoop.
const repairConflist = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	{"type": "cni-ipvlan-vpc-k8s-ipam", "interfaceIndex": 1, "secGroupIds": [], "ipFamilies": ["IPv4", "IPv6"]},
	{"type": "cni-ipvlan-vpc-k8s-unnumbered-ptp", "hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true, "serviceLoop": %q}]}`

// A dual is a node with a pod that has an address of each family. The pod's link to the VPC exists already: another
// plugin has added it.
type dual struct {
	t        *testing.T
	loop     string
	link     string // link of the ENI, if the pod is a routed pod
	node     *nl.NS
	router   *nl.NS
	conflist string
	cache    string // directory in which the runtime keeps the file about the pod
	registry *registry.Registry
	owner    registry.Lease
	final    *types100.Result // result of the last plugin for the pod's ADD
}

// own is the IPv6 address of the node.
var own = nl.Addr{Prefix: netip.MustParsePrefix("fd00::10/64"), Dev: "eth0", NoDAD: true}

func newDual(t *testing.T, loop string) *dual {
	d := newNode(t, fmt.Sprintf(repairConflist, loop))
	d.loop = loop
	pod, link := d.running()
	want(t, (nl.Wiring{{NS: pod, Object: nl.Veth{Name: "eth0", Peer: "eni1", PeerNS: d.router}}}).Add())
	want(t, link.Add())
	want(t, d.node.Do(d.add))
	return d
}

// newRouted returns a node with a routed pod. The name of the pod's pair begins as policy engines expect.
func newRouted(t *testing.T) *dual {
	d := newNode(t, strings.NewReplacer(`"serviceLoop": %q`, `"vethPrefix": "eni"`,
		`"interfaceIndex": 1`, `"dataPath": "veth"`).Replace(repairConflist))
	d.link = "ens6"
	want(t, (nl.Wiring{{NS: d.node, Object: nl.Veth{Name: d.link, MAC: "02:00:00:00:00:01", Peer: "eni2",
		PeerNS: d.router}}}).Add())
	want(t, d.registry.Update(t.Context(), d.lease))
	want(t, d.node.Do(d.add))
	return d
}

// newNode returns a node with the namespace of a pod. The pod has a lease.
func newNode(t *testing.T, conflist string) *dual {
	nltest.Need(t, "nftables")
	d := &dual{t: t, conflist: filepath.Join(t.TempDir(), "10.conflist"), cache: t.TempDir()}
	were := lease.KeptIn
	lease.KeptIn = []string{filepath.Join(d.cache, "none"), d.cache}
	t.Cleanup(func() { lease.KeptIn = were })
	d.node, _ = nltest.NS(t, "node")
	_, path := nltest.NS(t, "pod")
	d.router, _ = nltest.NS(t, "router")
	for _, s := range (nl.Wiring{
		{NS: d.node, Object: nl.Veth{Name: "eth0", Peer: "eni0", PeerNS: d.router}},
		{NS: d.node, Object: nl.Addr{Prefix: netip.MustParsePrefix("10.0.0.10/24"), Dev: "eth0"}},
		{NS: d.node, Object: own},
	}) {
		want(t, (nl.Wiring{s}).Add())
	}
	want(t, os.WriteFile(d.conflist, []byte(conflist), 0o600))
	t.Setenv("CNI_IPVLAN_VPC_STATE_DIR", t.TempDir())
	var err error
	d.registry, err = registry.Open(registry.Dir())
	want(t, err)
	d.owner = registry.Lease{
		Key:          registry.Key{Network: "pods", Attachment: registry.Attachment{ContainerID: "c1", IfName: "eth0"}},
		PodNamespace: "default", PodName: "web", NetNS: path, ENI: "eni-1", Since: time.Now(),
	}
	want(t, d.registry.Update(t.Context(), d.lease))
	return d
}

// lease adds an ENI and the leases of the pod's addresses to the registry.
func (d *dual) lease(s *registry.State) error {
	p := netip.MustParsePrefix
	e := registry.ENI{MAC: "02:00:00:00:00:01", Index: 1, Subnet: "subnet-1", VPC: "vpc-1", CIDR: p("10.0.1.0/24"),
		CIDR6: p("fd00:0:1::/64"), Link: d.link, Addrs: []netip.Addr{netip.MustParseAddr("10.0.1.4"),
			netip.MustParseAddr("10.0.1.5"), netip.MustParseAddr("fd00:0:1::5")}}
	s.ENIs[d.owner.ENI] = e
	s.VPCs[e.VPC] = registry.VPC{CIDRs: []netip.Prefix{p("10.0.0.0/16")}, CIDRs6: []netip.Prefix{p("fd00::/48")}}
	for _, a := range e.Addrs[1:] {
		s.Leases.Set(a, d.owner)
	}
	return nil
}

// result returns the configuration, and the result of ipam for the pod's ADD.
func (d *dual) result() (n conf.Network, added *types100.Result) {
	networks, err := conf.Load(d.conflist).Networks()
	want(d.t, err)
	state, err := d.registry.View()
	want(d.t, err)
	added, err = lease.Recall(state, d.owner, state.HeldBy(d.owner.Key, 0), networks[0].IPAM,
		func(configured bool) bool { return configured })
	want(d.t, err)
	return networks[0], added
}

// add executes ADD of the last plugin for the pod.
func (d *dual) add() error {
	n, added := d.result()
	final, err := ptp.Commands().Add(d.t.Context(), &plugin.Request[ptp.Config]{
		Network: d.owner.Network, Attachment: d.owner.Attachment, NetNS: d.owner.NetNS,
		Pod: plugin.Pod{Namespace: d.owner.PodNamespace, Name: d.owner.PodName}, Config: n.Pair, Prev: added})
	d.final = final
	d.final.CNIVersion = "1.0.0"
	return err
}

// del executes DEL of the last plugin for the pod.
func (d *dual) del() error {
	n, added := d.result()
	return ptp.Commands().Del(d.t.Context(), &plugin.Request[ptp.Config]{
		Network: d.owner.Network, Attachment: d.owner.Attachment, NetNS: d.owner.NetNS, Config: n.Pair, Prev: added})
}

// tell writes the file that a runtime keeps after the pod's ADD. more has further keys of the file.
func (d *dual) tell(more map[string]any) {
	config, err := os.ReadFile(d.conflist)
	want(d.t, err)
	told := map[string]any{"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "pods",
		"netns":   d.owner.NetNS,
		"cniArgs": [][2]string{{"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "web"}}, "config": config,
		"result": d.final}
	maps.Copy(told, more)
	text, err := json.Marshal(told)
	want(d.t, err)
	want(d.t, os.WriteFile(filepath.Join(d.cache, fmt.Sprintf("pods-%s-eth0", told["containerId"])), text, 0o600))
}

// settled makes the lease so old that repair does not expect the ADD to be still running.
func (d *dual) settled() {
	d.owner.Since = time.Now().Add(-time.Hour)
	want(d.t, d.registry.Update(d.t.Context(), d.lease))
}

// offAndOn disables IPv6 on the node, enables it again, and adds the node's address again.
func (d *dual) offAndOn() {
	d.t.Helper()
	const all = "net/ipv6/conf/all/disable_ipv6"
	want(d.t, (nl.Wiring{{NS: d.node, Object: nl.Sysctl{Key: all, Value: "1"}}}).Add())
	want(d.t, (nl.Wiring{{NS: d.node, Object: nl.Sysctl{Key: all, Value: "0"}}, {NS: d.node, Object: own}}).Add())
}

func (d *dual) repair() (did []string, err error) {
	want(d.t, d.node.Do(func() error { did, err = repair.Node(d.t.Context(), conf.Load(d.conflist)); return nil }))
	return did, err
}

// sources has the ways in which repair learns of a pod.
var sources = map[string]func(*dual){
	"told, and young":          func(d *dual) { d.tell(nil) },
	"told, without a registry": func(d *dual) { d.tell(nil); want(d.t, os.RemoveAll(registry.Dir())) },
	"leased":                   (*dual).settled,
	"rebuilt": func(d *dual) {
		d.owner.Key, d.owner.PodName, d.owner.PodNamespace = registry.Key{}, "", ""
		want(d.t, d.registry.Update(d.t.Context(), d.lease))
	},
}

// TestRepairPods deletes objects of a running pod from the node, as other programs and the kernel do. doctor and repair
// must find the loss, and must put all objects back. The test repeats this for each way in sources.
func TestRepairPods(t *testing.T) {
	const veth = "$VETH"
	losses := map[string]struct{ lose, means string }{
		"rule":  {"ip rule del iif " + veth, "ip rule add pref 1024 iif " + veth + " lookup"},
		"table": {"ip route flush dev " + veth + " table $TABLE", "Calls to Services fail"},
		"down and up": {"ip link set " + veth + " down; ip link set " + veth + " up",
			"Node and pod do not reach each other"},
		"routes": {"ip route del 10.0.1.5; ip route del 10.0.1.5 metric 4096",
			"Node and pod do not reach each other"},
		"route": {"ip route del 10.0.1.5", "The spare route is still there"},
		"neighbour": {"ip neigh del 10.0.1.5 dev " + veth + "; ip route del 10.0.1.5",
			"Node and pod do not reach each other"},
		"IPv6": {"sysctl -qw net.ipv6.conf.all.disable_ipv6=1; sysctl -qw net.ipv6.conf.all.disable_ipv6=0; ip addr " +
			"add fd00::10/64 dev eth0 nodad", "Node and pod do not reach each other"},
	}
	for _, loop := range []string{"", "none"} {
		for how, know := range sources {
			t.Run(loop+" "+how, func(t *testing.T) {
				d := newDual(t, loop)
				name := ptp.VethName("pods", d.owner.Attachment)
				know(d)
				before := d.sorted()
				for lost, x := range losses {
					table := 256 + d.index(name)
					script := strings.NewReplacer(veth, name, "$TABLE", strconv.Itoa(table)).Replace(x.lose)
					d.repairs(lost, before, script, strings.ReplaceAll(x.means, veth, name))
				}
			})
		}
	}
	d := newDual(t, "")
	d.offAndOn()
	want(t, d.registry.Update(t.Context(), func(s *registry.State) error {
		s.EndOf(d.owner.Key, time.Now(), time.Time{})
		return nil
	}))
	if did, err := d.repair(); len(did) > 0 || err == nil ||
		!strings.Contains(err.Error(), "repair cannot put them back") {
		t.Errorf("without a lease: %v, %v", did, err)
	}
	if found, err := d.doctor().lostObjects(); err != nil || len(found) != 1 ||
		!strings.Contains(found[0].Means, "repair cannot put them back") {
		t.Errorf("without a lease: %v, %v", found, err)
	}
}

// TestRepairRouted deletes objects of a routed pod from the node. The pod's pair has two names, and the test uses each
// of them.
func TestRepairRouted(t *testing.T) {
	for how, know := range sources {
		t.Run(how, func(t *testing.T) {
			d := newRouted(t)
			link, err := d.node.LinkByName(ptp.VethName("pods", d.owner.Attachment))
			want(t, err)
			if names := link.Names(); len(names) != 2 || !strings.HasPrefix(names[0], "eni") {
				t.Fatalf("the names of the pair are %v", names)
			}
			know(d)
			before := d.sorted()
			for lost, x := range map[string]struct{ lose, means string }{
				"down and up": {"ip link set $VETH down; ip link set $VETH up", "Node and pod do not reach each other"},
				"routes": {"ip route del 10.0.1.5; ip route del 10.0.1.5 metric 4096",
					"Node and pod do not reach each other"},
				"table":     {"ip route del 10.0.1.5 table 2147483720", "ip route replace 10.0.1.5/32 dev $NAME"},
				"neighbour": {"ip neigh del 10.0.1.5 dev $VETH; ip route del 10.0.1.5", "ip neigh add 10.0.1.5"},
				"name": {"ip link property del dev $VETH altname $OWN",
					"ip link property add dev $NAME altname $OWN"},
				"name and neighbour": {"ip neigh del 10.0.1.5 dev $VETH; ip link property del dev $VETH altname $OWN",
					"ip neigh add 10.0.1.5"},
			} {
				for _, name := range link.Names() {
					r := strings.NewReplacer("$VETH", name, "$NAME", link.Name, "$OWN", link.Names()[1])
					d.repairs(lost, before, r.Replace(x.lose), r.Replace(x.means))
				}
			}
		})
	}
	d := newRouted(t)
	nltest.Shell(t, d.node, "ip route flush table all proto 72; ip -6 route flush table all proto 72")
	want(t, d.registry.Update(t.Context(), func(s *registry.State) error {
		s.EndOf(d.owner.Key, time.Now(), time.Time{})
		return nil
	}))
	found, err := d.doctor().lostObjects()
	if err != nil || !slices.ContainsFunc(found, func(f Finding) bool {
		return strings.HasPrefix(f.About, "eni") && strings.Contains(f.Means, "repair cannot put them back")
	}) {
		t.Errorf("without a lease: %v, %v", found, err)
	}
}

// TestRepairRoutedShared: after the ADD of a routed pod, the configuration has changed, and a younger pod was added.
// The node loses objects that both pods share. repair must put these objects back as the ADD of the younger pod made
// them. The sender of ARP requests must again be the ENI's primary address, although the runtime's file does not have
// this address.
func TestRepairRoutedShared(t *testing.T) {
	for _, lose := range []string{"nft delete table arp cni_ipvlan_vpc_k8s._ask.ens6", "nft flush ruleset",
		"ip route flush proto 72 table all; ip -6 route flush proto 72 table all"} {
		t.Run(lose, func(t *testing.T) {
			d := newRouted(t)
			d.settled()
			d.tell(nil)
			older := must1(os.ReadFile(d.conflist))
			newer := strings.Replace(string(older), `"ipMasq"`, `"hostCidrs": ["10.0.0.0/16"], "ipMasq"`, 1)
			want(t, os.WriteFile(d.conflist, []byte(newer), 0o600))
			d.younger()
			state := func() string { return d.sorted() + nltest.Shell(t, d.node, "nft -s list ruleset | sort") }
			before := state()
			if did, err := d.repair(); len(did) > 0 || err != nil {
				t.Errorf("of what is there it has put back %v; %v", did, err)
			}
			nltest.Shell(t, d.node, lose)
			if did, err := d.repair(); len(did) == 0 || err != nil {
				t.Errorf("repair: %v; %v", did, err)
			}
			if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(state(), "\n")); diff != "" {
				t.Errorf("-before +after\n%s", diff)
			}
		})
	}
}

// younger adds another pod with the present configuration.
func (d *dual) younger() {
	d.t.Helper()
	_, path := nltest.NS(d.t, "younger")
	key := registry.Key{Network: "pods", Attachment: registry.Attachment{ContainerID: "c0", IfName: "eth0"}}
	addrs := []netip.Addr{netip.MustParseAddr("10.0.1.6"), netip.MustParseAddr("fd00:0:1::6")}
	l := registry.Lease{Key: key, NetNS: path, ENI: d.owner.ENI, Since: time.Now()}
	want(d.t, d.registry.Update(d.t.Context(), func(s *registry.State) error {
		e := s.ENIs[l.ENI]
		e.Addrs = append(e.Addrs, addrs...)
		s.ENIs[l.ENI] = e
		s.Leases.Set(addrs[0], l)
		s.Leases.Set(addrs[1], l)
		return nil
	}))
	n := must1(conf.Load(d.conflist).Networks())[0]
	added := must1(lease.Recall(must1(d.registry.View()), l, addrs, n.IPAM, func(is bool) bool { return is }))
	want(d.t, d.node.Do(func() error {
		final, err := ptp.Commands().Add(d.t.Context(), &plugin.Request[ptp.Config]{Network: "pods",
			Attachment: key.Attachment, NetNS: path, Config: n.Pair, Prev: added})
		final.CNIVersion = "1.0.0"
		d.tell(map[string]any{"containerId": "c0", "netns": path, "result": final})
		return err
	}))
}

// repairs runs a script that deletes objects from the node, and lets repair put them back. Then it does the same with
// doctor. Afterwards, the node must be as before.
func (d *dual) repairs(lost, before, script, means string) {
	t := d.t
	t.Helper()
	for _, by := range []string{"repair", "doctor"} {
		_ = d.node.Do(func() error { return exec.Command("sh", "-c", script).Run() }) // the pod may lack some objects
		if d.sorted() == before {
			if d.loop == "" {
				t.Errorf("%s: %s changes nothing", lost, script)
			}
			return
		}
		found, err := d.doctor().lostObjects()
		if err != nil || len(found) != 1 || found[0].Severity != severe || !strings.Contains(found[0].Means, means) {
			t.Errorf("%s: doctor: %v, %v", lost, found, err)
			return
		}
		if by == "doctor" {
			want(t, d.node.Do(func() error { _, err := found[0].fix(t.Context()); return err }))
		} else if did, err := d.repair(); err != nil || len(did) == 0 {
			t.Errorf("%s: repair: %v, %v", lost, did, err)
		}
		if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(d.sorted(), "\n")); diff != "" {
			t.Errorf("%s, %s: -before +after\n%s", lost, by, diff)
		}
	}
	if did, err := d.repair(); len(did) > 0 || err != nil {
		t.Errorf("%s: of what is there it has put back %v; %v", lost, did, err)
	}
}

// doctor returns the node as the checks of doctor see it.
func (d *dual) doctor() *Node {
	p := &Node{conflists: conf.Load(d.conflist), pool: ipam.New(lease.Pool{Host: d.node, Registry: d.registry}, nil),
		kernel: liveKernel{d.node}}
	var err error
	if p.state, err = d.registry.View(); err != nil {
		p.state = &registry.State{}
	}
	return p
}

// sorted returns the state of the node as sorted lines, because the order of rules with the same priority does not
// matter.
func (d *dual) sorted() string {
	lines := strings.Split(nltest.Dump(d.t, d.node), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// index returns the index of a link of the node.
func (d *dual) index(link string) int {
	l, err := d.node.LinkByName(link)
	want(d.t, err)
	return l.Index
}

// TestRepairSpare: the node has lost only the spare route. doctor must not report an error, and repair must put the
// route back.
func TestRepairSpare(t *testing.T) {
	d := newDual(t, "")
	d.settled()
	before := d.sorted()
	want(t, d.node.Do(func() error { return exec.Command("ip", "route", "del", "10.0.1.5", "metric", "4096").Run() }))
	if found, err := d.doctor().lostObjects(); err != nil || len(found) != 1 || found[0].Severity != note {
		t.Errorf("doctor: %v, %v", found, err)
	}
	if did, err := d.repair(); err != nil || len(did) != 1 || d.sorted() != before {
		t.Errorf("repair: %v, %v", did, err)
	}
}

// TestRepairClosed: another program has emptied a chain. Without the rules of this chain, the service loop fails open.
// doctor must name the table, and repair must put the rules back.
func TestRepairClosed(t *testing.T) {
	d := newDual(t, "")
	d.settled()
	table := "inet " + nl.OwnTableOf("pods")
	nft := func(commands ...string) (out []byte) {
		t.Helper()
		want(t, d.node.Do(func() (err error) { out, err = exec.Command("nft", commands...).Output(); return err }))
		return out
	}
	before := nft("list", "chain", table+" closed")
	nft("flush", "chain", table+" closed")
	found, err := d.doctor().lostObjects()
	if err != nil || len(found) != 1 || !strings.Contains(found[0].About, table) {
		t.Errorf("doctor: %v, %v", found, err)
	}
	did, err := d.repair()
	if after := nft("list", "chain", table+" closed"); err != nil || len(did) != 1 || !bytes.Equal(before, after) {
		t.Errorf("repair: %v, %v: before: %s, after: %s", did, err, before, after)
	}
}

// TestRepairNotInPod: the pod has lost its default route. doctor must name the route, and repair must not change the
// pod's namespace.
func TestRepairNotInPod(t *testing.T) {
	d := newDual(t, "")
	d.tell(nil)
	pod, _ := d.running()
	want(t, pod.Do(func() error { return exec.Command("ip", "route", "del", "default").Run() }))
	bare := nltest.Dump(t, pod)
	found, err := d.doctor().lostObjects()
	if err != nil || len(found) != 1 || found[0].About != "default/web" ||
		!strings.Contains(found[0].Means, "wrong: ip route add default via 10.0.0.10 dev eth1") || found[0].fix != nil {
		t.Errorf("doctor: %v, %v", found, err)
	}
	if did, err := d.repair(); err != nil || len(did) > 0 || nltest.Dump(t, pod) != bare {
		t.Errorf("repair: %v, %v", did, err)
	}
}

// TestRepairOthers: the runtime keeps the file of an old pod, but another pod has the address now. If a route to the
// address is lost, repair must not add it for the old pod.
func TestRepairOthers(t *testing.T) {
	d := newDual(t, "")
	d.tell(nil)
	d.owner.ContainerID = "c2"
	want(t, d.registry.Update(t.Context(), d.lease))
	want(t, d.node.Do(func() error { return exec.Command("ip", "route", "del", "10.0.1.5").Run() }))
	if did, err := repair.Node(t.Context(), conf.Load(filepath.Join(d.cache, "none.conflist"))); len(did) > 0 ||
		err == nil {
		t.Errorf("without a conflist: %v, %v", did, err)
	}
	lost, _, err := repair.LostBy(d.node, must1(conf.Load(d.conflist).Networks())[0], d.doctor().state)
	if err != nil || len(lost) > 0 {
		t.Errorf("lost: %v, %v", lost, err)
	}
}

// TestRepairMeanwhile: doctor and repair have read the registry. Then a pod starts, so its lease is newer than this
// state, and the pod has no route yet. doctor and repair must not report the pod.
func TestRepairMeanwhile(t *testing.T) {
	d := newDual(t, "")
	nltest.Shell(t, d.node, "ip route flush table all proto 72; ip -6 route flush table all proto 72")
	before := must1(must1(registry.Open(t.TempDir())).View())
	_, unknown, err := repair.LostBy(d.node, must1(conf.Load(d.conflist).Networks())[0], before)
	if err != nil || len(unknown) > 0 {
		t.Errorf("unknown: %v, %v", unknown, err)
	}
}

// TestLeftoversMeanwhile: after doctor has read the registry, one pod starts. While doctor reads the kernel, another
// pod ends. doctor must report no leftovers of these two pods. A veth without a lease is a leftover.
func TestLeftoversMeanwhile(t *testing.T) {
	d := newDual(t, "")
	d.tell(nil)
	starts := d.doctor()
	starts.state.EndOf(d.owner.Key, time.Now(), time.Time{})
	if found, err := starts.checkLeftovers(t.Context()); len(found) > 0 || err != nil {
		t.Errorf("a pod starts: %v, %v", found, err)
	}
	end := func(s *registry.State) error { s.EndOf(d.owner.Key, time.Now(), time.Time{}); return nil }
	want(t, d.registry.Update(t.Context(), end))
	found, err := starts.checkLeftovers(t.Context())
	isStray := func(f Finding) bool {
		return f.About == ptp.VethName("pods", d.owner.Attachment) && strings.Contains(f.Means, "no lease")
	}
	if err != nil || !slices.ContainsFunc(found, isStray) {
		t.Errorf("without a lease: %v, %v", found, err)
	}
	ends := d.doctor()
	ends.kernel = ending{liveKernel{d.node}, sync.OnceFunc(func() {
		want(t, d.node.Do(d.del))
		want(t, os.Remove(filepath.Join(d.cache, "pods-c1-eth0")))
	})}
	if found, err := ends.checkLeftovers(t.Context()); len(found) > 0 || err != nil {
		t.Errorf("a pod ends: %v, %v", found, err)
	}
}

// An ending is a kernel in which a pod ends right after doctor has listed the rules for the first time.
type ending struct {
	liveKernel
	end func()
}

func (e ending) Rules() ([]nl.Rule, error) {
	rules, err := e.liveKernel.Rules()
	e.end()
	return rules, err
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestRepairPair: on a node with a running pod, another program has deleted all objects that are ours. repair must make
// the pod's veth pair again, and all objects that depend on the pair. repair must not make a pair while the pod's ADD
// may still run, and not for a pod that has ended.
func TestRepairPair(t *testing.T) {
	for _, loop := range []string{"", "none"} {
		t.Run(loop, func(t *testing.T) { testPair(t, newDual(t, loop)) })
	}
}

// TestRepairLimits: the pod has a limit for its bandwidth, which only the runtime's file has. repair must give the new
// pair this limit. On a kernel that has no such limits, the kernel's error shows that repair has tried.
func TestRepairLimits(t *testing.T) {
	d := newDual(t, "")
	pod, _ := d.running()
	d.tell(map[string]any{"capabilityArgs": map[string]any{
		"bandwidth": map[string]any{"ingressRate": 8000000, "ingressBurst": 4294967295,
			"egressRate": 0},
		"io.kubernetes.cri.pod-annotations": map[string]string{"a": "b"}}})
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
	d.tell(map[string]any{"capabilityArgs": map[string]any{"bandwidth": map[string]any{"ingressRate": 8000000,
		"ingressBurst": 4294967295}}})
	want(t, d.node.DelGroup(nl.OwnGroup))
	if _, err = d.repair(); err == nil {
		err = limit.Check(pod)
	}
	if err != nil && !strings.Contains(err.Error(), "a limit of the bandwidth needs the kernel's modules") {
		t.Error(err)
	}
}

// running opens the pod's namespace, and returns the objects that the second plugin has made there.
func (d *dual) running() (pod *nl.NS, link nl.Wiring) {
	pod, err := nl.Open("pod", d.owner.NetNS)
	want(d.t, err)
	d.t.Cleanup(func() { pod.Close() })
	p, gw4, gw6 := netip.MustParsePrefix, netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("fe80:ec2::1")
	for _, o := range []nl.Object{
		nl.Addr{Prefix: p("10.0.1.5/24"), Dev: "eth0"}, nl.Addr{Prefix: p("fd00:0:1::5/64"), Dev: "eth0", NoDAD: true},
		nl.Route{Dst: p("10.0.0.0/16"), Via: gw4, Dev: "eth0"}, nl.Route{Dst: p("fd00::/48"), Via: gw6, Dev: "eth0"},
		nl.Route{Dst: p("::/0"), Via: gw6, Dev: "eth0"},
	} {
		link = append(link, nl.Step{NS: pod, Object: o})
	}
	return pod, link
}

func testPair(t *testing.T, d *dual) {
	pod, addrs := d.running()
	state := func() string {
		numbers := regexp.MustCompile(`(table|lookup) 2(5[6-9]|[67]\d)`) // they depend on the pair's index
		return numbers.ReplaceAllString(nltest.Dump(t, d.node, pod), "$1 N")
	}
	before := state()
	want(t, d.node.DelGroup(nl.OwnGroup))
	_, err := ptp.RemoveDetached(d.node)
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
	d.settled()
	want(t, addrs.Del())
	keeps("of a pod that has had its DEL")
	want(t, addrs.Add())
	if found, err := d.doctor().lostObjects(); err != nil || len(found) != 1 ||
		!strings.Contains(found[0].Means, "the veth pair of a running pod is gone") {
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

func want(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRepairGuard: a program has deleted the guard, which drops packets that pods send directly to the node. doctor
// must find this, and repair must put the guard back. doctor must also find that the node accepts router advertisements
// on the link of a secondary ENI.
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
		if !slices.ContainsFunc(did, func(s string) bool { return strings.Contains(s, nl.GuardTable) }) ||
			(nl.Guard{Link: "ens6"}).Check(d.node) != nil {
			t.Errorf("without the guard of %s: repair has done %q", family, did)
		}
	}
}

// TestRoutedGuard: an ENI with routed pods needs no guard, even if the node has lost its routes to the pods.
func TestRoutedGuard(t *testing.T) {
	d := newRouted(t)
	routes, err := d.node.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	want(t, err)
	want(t, nl.Steps(d.node, routes).Del())
	want(t, d.node.Do(func() error {
		p, err := Open("", d.conflist, t.TempDir())
		want(t, err)
		defer p.Close()
		if found, err := p.checkGuards(); len(found) > 0 || err != nil {
			t.Errorf("doctor finds %v; %v", found, err)
		}
		return nil
	}))
}

// TestBootPods checks that doctor reports pods on the boot ENI, and no pods on other ENIs.
func TestBootPods(t *testing.T) {
	p := &Node{state: &registry.State{ENIs: map[string]registry.ENI{"eni-boot": {Boot: true, Index: 0},
		"eni-pods": {Index: 1}}}}
	if found := p.checkBoot(map[string]bool{"eni-boot": true, "eni-pods": true}); len(found) != 1 ||
		found[0].About != "eni-boot" || found[0].Severity != note {
		t.Errorf("doctor finds %+v", found)
	}
	if found := p.checkBoot(map[string]bool{"eni-pods": true}); len(found) > 0 {
		t.Errorf("without pods there, doctor finds %+v", found)
	}
}
