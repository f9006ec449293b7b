// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// runRouted executes the plugins as processes, and so starts a routed pod on a node.
func runRouted(n *node) *running {
	n.Helper()
	addTo(n, n.Host, nl.Addr{Prefix: netip.PrefixFrom(n.ENIs()[0].Addrs[0], 24), Dev: "eth0"})
	n.conf = maps.Clone(n.conf)
	n.conf["dataPath"] = "veth"
	r := &running{node: n}
	r.ns, r.path = nltest.NS(n, "pod")
	r.result = r.call(program, "ADD", n.conf)
	r.ptp("ADD")
	return r
}

// addr returns the pod's address.
func (r *running) addr() netip.Addr {
	r.Helper()
	var result types100.Result
	must(r, json.Unmarshal(r.result, &result))
	nics := plugin.NICs(&result, "eth0")
	if len(nics) != 1 || len(nics[0].Addrs()) != 1 {
		r.Fatalf("the result is %s", r.result)
	}
	return nics[0].Addrs()[0]
}

// keeps checks that an address stays on its ENI during collections, with the registry or after its loss.
func (r *running) keeps(a netip.Addr, lost bool) {
	r.Helper()
	if lost {
		losses["deleted"](r)
	}
	for range 4 {
		r.collect()
		r.Age(time.Hour)
	}
	if enis := r.ENIs(); len(enis) < 2 || !slices.Contains(enis[1].Addrs, a) {
		r.Errorf("no ENI has %s any more", a)
	}
}

// TestProcessRunningRouted does with a routed pod what TestProcessRunningPods does.
func TestProcessRunningRouted(t *testing.T) {
	nltest.Need(t, "nftables")
	for why, blind := range blindness {
		t.Run(why, func(t *testing.T) {
			n := newNode(t, "c5.large", ec2sim.Config{}, nil)
			bare := nltest.Dump(t, n.Host)
			runRouted(n).stays(bare, losses["deleted"], blind)
		})
	}
}

// TestProcessRoutedFlushed: another program removes the node's routes and rules of a routed pod. Collections leave the
// pod's address leased and on its ENI, also after a loss of the registry.
func TestProcessRoutedFlushed(t *testing.T) {
	nltest.Need(t, "nftables")
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("registry lost %v", lost), func(t *testing.T) {
			n := newNode(t, "c5.large", ec2sim.Config{}, nil)
			r := runRouted(n)
			a := r.addr()
			r.shell("ip route flush proto 72 table all; ip -6 route flush proto 72 table all; ip rule flush proto 72")
			if routes, err := r.Host.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol}); err != nil || len(routes) > 0 {
				t.Fatalf("the node has still %v; %v", routes, err)
			}
			r.keeps(a, lost)
			if !r.State().Leases.Has(a) {
				t.Errorf("%s of a running pod is not leased", a)
			}
			delete(r.conf, "dataPath")
			for i := range 3 {
				pod := fmt.Sprint("other", i)
				r.add(pod)
				if slices.Contains(r.addrs(pod), a) {
					t.Errorf("another pod has %s, too", a)
				}
			}
			r.ptp("ADD")
			r.ptp("CHECK")
		})
	}
}

// shell runs a command on the node.
func (n *node) shell(command string) {
	n.Helper()
	must(n, n.Host.Do(func() error {
		out, err := exec.Command("sh", "-c", command).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return err
	}))
}

// TestProcessRoutedGreedy: two namespaces have all addresses of an ENI, each with a neighbour. One namespace has both
// ends of a veth pair, with the group of a routed pair. The other namespace is a routed pod's. Only the pod's own
// address counts as used.
func TestProcessRoutedGreedy(t *testing.T) {
	nltest.Need(t, "nftables")
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("registry lost %v", lost), func(t *testing.T) {
			n := newNode(t, "c5.large", ec2sim.Config{}, nil)
			n.conf = maps.Clone(n.conf)
			n.conf["ipBatchSize"] = 4
			r := runRouted(n)
			own, all := r.addr(), r.ENIs()[1].Addrs
			if len(all) < 3 {
				t.Fatalf("the ENI has only %v", all)
			}
			alone, _ := nltest.NS(t, "alone")
			addTo(n, alone, nl.Veth{Name: "veth0", Peer: "eth0", PeerNS: alone, Group: nl.RoutedGroup(2),
				PeerGroup: nl.RoutedGroup(2)})
			for _, a := range all {
				for _, ns := range []*nl.NS{alone, r.ns} {
					if ns == alone || a != own {
						addTo(n, ns, nl.Addr{Prefix: netip.PrefixFrom(a, 32), Dev: "eth0"})
					}
					addTo(n, ns, nl.Neigh{Addr: a.Next(), MAC: "02:00:00:00:00:01", Dev: "eth0"})
				}
			}
			if lost {
				losses["deleted"](r)
			}
			r.Age(time.Hour)
			r.collect()
			r.Age(time.Hour)
			r.collect()
			for a, l := range r.State().Leases.All() {
				if a != own {
					t.Errorf("%s is leased: %+v", a, l)
				}
			}
			if !r.State().Leases.Has(own) {
				t.Errorf("%s of the pod is not leased", own)
			}
		})
	}
}

// TestProcessRoutedDown: an operator has set the node's end of a routed pod's pair down, so that nothing shows the
// pod's address. The address goes to no other pod, and stays on its ENI.
func TestProcessRoutedDown(t *testing.T) {
	nltest.Need(t, "nftables")
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("registry lost %v", lost), func(t *testing.T) {
			n := newNode(t, "c5.large", ec2sim.Config{}, nil)
			r := runRouted(n)
			a := r.addr()
			links, err := r.Host.Links()
			must(t, err)
			for _, l := range links {
				if nl.IsRouted(l.Group) {
					r.shell("ip link set " + l.Name + " down")
				}
			}
			if all, err := r.Host.Neighbours(); err != nil || len(all) > 0 {
				t.Fatalf("the node has still the neighbours %v; %v", all, err)
			}
			r.keeps(a, lost)
			delete(r.conf, "dataPath")
			for i := range 3 {
				cmd := r.cni("ADD", fmt.Sprint("other", i), nil)
				r.start(cmd)
				if cmd.Wait() == nil && strings.Contains(fmt.Sprint(cmd.Stdout), a.String()+"/") {
					t.Errorf("another pod has %s, too", a)
				}
			}
		})
	}
}
