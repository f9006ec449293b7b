// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// pranks are changes that a pod may make to its own namespace. $group is the group of its links, $theirs the group of
// another pod's links, and $elsewhere another namespace.
var pranks = map[string]string{
	"nothing":            "true",
	"lo in the group":    "ip link set lo group $group",
	"lo alone in it":     "ip link set eth0 group 0; ip link set eth1 group 0; ip link set lo group $group",
	"lo down":            "ip link set lo down",
	"in no group":        "ip link set eth0 group 0; ip link set eth1 group 0",
	"in another's group": "for l in lo eth0 eth1; do ip link set $l group $theirs; done",
	"one in another's":   "ip link add more group $theirs type bridge",
	"more in the group": "for i in $(seq 50); do echo link add d$i group $group type bridge; done | ip -batch -; ip " +
		"link add x group $group type veth peer name y group $group",
	"renamed": "ip link set eth0 down; ip link set eth0 name there; ip link set eth1 down; ip link set " +
		"eth1 name here",
	"renamed, lo grouped": "ip link set eth0 down; ip link set eth0 name there group 0; ip link set lo group $group",
	"swapped": "ip link set eth0 down; ip link set eth1 down; ip link set eth0 name x; ip link set eth1 name eth0; " +
		"ip link set x name eth1",
	"deleted": "ip link del eth1; ip link del eth0",
	"replaced": `ip link set eth0 down; ip link set eth0 name there group 0; ip link del eth1
		ip link add eth0 group $group type bridge; ip link add eth1 group $group type bridge; ip link set lo group $group`,
	"altnames": "ip link set eth0 down; ip link set eth0 name there; ip link property add dev lo altname eth0; ip " +
		"link property add dev there altname eth1x",
	"moved":     "ip link set eth0 netns $elsewhere; ip link set eth1 netns $elsewhere",
	"one moved": "ip link set eth1 netns $elsewhere; ip link set lo group $group",
	"built upon": "ip link add br0 type bridge; ip link set eth1 master br0; ip link add v group $group type vxlan " +
		"id 5 dev eth0 dstport 4789; ip link set v netns $elsewhere",
	"long to tell": `for i in $(seq 1000); do echo link property add dev eth0 altname $(printf %0127d $i); done | ip ` +
		`-force -batch - 2>/dev/null || true`,
	"routes as ours": "ip route add prohibit 10.98.0.0/16 proto 72; ip route add 10.97.0.0/16 dev lo proto 72 table " +
		"72; ip route add throw 10.96.0.0/16 proto 72 table 300; ip route add 10.95.0.0/16 proto 72 nexthop dev lo " +
		"nexthop via 10.0.1.1 dev eth0; ip -6 route add unreachable fd99::/64 proto 72",
	"rules as ours": "for i in 1 2 3; do ip rule add pref 512 fwmark $i lookup 72 protocol 72; ip -6 rule add pref " +
		"1024 iif eth$i lookup 72 protocol 72; done",
	"tables as ours": "nft 'add table inet cni_ipvlan_vpc_k8s; add chain inet cni_ipvlan_vpc_k8s c { type filter " +
		"hook forward priority 0; }; add table ip cni_ipvlan_vpc_k8s; add table inet cni_ipvlan_vpc_k8s_net'",
	"other filters": `for l in eth0 eth1; do tc qdisc del dev $l clsact || tc qdisc del dev $l ingress || true; tc qdisc add dev $l ingress_block 7 clsact; done
		tc filter add block 7 pref 72 protocol all handle 1 bpf bytecode "1,6 0 0 0"`,
}

// stage runs a prank in the namespace of a pod.
func stage(t testing.TB, prank string, p *pod, theirs uint32, elsewhere string) {
	t.Helper()
	nltest.Shell(t, p.NS, fmt.Sprintf("group=%d theirs=%d elsewhere=%s\n%s", nl.PodGroup(p.request.Digest()), theirs,
		filepath.Base(elsewhere), prank))
}

// rich sets all keys by which ADD adds more to a pod.
func rich(r *plugin.Request[ptp.Config]) {
	block := true
	c := &r.Config
	c.ServiceLoop, c.KeepCaller, c.BlockInstanceMetadata = "masquerade", true, &block
}

// TestPranks: a pod with all features changes its own namespace. DEL succeeds, and nothing of the pod stays on the
// node.
func TestPranks(t *testing.T) {
	f, other := preparedTable(t)
	before := nltest.Dump(t, f.node)
	n := 1
	for name, prank := range pranks {
		t.Run(name, func(t *testing.T) {
			g := &fabric{t, f.router, f.node, f.other}
			n++
			p := g.grouped("pod2", fmt.Sprint("10.0.1.", n))
			rich(&p.request)
			_, elsewhere := nltest.NS(t, "elsewhere")
			must(t, g.ADD(p))
			stage(t, prank, p, nl.PodGroup(other.request.Digest()), elsewhere)
			for range 2 {
				must(t, g.DEL(p))
				same(t, "DEL left something on the node", before, nltest.Dump(t, f.node))
				p.request.Prev = nil
			}
		})
	}
}

// forgeries are changes by which a pod pretends to be another pod. $veth is the node's end of the pair of a pod of the
// original plugin. $far and $near are the indices of that pod's end and of the forging pod's end. $ours is the name of
// the node's end of a pair of ours.
var forgeries = map[string]string{
	"another's pair": "ip link del eth1; ip link add index $far name eth1 type veth peer name p index $near",
	"another's pair, by name": `ip link del eth1; ip link add index $far name eth1 type veth peer name $veth index $near
		ip rule add pref 1024 iif $veth lookup 967`,
	"our pair": "ip link del eth1; ip link add $ours group 72 type veth peer name eth1; ip link set $ours alias " +
		"'cni-ipvlan-vpc-k8s net gone eth0'",
	"another's rules": "ip rule add pref 1024 iif $ours lookup 262 protocol 72; ip rule add pref 1024 iif $veth " +
		"lookup 967",
	"their addresses": "ip addr add 10.0.1.50/32 dev eth0 || true; ip addr add 10.0.1.61/32 dev eth1; ip route add " +
		"10.0.1.50/32 dev eth1 proto 72 table 262",
}

// TestPodCannotReachAnother: a pod forges links and rules in its own namespace. Then our CHECK, GC and DEL run for this
// pod. They must not change the node, another pod of ours, or a pod of the original plugin.
func TestPodCannotReachAnother(t *testing.T) {
	f := newFabric(t)
	victim, old := f.grouped("victim", "10.0.1.50"), f.pod("old", "10.0.1.61")
	must(t, f.ADD(victim))
	near := f.originalPair(old, "veth7e005493", 967)
	state := func() string { return nltest.Dump(t, f.node, victim.NS, old.NS) }
	before := state()
	n := 1
	all := maps.Clone(pranks)
	maps.Copy(all, forgeries)
	for name, prank := range all {
		t.Run(name, func(t *testing.T) {
			g := &fabric{t, f.router, f.node, f.other}
			n++
			p := g.grouped("hostile", fmt.Sprint("10.0.1.", n))
			_, elsewhere := nltest.NS(t, "elsewhere")
			must(t, g.ADD(p))
			env := fmt.Sprintf("veth=%s far=%d near=%d ours=%s\n", near.Name, near.Peer, near.Index,
				victim.result.Interfaces[1].Name)
			stage(t, env+prank, p, nl.PodGroup(victim.request.Digest()), elsewhere)
			_ = g.CHECK(p) // either result is right
			must(t, g.GC(p, p.request.Attachment, victim.request.Attachment))
			for range 2 {
				must(t, g.DEL(p))
				same(t, "the others, and the node", before, state())
				p.request.Prev = nil
			}
			must(t, g.GC(p, victim.request.Attachment))
			same(t, "the others, and the node, after GC", before, state())
			must(t, g.CHECK(victim))
		})
	}
}

// TestNotItsNamespace: the path of a deleted pod leads to another namespace. This is the namespace of another pod of
// ours, of a pod of the original plugin, or of the node. DEL changes nothing there, and leaves nothing of the deleted
// pod on the node.
func TestNotItsNamespace(t *testing.T) {
	f, p := preparedTable(t)
	victim, old := f.grouped("victim", "10.0.1.55"), f.pod("old", "10.0.1.61")
	rich(&victim.request)
	must(t, f.ADD(victim))
	f.originalPair(old, "veth7e005493", 967)
	f.add(f.node, nl.Route{Dst: netip.MustParsePrefix("10.77.0.0/16"), Dev: "eth2", Protocol: nl.RouteProtocol},
		nl.Rule{Pref: 512, Mark: 1, Table: 72, Protocol: nl.RouteProtocol})
	state := func() string { return nltest.Dump(t, f.node, victim.NS, old.NS) }
	before := state()
	for _, path := range []string{victim.request.NetNS, old.request.NetNS, "/proc/thread-self/ns/net"} {
		must(t, f.ADD(p))
		gone := *p
		rich(&gone.request) // so that DEL looks for all objects that ADD can add
		gone.request.NetNS, gone.request.Prev = path, p.result
		for range 2 {
			must(t, f.DEL(&gone))
			same(t, "DEL with "+path, before, state())
		}
		if path != old.request.NetNS { // nothing shows to which pod this pair belongs
			gone.request.Prev = nil
			must(t, f.DEL(&gone))
			same(t, "DEL without prevResult, with "+path, before, state())
		}
	}
	must(t, f.CHECK(victim))
}

// TestSecondNetwork: a pod has a second network of ours, whose link another plugin has made. The second network gets no
// pair. The first network does not change, even when the second is deleted.
func TestSecondNetwork(t *testing.T) {
	f, _ := preparedTable(t)
	p := f.grouped("pod2", "10.0.1.51")
	rich(&p.request)
	must(t, f.ADD(p))
	f.add(f.router, nl.Veth{Name: "second", Peer: "net1", PeerNS: p.NS})
	second := *p
	second.request.Network, second.request.IfName = "second", "net1"
	second.request.Config.ContainerInterface = "eth3"
	for _, group := range []uint32{0, nl.PodGroup(second.request.Digest()),
		nl.FurtherGroup(nl.PodGroup(second.request.Digest()))} {
		before := nltest.Dump(t, f.node, p.NS)
		if group != 0 {
			nltest.Shell(t, p.NS, fmt.Sprint("ip link set net1 group ",
				nl.FurtherGroup(nl.PodGroup(second.request.Digest()))))
		}
		node := nltest.Dump(t, f.node)
		second.request.Prev = p.request.Prev
		must(t, f.ADD(&second))
		must(t, f.CHECK(&second))
		same(t, "ADD changed the node", node, nltest.Dump(t, f.node))
		if group != 0 {
			nltest.Shell(t, p.NS, fmt.Sprint("ip link set net1 group ", group))
		}
		for range 2 {
			second.request.Prev = nil
			must(t, f.DEL(&second))
		}
		if group != 0 { // DEL deletes this link, like a link of the ipvlan plugin
			before = strings.ReplaceAll(before, p.Name+": ip link add net1 mtu 1500 type veth up\n", "")
		}
		same(t, "DEL of the second", before, nltest.Dump(t, f.node, p.NS))
		must(t, f.CHECK(p))
		if group != 0 {
			f.add(f.router, nl.Veth{Name: "second", Peer: "net1", PeerNS: p.NS})
		}
	}
}

// TestOwnedTable: a pod has replaced our table. Only the socket that made the new table can delete the table, and this
// socket is still open (see "owner" in nft(8)). DEL succeeds, and leaves nothing on the node.
func TestOwnedTable(t *testing.T) {
	nltest.Need(t, "owner")
	f, p := preparedTable(t)
	before := nltest.Dump(t, f.node)
	rich(&p.request)
	must(t, f.ADD(p))
	nltest.Shell(t, p.NS, "nft delete table inet cni_ipvlan_vpc_k8s")
	defer keep(t, p.NS, nl.OwnTable)()
	must(t, f.DEL(p))
	same(t, "DEL left something on the node", before, nltest.Dump(t, f.node))
}

// keep makes a table that no other process can change or delete until release is called.
func keep(t *testing.T, n *nl.NS, table string) (release func()) {
	t.Helper()
	var stdin io.WriteCloser
	nft := exec.Command("nft", "-i")
	must(t, n.Do(func() (err error) {
		if stdin, err = nft.StdinPipe(); err != nil {
			return err
		}
		return nft.Start()
	}))
	release = func() { _, _ = stdin.Close(), nft.Wait() }
	fmt.Fprintln(stdin, "add table inet "+table+" { flags owner; }")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		tables, err := n.Tables()
		if slices.Contains(tables, "inet "+table) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			release()
			t.Fatal("nft has made no table: ", err)
		}
	}
	if err := (nl.Table{Family: "inet", Name: table}).Del(n); err == nil {
		release()
		t.Fatal("any user can delete the table, and so this test cannot tell")
	}
	return release
}
