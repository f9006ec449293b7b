// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"net/netip"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// offAndOn disables IPv6 on the node and enables it again. Then the node gets its own address
// again, as from its network manager.
func (f *fabric) offAndOn() {
	f.t.Helper()
	f.add(f.node, nl.Sysctl{Key: "net/ipv6/conf/all/disable_ipv6", Value: "1"})
	f.add(f.node, nl.Sysctl{Key: "net/ipv6/conf/all/disable_ipv6", Value: "0"},
		nl.Addr{Prefix: netip.MustParsePrefix(sixth(nodeAddr) + "/64"), Dev: "eth0", NoDAD: true},
		nl.Route{Dst: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr(sixth("10.0.9.1")), Dev: "eth0"})
}

// only6 returns the IPv6 part of a result of the ipam plugin.
func only6(res *types100.Result) {
	dual(res)
	res.IPs, res.Routes = res.IPs[1:], res.Routes[1:]
}

// restore restores what the node needs to reach a disconnected pod.
func (f *fabric) restore(p *pod) (w nl.Wiring, err error) {
	r := p.request
	return w, f.node.Do(func() error {
		w, err = ptp.Restore(f.node, r.Network, r.Attachment, r.NetNS, r.Config, r.Prev)
		return err
	})
}

// TestRestore disables IPv6 on the node and enables it again. After the restore, everything
// works for the pods as before.
func TestRestore(t *testing.T) {
	for _, loop := range loopsOfAll {
		for name, family := range map[string]func(*types100.Result){"dual": dual, "IPv6 alone": only6} {
			t.Run(loop+" "+name, func(t *testing.T) {
				f := newFabric(t)
				f.add(f.node, kubeProxy("tcp4"), kubeProxy("tcp6"))
				serve(t, f.other, ":8080")
				p := f.configured(f.pod("pod1", pod1Addr, family), func(c *ptp.Config) { atNode(c); c.ServiceLoop = loop })
				four := f.pod("pod2", pod2Addr)
				must(t, f.ADD(p))
				must(t, f.ADD(four))
				if loop != "none" {
					p.request.Config.ServiceLoop = "" // it is what it is
				}
				before := nltest.Dump(t, f.node)
				disconnected := func(want int) {
					t.Helper()
					own := ptp.VethName("net", p.request.Attachment)
					links, err := ptp.Disconnected(f.node, "net", func(veth string) bool { return loop == "none" && veth == own })
					if err != nil || len(links) != want || want == 1 && links[0].Name != own {
						t.Errorf("disconnected: %v, %v; want %d", links, err, want)
					}
				}
				served := func() error {
					_, err := call(p.NS, "tcp6", dialled("tcp6", "172.20.0.10:80"))
					return err
				}
				must(t, served())
				disconnected(0)
				f.offAndOn()
				disconnected(1)
				if err := f.CHECK(p); err == nil || !strings.Contains(err.Error(), "ip -6 route") {
					t.Errorf("CHECK does not miss the routes: %v", err)
				}
				for _, n := range []int{1, 0} { // something, then nothing
					w, err := f.restore(p)
					must(t, err)
					if min(len(w), 1) != n {
						t.Errorf("put back: %v", w)
					}
				}
				disconnected(0)
				same(t, "the node", before, nltest.Dump(t, f.node))
				must(t, f.CHECK(p))
				must(t, served())
			})
		}
	}
}

// TestRestoreNot restores nothing while IPv6 is disabled, and nothing by the namespace of
// another pod.
func TestRestoreNot(t *testing.T) {
	f := newFabric(t)
	p, q := f.pod("pod1", pod1Addr, dual), f.pod("pod2", pod2Addr, dual)
	must(t, f.ADD(p))
	must(t, f.ADD(q))
	f.add(f.node, nl.Sysctl{Key: "net/ipv6/conf/all/disable_ipv6", Value: "1"})
	if w, err := f.restore(p); err == nil || !strings.Contains(err.Error(), "eth0 has no IPv6 address") {
		t.Errorf("without IPv6: %v, %v", w, err)
	}
	f.offAndOn()
	p.request.NetNS = q.request.NetNS
	if w, err := f.restore(p); err == nil || !strings.Contains(err.Error(), "is not in the namespace") {
		t.Errorf("by another pod's namespace: %v, %v", w, err)
	}
}
