// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// known is the name by which engines of NetworkPolicy find the pair of the pod payments/web-0.
var known = func() string { return fmt.Sprintf("eni%x", sha1.Sum([]byte("payments.web-0")))[:14] }()

// sandbox makes a namespace without links as a sandbox of the pod payments/web-0.
func (f *fabric) sandbox(name, addr string, more ...func(*types100.Result)) *pod {
	f.t.Helper()
	p := f.routed(name, addr, more...)
	p.request.Pod = plugin.Pod{Namespace: "payments", Name: "web-0"}
	p.request.Config.VethPrefix = "eni"
	must(f.t, p.request.Config.Validate())
	return p
}

// named fails unless the node's end of a pod's pair has exactly these names.
func (f *fabric) named(p *pod, want ...string) {
	f.t.Helper()
	for _, name := range want {
		near, err := f.node.LinkByName(name)
		if must(f.t, err); !slices.Equal(near.Names(), want) {
			f.t.Errorf("the names of %s are %v, not %v", name, near.Names(), want)
		}
	}
	if near := p.result.Interfaces[2]; near.Name != want[0] {
		f.t.Errorf("the result has %s, not %s", near.Name, want[0])
	}
}

// TestVethPrefix adds, checks and deletes a pod whose pair has the name for engines of NetworkPolicy, each twice. DEL
// needs neither this name nor the key vethPrefix.
func TestVethPrefix(t *testing.T) {
	f := newFabric(t)
	first := f.routed("first", "10.0.1.52", dual)
	must(t, f.ADD(first))
	must(t, f.DEL(first))
	p := f.sandbox("pod1", pod1Addr, dual)
	dump := func() string { return f.nft("list", "ruleset") + nltest.Dump(t, f.node, p.NS) }
	before, request := dump(), p.request
	serve(t, f.other, ":8080")
	for name, without := range map[string]func(){
		"nothing":        func() {},
		"the key":        func() { p.request.Config.VethPrefix = "" },
		"another key":    func() { p.request.Config.VethPrefix = "cali" },
		"the pod":        func() { p.request.Pod = plugin.Pod{} },
		"a namespace":    func() { p.request.NetNS = "" },
		"all that it is": func() { p.request.NetNS, p.request.Prev, p.request.Pod = "", nil, plugin.Pod{} },
	} {
		t.Run(name, func(t *testing.T) {
			p.request = request
			must(t, f.ADD(p))
			f.named(p, known, p.veth())
			must(t, f.CHECK(p))
			during, result := dump(), p.result
			must(t, f.ADD(p))
			same(t, "the second ADD changed something", during, dump())
			if seen, err := call(p.NS, "tcp4", otherAddr+":8080"); err != nil || seen != pod1Addr {
				t.Errorf("the pod is seen as %q; %v", seen, err)
			}
			p.request.Prev = result // as libcni calls DEL
			without()
			for range 2 {
				must(t, f.DEL(p))
				same(t, "DEL left something", before, dump())
			}
			if f.CHECK(p) == nil {
				t.Error("CHECK after DEL: no error")
			}
		})
	}
}

// TestVethPrefixWithout: the pair has its usual name if the runtime does not name the pod, or if the pod has a slave.
func TestVethPrefixWithout(t *testing.T) {
	f := newFabric(t)
	p := f.sandbox("pod1", pod1Addr)
	p.request.Pod = plugin.Pod{}
	must(t, f.ADD(p))
	f.named(p, p.veth())
	must(t, f.CHECK(p))
	q := f.pod("pod2", pod2Addr)
	q.request.Pod = plugin.Pod{Namespace: "payments", Name: "web-0"}
	q.request.Config.VethPrefix = "eni"
	must(t, f.ADD(q))
	if near, err := f.node.LinkByName(q.veth()); err != nil || len(near.Names()) != 1 {
		t.Errorf("the names of the pair of a pod with a slave are %v; %v", near.Names(), err)
	}
}

// TestVethPrefixChanged: a pair keeps its name when the key vethPrefix is added, changed or removed.
func TestVethPrefixChanged(t *testing.T) {
	f := newFabric(t)
	for i, made := range []string{"", "eni", "cali"} {
		p := f.sandbox(fmt.Sprint("pod", i), fmt.Sprint("10.0.1.", 60+i), dual)
		bare := nltest.Dump(t, f.node)
		p.request.Config.VethPrefix = made
		must(t, f.ADD(p))
		names := []string{p.veth()}
		if made != "" {
			names = []string{made + known[3:], p.veth()}
		}
		f.named(p, names...)
		before := nltest.Dump(t, f.node, p.NS)
		for _, now := range []string{"eni", "", "cali"} {
			p.request.Config.VethPrefix = now
			must(t, f.CHECK(p))
			if l := f.missing(p); !l.None() {
				t.Errorf("made with %q, now %q: it misses %v, %v, %v", made, now, l.Node, l.Pod, l.Changed)
			}
			must(t, f.ADD(p))
			f.named(p, names...)
			must(t, f.GC(p, p.request.Attachment))
			same(t, fmt.Sprintf("made with %q, now %q", made, now), before, nltest.Dump(t, f.node, p.NS))
		}
		must(t, f.DEL(p))
		if i > 0 { // the first pod has added the objects that serve all pods
			same(t, fmt.Sprintf("made with %q: DEL", made), bare, nltest.Dump(t, f.node))
		}
	}
}

// TestVethPrefixTaken: the pair of an earlier sandbox still has the name. The ADD of the next sandbox fails with an
// error after which the runtime repeats it. Neither this ADD nor the next sandbox's DEL changes the earlier sandbox.
// The earlier pair is deleted by its own DEL, or by a collection for which its attachment is not valid. A late second
// DEL of the earlier sandbox does not change the next sandbox.
func TestVethPrefixTaken(t *testing.T) {
	f := newFabric(t)
	for name, end := range map[string]func(earlier, next *pod) error{
		"DEL": func(earlier, _ *pod) error { return f.DEL(earlier) },
		"GC":  func(_, next *pod) error { return f.GC(next, next.request.Attachment) },
	} {
		t.Run(name, func(t *testing.T) {
			f := &fabric{t, f.router, f.node, f.other}
			earlier, next := f.sandbox("earlier", pod1Addr, dual), f.sandbox("next", pod2Addr, dual)
			must(t, f.ADD(earlier))
			before := nltest.Dump(t, f.node, earlier.NS, next.NS)
			for range 2 {
				tryAgain(t, f.ADD(next), known, "payments/web-0", "(container earlier)",
					"the DEL of the other container")
				same(t, "the failed ADD", before, nltest.Dump(t, f.node, earlier.NS, next.NS))
				must(t, f.DEL(next))
				same(t, "the DEL after it", before, nltest.Dump(t, f.node, earlier.NS, next.NS))
			}
			must(t, f.GC(next, earlier.request.Attachment))
			must(t, f.CHECK(earlier))
			must(t, end(earlier, next))
			must(t, f.ADD(next))
			f.named(next, known, next.veth())
			after := nltest.Dump(t, f.node, next.NS)
			must(t, f.DEL(earlier))
			earlier.request.NetNS = ""
			must(t, f.DEL(earlier))
			same(t, "a late DEL", after, nltest.Dump(t, f.node, next.NS))
			must(t, f.CHECK(next))
			must(t, f.DEL(next))
		})
	}
}

// tryAgain fails the test unless err has the code after which a runtime repeats an ADD, and all the words.
func tryAgain(t *testing.T, err error, words ...string) {
	t.Helper()
	e, is := errors.AsType[*plugin.Error](err)
	if !is || e.Code != plugin.CodeTryAgain {
		t.Fatalf("ADD: %v", err)
	}
	for _, word := range words {
		if !strings.Contains(e.Error()+" "+e.Hint, word) {
			t.Errorf("%q and the hint %q do not have %q", err, e.Hint, word)
		}
	}
}

// TestVethPrefixOthers: the node already has a link with the name: a link of another program, or the pair of an
// unfinished ADD. A collection deletes only the pair, and only if the attachment of the unfinished ADD is not valid.
// The DEL of this attachment deletes the pair, but the DEL of another sandbox does not.
func TestVethPrefixOthers(t *testing.T) {
	f := newFabric(t)
	p := f.sandbox("pod1", pod1Addr)
	must(t, f.ADD(p))
	eni, err := f.node.LinkByName("eth1")
	must(t, err)
	near, err := f.node.LinkByName(known)
	must(t, err)
	must(t, f.DEL(p))
	q := f.sandbox("pod2", pod2Addr)
	must(t, f.ADD(q)) // adds the objects that serve all pods
	must(t, f.DEL(q))
	bare := nltest.Dump(t, f.node)

	nltest.Shell(t, f.node, "ip link add "+known+" type veth peer name others")
	before := nltest.Dump(t, f.node, q.NS)
	tryAgain(t, f.ADD(q), known, "payments/web-0", "a link of another program has this name",
		"delete or rename this link")
	for _, again := range []func() error{
		func() error { return f.DEL(q) }, func() error { return f.DEL(p) }, func() error { return f.GC(p) },
	} {
		must(t, again())
		same(t, "a link of another program", before, nltest.Dump(t, f.node, q.NS))
	}
	nltest.Shell(t, f.node, "ip link del "+known)

	begin := fmt.Sprint("ip link add ", known, " group ", nl.RoutedGroup(eni.Index), " address ", near.MAC,
		" type veth peer name begun")
	nltest.Shell(t, f.node, begin)
	before = nltest.Dump(t, f.node, q.NS)
	tryAgain(t, f.ADD(q), known, "payments/web-0", "an unfinished ADD for the same pod has this name",
		"a GC deletes the pair")
	must(t, f.DEL(q))
	must(t, f.GC(q, p.request.Attachment))
	same(t, "a pair that was begun", before, nltest.Dump(t, f.node, q.NS))
	p.request.NetNS = ""
	must(t, f.DEL(p))
	same(t, "DEL of a pair that was begun", bare, nltest.Dump(t, f.node))
	nltest.Shell(t, f.node, begin)
	must(t, f.GC(q, q.request.Attachment))
	same(t, "GC of a pair that was begun", bare, nltest.Dump(t, f.node))
	must(t, f.ADD(q))
	must(t, f.DEL(q))
}

// TestVethPrefixLoss: the node loses objects of a pod whose pair has such a name. Missing reports these objects, and
// Restore restores them. Missing also reports a pod without its pair, even if the pair of the next sandbox has the
// name. Restore then adds nothing to the pair of the next sandbox.
func TestVethPrefixLoss(t *testing.T) {
	f := newFabric(t)
	p := f.sandbox("pod1", pod1Addr, dual)
	must(t, f.ADD(p))
	before := nltest.Dump(t, f.node)
	const lose = "ip route flush dev %s table all proto 72; ip -6 route flush dev %[1]s table all proto 72"
	nltest.Shell(t, f.node, fmt.Sprintf(lose, known))
	bare, err := ptp.Bare(f.node, "net")
	if err != nil || len(bare) != 1 || bare[0].Name != known {
		t.Errorf("without routes are %v; %v", bare, err)
	}
	l := f.missing(p)
	if l.Veth != known || len(l.Node) == 0 || len(l.Pod) > 0 || l.Changed != nil {
		t.Errorf("it misses %+v", l)
	}
	_, err = f.restore(l)
	must(t, err)
	same(t, "Restore", before, nltest.Dump(t, f.node))
	must(t, f.CHECK(p))

	nltest.Shell(t, f.node, fmt.Sprintf(lose, known))
	l = f.missing(p)
	must(t, f.DEL(p))
	if l := f.missing(p); !l.Unpaired {
		t.Errorf("without its pair it misses %+v", l)
	}
	next := f.sandbox("next", pod2Addr, dual)
	must(t, f.ADD(next))
	before = nltest.Dump(t, f.node)
	done, err := f.restore(l)
	if len(done) > 0 || err != nil {
		t.Errorf("restored %v; %v", done, err)
	}
	same(t, "Restore beside the next sandbox", before, nltest.Dump(t, f.node))
	if l := f.missing(p); !l.Unpaired {
		t.Errorf("beside the next sandbox it misses %+v", l)
	}
}

// TestVethPrefixUnnamed: another program removes the usual name of a pair, by which commands find it. CHECK reports the
// loss. Restore and a second ADD put the name back, even if the key vethPrefix changes. A collection keeps the pair,
// and DEL deletes it.
func TestVethPrefixUnnamed(t *testing.T) {
	f := newFabric(t)
	first := f.routed("first", "10.0.1.52", dual)
	must(t, f.ADD(first))
	must(t, f.DEL(first))
	p := f.sandbox("pod1", pod1Addr, dual)
	bare := nltest.Dump(t, f.node, p.NS)
	for _, key := range []string{"eni", "cali", ""} {
		p.request.Config.VethPrefix = "eni"
		must(t, f.ADD(p))
		before := nltest.Dump(t, f.node, p.NS)
		p.request.Config.VethPrefix = key
		nltest.Shell(t, f.node, "ip link property del dev "+known+" altname "+p.veth())
		if err := f.CHECK(p); err == nil || !strings.Contains(err.Error(), "the alternative name "+p.veth()) {
			t.Errorf("CHECK without the alternative name: %v", err)
		}
		must(t, f.GC(p, p.request.Attachment))
		l := f.missing(p)
		want := "ip link property add dev " + known + " altname " + p.veth()
		if len(l.Node) != 1 || l.Node[0].Object.String() != want || len(l.Pod) > 0 || l.Changed != nil || !l.Serious() {
			t.Errorf("with the key %q it misses %+v, want %q", key, l, want)
		}
		done, err := f.restore(l)
		if err != nil || len(done) != 1 {
			t.Errorf("restored %v; %v", done, err)
		}
		same(t, "Restore", before, nltest.Dump(t, f.node, p.NS))
		must(t, f.CHECK(p))

		nltest.Shell(t, f.node, "ip link property del dev "+known+" altname "+p.veth())
		must(t, f.ADD(p))
		f.named(p, known, p.veth())
		same(t, "the second ADD without the alternative name", before, nltest.Dump(t, f.node, p.NS))
		must(t, f.CHECK(p))

		nltest.Shell(t, f.node, "ip link property del dev "+known+" altname "+p.veth())
		must(t, f.DEL(p))
		same(t, "DEL without the alternative name", bare, nltest.Dump(t, f.node, p.NS))
	}
	p.request.Config.VethPrefix = "eni"
	must(t, f.ADD(p))
	nltest.Shell(t, f.node, "ip link property del dev "+known+" altname "+p.veth())
	p.request.NetNS = ""
	must(t, f.DEL(p))
	same(t, "DEL without the alternative name and the namespace", bare, nltest.Dump(t, f.node, p.NS))
}
