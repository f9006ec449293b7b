// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A setting has the keys of a configuration that decide which destinations a pod reaches through its ENI.
type setting struct {
	route string   // defaultRoute
	hosts []string // hostCidrs
	peers []string // destinations through the ENI, from the ipam plugin
}

// set makes a routed pod with a setting.
func (f *fabric) set(name, addr string, s setting) *pod {
	f.t.Helper()
	return f.configured(f.routed(name, addr, dual, peers(s.peers...)), func(c *ptp.Config) {
		c.DefaultRoute, c.HostCIDRs = s.route, s.hosts
	})
}

// seenBy calls the other host by both families, and the internet by IPv4. It compares the sources that they see with
// other and world. An empty string stands for the pod's own address.
func (f *fabric) seenBy(when, other, world string, pods ...*pod) {
	f.t.Helper()
	for _, p := range pods {
		for _, c := range []struct{ network, to, as string }{
			{"tcp4", otherAddr, other}, {"tcp6", otherAddr, other}, {"tcp4", internet, world},
		} {
			seen, err := call(p.NS, c.network, dialled(c.network, c.to+":8080"))
			if want := seenAs(c.network, cmp.Or(c.as, p.addr)); seen != want || err != nil {
				f.t.Errorf("%s: %s calls %s (%s) and is seen as %q, want %q; %v", when, p.Name, c.to, c.network, seen,
					want, err)
			}
		}
	}
}

// inVPC are hostCidrs in the VPC, of both families.
var inVPC = []string{"10.0.2.0/24", "fd00:0:2::/64"}

// TestRoutedChanges: the configuration changes while pods of two ENIs run. After the ADD of another pod, the pods of
// both ENIs reach each destination as the new configuration says. Nothing is missing then, so repair does not undo the
// change, and the next ADD changes nothing.
func TestRoutedChanges(t *testing.T) {
	const service = "172.20.0.0/16"
	itself, node, nested := "", nodeAddr, append([]string{otherAddr, sixth(otherAddr)}, inVPC...)
	for name, x := range map[string]struct {
		older, newer setting
		other, world string // sources that the other host and the internet see after the change
	}{
		"a host CIDR of the VPC comes": {setting{}, setting{hosts: inVPC}, node, node},
		"a host CIDR of the VPC goes":  {setting{hosts: inVPC}, setting{}, itself, node},
		"nested host CIDRs go":         {setting{hosts: nested}, setting{}, itself, node},
		"one of nested host CIDRs goes": {setting{hosts: nested},
			setting{hosts: inVPC}, node, node},
		"the default route becomes vpc": {setting{hosts: []string{service}},
			setting{route: "vpc", hosts: []string{service}}, itself, itself},
		"the default route becomes host": {setting{route: "vpc", hosts: []string{service}}, setting{}, itself, node},
		"a peer comes":                   {setting{}, setting{peers: []string{"198.51.100.0/24"}}, itself, itself},
		"a peer goes":                    {setting{peers: []string{"198.51.100.0/24"}}, setting{}, itself, node},
		"a peer and a host CIDR of it go": {setting{peers: []string{"198.51.0.0/16"}, hosts: []string{internet}},
			setting{}, itself, node},
		"a host CIDR of a peer goes": {setting{peers: []string{"198.51.0.0/16"}, hosts: []string{internet}},
			setting{peers: []string{"198.51.0.0/16"}}, itself, itself},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			serve(t, f.other, ":8080")
			serve(t, f.router, internet+":8080")
			near, far := f.set("pod1", pod1Addr, x.older), f.set("pod3", pod3Addr, x.older)
			must(t, f.ADD(near))
			must(t, f.ADD(far))
			newer := f.set("pod2", pod2Addr, x.newer)
			must(t, f.ADD(newer))
			pods := []*pod{near, far, newer}
			f.seenBy("after the change", x.other, x.world, pods...)
			state := func() string { return f.sorted() + nltest.Dump(t, f.node) }
			before := state()
			for _, p := range pods {
				must(t, f.CHECK(p))
				if l := f.missing(p); !l.None() {
					t.Errorf("%s misses %v, %v, %v", p.Name, l.Node, l.Pod, l.Changed)
				}
			}
			must(t, f.ADD(newer))
			same(t, "the second ADD", before, state())
		})
	}
}

// TestRoutedChangesKilled: an ADD changes the routes of two ENIs, and is killed at any moment. The running pods still
// reach the destination, through the ENI or through the node. After the next ADD, they reach it as the new
// configuration says.
func TestRoutedChangesKilled(t *testing.T) {
	f := newFabric(t)
	serve(t, f.other, ":8080")
	serve(t, f.router, internet+":8080")
	for point, killed := 1, true; killed; point++ {
		older := setting{hosts: inVPC}
		near, far := f.set("pod1", pod1Addr, older), f.set("pod3", pod3Addr, older)
		must(t, f.ADD(near))
		must(t, f.ADD(far))
		newer := f.set("pod2", pod2Addr, setting{})
		tr := &trace.Trace{Counts: requests, Every: true, Kill: point}
		killed = (victim{t: t, fabric: f, verb: "ADD"}).run(newer, tr).Signaled()
		for _, p := range []*pod{near, far} {
			seen, err := call(p.NS, "tcp4", otherAddr+":8080")
			if err != nil || seen != p.addr && seen != nodeAddr {
				t.Errorf("killed at request %d: %s is seen as %q; %v", point, p.Name, seen, err)
			}
		}
		must(t, f.DEL(newer))
		must(t, f.ADD(newer))
		f.seenBy(fmt.Sprint("after a kill at request ", point), "", nodeAddr, near, far, newer)
		for _, p := range []*pod{near, far, newer} {
			must(t, f.DEL(p))
		}
	}
}

// TestRoutedNetworks: pods of two networks share two ENIs, and only one network has hostCidrs. An ADD of the other
// network keeps the routes to these CIDRs as long as a pod of the first network uses them.
func TestRoutedNetworks(t *testing.T) {
	f := newFabric(t)
	serve(t, f.other, ":8080")
	serve(t, f.router, internet+":8080")
	hosts := setting{hosts: inVPC}
	var others []*pod
	for name, addr := range map[string]string{"pod1": pod1Addr, "pod3": pod3Addr} {
		p := f.set(name, addr, hosts)
		p.request.Network = "others"
		must(t, f.ADD(p))
		others = append(others, p)
	}
	near, far := f.set("pod2", pod2Addr, setting{}), f.set("far", "10.0.3.51", setting{})
	for i := range 3 {
		must(t, f.ADD(near))
		must(t, f.ADD(far))
		f.seenBy("two networks", nodeAddr, nodeAddr, append(others, near, far)...)
		for _, p := range append(others, near, far) {
			must(t, f.CHECK(p))
			if l := f.missing(p); !l.None() {
				t.Errorf("%s misses %v, %v, %v", p.Name, l.Node, l.Pod, l.Changed)
			}
		}
		if i == 1 {
			must(t, f.ADD(others[0]))
			must(t, f.ADD(others[1]))
		}
	}
	for _, p := range others {
		must(t, f.DEL(p))
	}
	must(t, f.ADD(near))
	f.seenBy("one network is left", "", nodeAddr, near)
	f.seenBy("before an ADD of its ENI", nodeAddr, nodeAddr, far)
	must(t, f.ADD(far))
	f.seenBy("after it", "", nodeAddr, far)
}

// TestRoutedNetworksMeet: an ADD removes a route from the table of an ENI. At any moment of this ADD, the first pod of
// another network is added on the ENI. If this pod needs the route, the route exists in the end.
func TestRoutedNetworksMeet(t *testing.T) {
	for point, points := 1, 1; point <= points; point++ {
		t.Run(fmt.Sprint(point), func(t *testing.T) {
			f := newFabric(t)
			serve(t, f.other, ":8080")
			serve(t, f.router, internet+":8080")
			hosts := setting{hosts: inVPC}
			older := f.set("older", "10.0.1.52", hosts)
			must(t, f.ADD(older))
			must(t, f.DEL(older))
			newer, other := f.set("pod1", pod1Addr, setting{}), f.set("pod2", pod2Addr, hosts)
			other.request.Network = "others"
			v := victim{t: t, fabric: f, verb: "ADD"}
			met := 0
			tr := &trace.Trace{Counts: requests, Every: true, Kill: point}
			tr.Meets = func() { met++; must(t, f.ADD(other)) }
			if status := v.run(newer, tr); status != 0 || met != 1 {
				t.Errorf("status %#x, met %d", status, met)
			}
			points = len(tr.Seen)
			f.seenBy(fmt.Sprint("met at request ", point), nodeAddr, nodeAddr, other)
		})
	}
}

// requests makes a trace count the netlink requests of a process.
func requests(c trace.Call) string {
	if c.Nr != unix.SYS_WRITE || !strings.HasPrefix(c.File(0), "socket:") {
		return ""
	}
	return "request"
}
