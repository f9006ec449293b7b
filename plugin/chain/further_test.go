// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// attachments returns requests for three attachments of one pod: the first, one of another network, and another
// interface of the first network.
func (n node) attachments(path string) []*plugin.Request[Config] {
	first, second, third := n.request(path, ""), n.request(path, `, "containerInterface": "eth3"`), n.request(path, "")
	second.Network, second.IfName, third.IfName = "second", "net1", "net2"
	return []*plugin.Request[Config]{first, second, third}
}

// pairs returns the names of the pairs' ends on the node.
func (n node) pairs() (names []string) {
	n.Helper()
	links, err := n.ns.Links()
	n.must(err)
	for _, l := range links {
		if l.Group == nl.OwnGroup {
			names = append(names, l.Name)
		}
	}
	return names
}

// TestAttachments: only the first of a pod's attachments has a pair. The attachments are deleted in any order, with or
// without prevResult. The remaining attachments do not change.
func TestAttachments(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			n := newNode(t)
			pod, path := nltest.NS(t, "pod")
			bare := nltest.Dump(t, pod)
			all := n.attachments(path)
			results := make([]*types100.Result, len(all))
			for i, r := range all {
				for range 2 {
					result, err := n.ADD(r)
					n.must(err)
					if results[i] != nil && results[i].IPs[0].Address.String() != result.IPs[0].Address.String() {
						t.Errorf("%s: the second ADD answers another address: %v, %v", r.IfName, results[i], result)
					}
					results[i] = result
				}
				if i > 0 && len(names(results[i])) != 1 {
					t.Errorf("%s has the interfaces %v", r.IfName, names(results[i]))
				}
			}
			if pairs := n.pairs(); len(pairs) != 1 {
				t.Errorf("the pod has the pairs %v", pairs)
			}
			gone := []int{}
			for turn, i := range order {
				for k, r := range all {
					if !slices.Contains(gone, k) {
						n.must(n.CHECK(r, results[k]))
					}
				}
				last := *all[i]
				if turn != 1 {
					last.Prev = results[i]
				}
				for range 2 {
					n.must(n.DEL(&last))
				}
				gone = append(gone, i)
				if n.CHECK(all[i], results[i]) == nil {
					t.Errorf("CHECK of %s after DEL: no error", last.IfName)
				}
			}
			n.same("DEL left something", bare, nltest.Dump(t, pod))
			if pairs := n.pairs(); len(pairs) != 0 {
				t.Errorf("there are still the pairs %v", pairs)
			}
			n.vacant()
		})
	}
}

func names(r *types100.Result) (names []string) {
	for _, i := range r.Interfaces {
		names = append(names, i.Name)
	}
	return names
}

// TestAttachmentsGone: the namespace of a pod with several attachments is gone. A DEL of each attachment without the
// namespace, or a GC of each network, leaves nothing.
func TestAttachmentsGone(t *testing.T) {
	for name, end := range map[string]func(node, *plugin.Request[Config]) error{
		"DEL": func(n node, r *plugin.Request[Config]) error { r.NetNS = ""; return n.DEL(r) },
		"GC":  func(n node, r *plugin.Request[Config]) error { return n.GC(r) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			_, path := nltest.NS(t, "pod")
			all := n.attachments(path)
			for _, r := range all {
				_, err := n.ADD(r)
				n.must(err)
			}
			nltest.Remove(t, path)
			for _, r := range all {
				n.must(end(n, r))
			}
			if pairs := n.pairs(); len(pairs) != 0 {
				t.Errorf("there are still the pairs %v", pairs)
			}
			n.vacant()
		})
	}
}

// TestGCKeepsFurther: a GC of one network keeps the pod's attachments of other networks.
func TestGCKeepsFurther(t *testing.T) {
	n := newNode(t)
	pod, path := nltest.NS(t, "pod")
	all := n.attachments(path)
	var results []*types100.Result
	for _, r := range all {
		result, err := n.ADD(r)
		n.must(err)
		results = append(results, result)
	}
	before := nltest.Dump(t, n.ns, pod)
	n.must(n.GC(all[0], all[0].Attachment, all[2].Attachment))
	n.must(n.GC(all[1], all[1].Attachment))
	n.same("GC", before, nltest.Dump(t, n.ns, pod))
	for i, r := range all {
		n.must(n.CHECK(r, results[i]))
	}
}

// asking has keys by which a pod asks for three NICs.
const asking = `, "requests": [{"namespaces": ["*"], "max": 3}], "runtimeConfig": ` +
	`{"io.kubernetes.cri.pod-annotations": {"cni-ipvlan-vpc-k8s/nics": "[{}, {}, {\"name\": \"net7\"}]"}}`

// addresses adds more addresses of the second ENI to the registry.
func (n *node) addresses(more int) {
	n.Helper()
	n.more = more
	n.must(n.registry().Change(n.Context(), func(s *registry.State) {
		eni := s.ENIs["eni-2"]
		for a := netip.MustParseAddr("10.0.1.100"); more > 0; a, more = a.Next(), more-1 {
			eni.Addrs = append(eni.Addrs, a)
			s.Free.Set(a, time.Time{})
		}
		s.ENIs["eni-2"] = eni
	}))
}

// TestSeveral: one ADD makes three NICs. Only the first NIC has a pair.
func TestSeveral(t *testing.T) {
	n := newNode(t)
	pod, path := nltest.NS(t, "pod")
	bare := nltest.Dump(t, pod)
	r := n.request(path, asking)
	var made string
	for range 2 {
		result, err := n.ADD(r)
		n.must(err)
		if got := strings.Join(names(result), " "); got != "eth0 eth2 net7 "+n.pairs()[0]+" eth1" {
			t.Errorf("the pod has %s", got)
		}
		n.must(n.CHECK(r, result))
		if made != "" {
			n.same("the second ADD changed something", made, nltest.Dump(t, n.ns, pod))
		}
		made, r.Prev = nltest.Dump(t, n.ns, pod), result
	}
	for _, prev := range []*types100.Result{r.Prev, nil} {
		last := *r
		last.Prev = prev
		n.must(n.DEL(&last))
		n.same("DEL left something", bare, nltest.Dump(t, pod))
		n.vacant()
	}
}

// TestSeveralInUse: another namespace has the address that the last of three NICs would get. ADD succeeds, and no NIC
// gets this address.
func TestSeveralInUse(t *testing.T) {
	n := newNode(t)
	n.addresses(40)
	_, other := nltest.NS(t, "other")
	hidden := n.request(other, "")
	hidden.ContainerID = "hidden"
	n.must(n.ns.Do(func() error {
		step := requestOf(hidden, hidden.Config.ipvlan)
		step.Prev = &types100.Result{Interfaces: []*types100.Interface{{Name: "ens6"}},
			IPs: []*types100.IPConfig{{Interface: new(0), Address: net.IPNet{IP: net.IPv4(10, 0, 1, 22),
				Mask: net.CIDRMask(24, 32)}}}}
		_, err := ipvlan.Commands(nil).Add(n.Context(), step)
		return err
	}))
	pod, path := nltest.NS(t, "pod")
	r := n.request(path, asking)
	result, err := n.ADD(r)
	n.must(err)
	for _, c := range result.IPs {
		if c.Address.IP.String() == "10.0.1.22" {
			t.Errorf("the pod has the other's address: %v", result.IPs)
		}
	}
	n.must(n.CHECK(r, result))
	if d := nltest.Dump(t, pod); strings.Count(d, "ip rule add pref 1024") != 2 ||
		strings.Count(d, "type ipvlan") != 3 {
		t.Errorf("the pod has\n%s", d)
	}
	n.must(n.DEL(r))
}

// TestSeveralOfOne: the ipvlan and unnumbered-ptp plugins make three NICs from one result of the ipam plugin, and
// delete them. The NICs have the names that the pod asks for. No NIC gets the name of the pair.
func TestSeveralOfOne(t *testing.T) {
	n := newNode(t)
	n.must(nl.Wiring{
		{NS: n.ns, Object: nl.Veth{Name: "ens7", MAC: "0a:00:00:00:00:03", Peer: "eni2", PeerNS: n.vpc, MTU: 9001}},
	}.Add())
	pod, path := nltest.NS(t, "pod")
	bare := nltest.Dump(t, pod)
	r := n.request(path,
		`, "containerInterface": "eth2", "runtimeConfig": {"io.kubernetes.cri.pod-annotations": `+
			`{"cni-ipvlan-vpc-k8s/nics": "[{}, {}, {\"name\": \"net7\"}]"}}`)
	prev := &types100.Result{Interfaces: []*types100.Interface{{Name: "ens6"}, {Name: "ens7"}, {Name: "ens6"}}}
	for i, a := range []string{"10.0.1.20/24", "10.0.3.20/24", "10.0.1.21/24"} {
		p := netip.MustParsePrefix(a)
		prev.IPs = append(prev.IPs, &types100.IPConfig{Interface: new(i),
			Address: net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)},
			Gateway: p.Masked().Addr().Next().AsSlice()})
	}
	step := *r
	add := func() (final *types100.Result) {
		n.must(n.ns.Do(func() (err error) {
			step.Prev = prev
			for _, c := range plugins[1:] {
				if final, err = c.Add(n.Context(), &step); err != nil {
					return err
				}
				step.Prev = final
			}
			return nil
		}))
		return final
	}
	final := add()
	made := nltest.Dump(t, n.ns, pod)
	if got := strings.Join(names(final), " "); got != "eth0 eth1 net7 "+n.pairs()[0]+" eth2" {
		t.Errorf("the pod has %s", got)
	}
	add()
	n.same("the second ADD", made, nltest.Dump(t, n.ns, pod))
	step.Prev = final
	for _, c := range plugins[1:] {
		n.must(n.ns.Do(func() error { return c.Check(n.Context(), &step) }))
	}
	n.must(n.DEL(&step))
	n.same("DEL left something", bare, nltest.Dump(t, pod))
}
