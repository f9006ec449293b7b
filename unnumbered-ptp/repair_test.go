// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// nft runs nft(8) on the node, and returns its output.
func (f *fabric) nft(args ...string) string {
	f.t.Helper()
	var out []byte
	err := f.node.Do(func() (err error) { out, err = exec.Command("nft", args...).CombinedOutput(); return err })
	if err != nil {
		f.t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestRepair flushes the rules, as a firewall does. GC and the tool restore every rule, and change nothing else.
func TestRepair(t *testing.T) {
	f := newFabric(t)
	serve(t, f.router, internet+":443")
	p := f.pod("pod1", pod1Addr, dual, func(res *types100.Result) { // a VPC of two CIDRs
		res.Routes = append(res.Routes, &types.Route{Dst: cidr("100.64.0.0/10"), GW: res.IPs[0].Gateway})
	})
	must(t, f.ADD(p))
	repair := func() (nl.Wiring, error) { return ptp.Repair(f.node, p.request.Network, p.request.Config) }
	state := func() string { return f.nft("list", "ruleset") + nltest.Dump(t, f.node) }
	table := func() { f.nft("flush", "ruleset") }
	rest := func() {
		table()
		must(t, nl.Wiring{{NS: f.node, Object: nl.Rule{Pref: 512, Mark: 0x2000, Mask: 0x2000, Table: 254}}}.Del())
		f.add(f.node, nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "0"},
			nl.Sysctl{Key: "net/ipv4/conf/eth0/rp_filter", Value: "0"})
	}
	link := func() { f.add(f.node, nl.Sysctl{Key: "net/ipv4/conf/eth0/forwarding", Value: "0"}) }
	asleep := func() { f.nft("add", "table", "inet", "cni_ipvlan_vpc_k8s_net", "{ flags dormant; }") }
	drops := func() { f.nft("add", "chain", "inet", "cni_ipvlan_vpc_k8s_net", "prerouting", "{ policy drop; }") }
	table() // removes the ipvlan plugin's tables, which GC does not restore
	must(t, f.ADD(p))
	before := state()
	for name, repair := range map[string]func() error{
		"Repair": func() error { _, err := repair(); return err },
		"GC":     func() error { return f.GC(p, p.request.Attachment) },
	} {
		for _, lose := range []func(){table, rest, link, asleep, drops} {
			lose()
			if f.CHECK(p) == nil {
				t.Error("CHECK is content with what a firewall has left")
			}
			must(t, repair())
			must(t, f.CHECK(p))
			same(t, name, before, state())
			if seen, err := call(p.NS, "tcp4", internet+":443"); err != nil || seen != nodeAddr {
				t.Errorf("%s: the internet sees %q, %v", name, seen, err)
			}
		}
	}
	if w, err := repair(); len(w) > 0 || err != nil {
		t.Errorf("of what is there it has put back %v; %v", w, err)
	}
	// Repair ignores a sysctl that CHECK does not need, and tables of other programs.
	f.nft("add table inet filter; add chain inet filter input { type filter hook input priority 0; policy drop; }")
	f.add(f.node, nl.Sysctl{Key: "net/ipv4/conf/eth0/rp_filter", Value: "0"})
	others := state()
	if w, err := repair(); len(w) > 0 || err != nil {
		t.Errorf("it has put back %v; %v", w, err)
	}
	same(t, "an admin's", others, state())
	// Repair corrects a sysctl that CHECK does not need, if pods lose packets because of the value.
	for key, values := range map[string][2]string{
		"net/ipv4/conf/eth0/rp_filter": {"1", "2"}, "net/ipv4/conf/all/send_redirects": {"1", "0"},
		"net/ipv6/conf/eth0/accept_ra": {"1", "2"},
	} {
		f.add(f.node, nl.Sysctl{Key: key, Value: values[0]})
		must(t, f.CHECK(p))
		want := nl.Wiring{{NS: f.node, Object: nl.Sysctl{Key: key, Value: values[1]}}}
		if w, err := repair(); w.String() != want.String() || err != nil {
			t.Errorf("%s=%s: it has put back %v, not %v; %v", key, values[0], w, want, err)
		}
		must(t, want.Check())
	}
}

// TestRepairPart: Repair cannot restore one of several objects. It restores the others, and reports both the restored
// objects and the error.
func TestRepairPart(t *testing.T) {
	nltest.Need(t, "owner")
	f, p := preparedTable(t)
	must(t, f.ADD(p))
	marked := nl.Rule{Pref: 512, Mark: 0x2000, Mask: 0x2000, Table: 254}
	lose := func() { must(t, nl.Wiring{{NS: f.node, Object: marked}}.Del()) }
	f.nft("flush", "ruleset")
	lose()
	release := keep(t, f.node, nl.OwnTableOf("net"))
	defer release()
	w, err := ptp.Repair(f.node, "net", p.request.Config)
	if err == nil || !strings.Contains(err.Error(), "nft 'table inet cni_ipvlan_vpc_k8s_net") {
		t.Errorf("Repair did not say what it could not put back: %v", err)
	}
	if want := "node: ip rule add pref 512 fwmark 0x2000/0x2000 lookup main protocol 72\n"; w.String() != want {
		t.Errorf("Repair says that it has put back %v, not %v", w, want)
	}
	must(t, marked.Check(f.node))
	lose()
	if f.GC(p, p.request.Attachment) == nil {
		t.Error("GC succeeds, and the table is not there")
	}
	must(t, marked.Check(f.node))
	release()
	must(t, f.GC(p, p.request.Attachment))
	must(t, f.CHECK(p))
}

// TestRepairNothing: on a node without pods of the network, Repair changes nothing.
func TestRepairNothing(t *testing.T) {
	f := newFabric(t)
	p := f.pod("pod1", pod1Addr)
	bare := nltest.Dump(t, f.node)
	quiet := func(why, network string) {
		t.Helper()
		if w, err := ptp.Repair(f.node, network, p.request.Config); len(w) > 0 || err != nil {
			t.Errorf("%s: %v; %v", why, w, err)
		}
	}
	quiet("no pod was ever here", "net")
	must(t, f.GC(p))
	same(t, "no pod", bare, nltest.Dump(t, f.node))
	must(t, f.ADD(p))
	f.nft("flush", "ruleset")
	quiet("another network", "other")
	must(t, f.DEL(p))
	quiet("the last pod has gone", "net")
	same(t, "the table", "", f.nft("list", "ruleset"))
}

// TestRepairAtOnce flushes the rules while ADDs and repairs run. All of them succeed, and in the end no rule is
// missing.
func TestRepairAtOnce(t *testing.T) {
	f, p := preparedTable(t)
	must(t, f.ADD(p))
	before := f.nft("list", "ruleset")
	repair := func() error {
		return f.node.Do(func() error {
			host, err := nl.Node()
			if err != nil {
				return err
			}
			defer host.Close()
			_, err = ptp.Repair(host, p.request.Network, p.request.Config)
			return err
		})
	}
	add := func(p *pod) func() error { return func() error { return f.ADD(p) } }
	for i := range 4 {
		f.nft("flush", "ruleset")
		work := []func() error{repair, repair, repair, add(p)}
		for j := range 3 {
			work = append(work, add(f.pod(fmt.Sprint("pod", i, j), fmt.Sprint("10.0.1.", 60+i*3+j))))
		}
		errs := make(chan error, len(work))
		for _, w := range work {
			go func() { errs <- w() }()
		}
		for range work {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		same(t, "the table", before, f.nft("list", "ruleset"))
	}
}
