// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/kubeproxy"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
)

// A direct counts the packets of the first pod in a scene.
type direct struct{ *paths.Scene }

// directPaths are paths between a pod and other addresses of the VPC. Paths to Services are not direct: they lead
// through the node.
var directPaths = []string{
	"pod to pod, on one ENI", "pod to pod, on two ENIs of a node", "pod to pod, on two nodes",
	"pod to pod, on two nodes, back",
	"pod to a host in the VPC", "host in a peered VPC to pod",
}

// untouched makes requests on direct paths. The node has the rules of kube-proxy. No connection tracker and no
// netfilter hook of the node may handle the packets of these requests. The same holds in the pod, except if the pod
// masquerades. Requests to a Service prove that the counters work.
func (d direct) untouched(t *testing.T, untracked bool) {
	t.Helper()
	pod, node := d.Nodes[0].Pods[0], d.Nodes[0]
	meter := d.meter()
	if err := meter.Add(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := meter.Del(); err != nil {
			t.Error(err)
		}
	}()
	const rounds = 3
	podBefore, nodeBefore := nltest.Tracked(t, pod.NS), nltest.Tracked(t, node.NS)
	requests := 0
	for _, p := range slices.Concat(paths.Daily, paths.Further) {
		for _, f := range dual.Families {
			for range rounds {
				if !slices.Contains(directPaths, p.Name) {
					continue
				}
				r := p.Try(d.Scene, f, paths.Probes[1:3])
				if requests += r.Of; r.Err != nil {
					t.Fatal(r.Err)
				}
			}
		}
	}
	inPod, onNode, met := nltest.Tracked(t, pod.NS)-podBefore, nltest.Tracked(t, node.NS)-nodeBefore, d.met(t)
	hooks := nltest.Hooked(t, pod.NS)
	t.Logf("%d direct requests: the pod tracks %d more and has netfilter tables %v, the node tracks %d more, and %d "+
		"packets met netfilter there",
		requests, inPod, hooks, onNode, met)
	if onNode > 0 || met != 0 || untracked && (inPod != 0 || podBefore != 0 || len(hooks) != 0) {
		t.Error("want nothing of that")
	}
	if !untracked && (inPod <= 0 || len(hooks) == 0) {
		t.Error("a pod that masquerades tracks nothing: this test proves nothing")
	}
	call(t, d.Scene, requests/4)
	t.Logf("%d requests to a Service: the pod tracks %d, the node %d more, and %d packets met netfilter there",
		requests/4, nltest.Tracked(t, pod.NS), nltest.Tracked(t, node.NS)-nodeBefore, d.met(t))
	if now := nltest.Tracked(t, node.NS); now < requests/4 || d.met(t) == 0 {
		t.Errorf("the node tracks %d connections, and so this test proves nothing", now)
	}
}

// manyConnections makes many connections to a Service, one after the other. No new connection may have to wait until
// the tracker has forgotten an older connection. The client closes each connection, so the connection's port stays in
// use for a minute. TestManyConnections of unnumbered-ptp makes more connections than there are ports.
func manyConnections(t *testing.T, s *paths.Scene) {
	t.Helper()
	const count = 500
	pod, start := s.Nodes[0].Pods[0], time.Now()
	before := counter(t, pod.NS, "TcpRetransSegs")
	call(t, s, count)
	more := counter(t, pod.NS, "TcpRetransSegs") - before
	t.Logf("%d connections to one backend of a Service, one after the other, in %s: %d segments were sent again", count,
		time.Since(start).Round(time.Second), more)
	if more > count/100 {
		t.Error("want nearly none of that: who is not answered at once waits for a second")
	}
}

func counter(t *testing.T, n *nl.NS, name string) (count int) {
	t.Helper()
	var out []byte
	if err := n.Do(func() (err error) {
		out, err = exec.Command("nstat", "-asz", name).Output()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(out), "#kernel\n"+name+" %d", &count); err != nil {
		t.Fatalf("nstat: %v:\n%s", err, out)
	}
	return count
}

func call(t *testing.T, s *paths.Scene, times int) {
	t.Helper()
	to := netip.AddrPortFrom(kubeproxy.Services()[0].ClusterIP.V4, kubeproxy.Services()[0].Port)
	p, pod := paths.Services[0], s.Nodes[0].Pods[0]
	want, err := p.Seen(s, paths.IPv4, paths.End{Addr: netip.AddrPortFrom(pod.Addr(paths.IPv4), 0)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range times {
		seen, err := pod.Call("tcp", to)
		if err != nil || seen.Addr() != want {
			t.Fatalf("call %d of %d to Service %s: seen as %s; %v", i+1, times, kubeproxy.Services()[0].Name, seen, err)
		}
	}
}

// meterName is the name of a table of the node. The table's chains run before all others, and count the packets from
// and to the pod.
const meterName = "packetcount" // nft(8) has a keyword meter

func (d direct) meter() nl.Wiring {
	t := nl.Table{Family: "inet", Name: meterName}
	for _, hook := range []string{"prerouting", "input", "forward", "output", "postrouting"} {
		c := nl.Chain{Name: hook, Type: "filter", Hook: hook, Priority: -400}
		for _, a := range d.Nodes[0].Pods[0].Addrs {
			single := netip.PrefixFrom(a, a.BitLen())
			c.Rules = append(c.Rules, nl.NFRule{nl.SAddr(single), nl.Count()}, nl.NFRule{nl.DAddr(single), nl.Count()})
		}
		t.Chains = append(t.Chains, c)
	}
	return nl.Wiring{{NS: d.Nodes[0].NS, Object: t}}
}

var packets = regexp.MustCompile(`counter packets (\d+)`)

// met returns the sum of the packet counters. A packet counts once in each hook that it passes.
func (d direct) met(t *testing.T) (sum int) {
	t.Helper()
	var out []byte
	if err := d.Nodes[0].Do(func() (err error) {
		out, err = exec.Command("nft", "list", "table", "inet", meterName).Output()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	found := packets.FindAllSubmatch(out, -1)
	if len(found) == 0 {
		t.Fatalf("no counters:\n%s", out)
	}
	for _, m := range found {
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}
