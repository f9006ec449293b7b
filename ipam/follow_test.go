// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// ofIPv4 and ofIPv6 are setups of nodes whose pods have only IPv4, or only IPv6.
var (
	ofIPv4 = setup{families: []lease.Family{lease.IPv4}}
	ofIPv6 = setup{families: []lease.Family{lease.IPv6}}
)

// quietPair calls do with two nodes that have no random events.
func quietPair(t *testing.T, s setup, do func(p *pair)) {
	simtest.Credentials(t)
	k, dir := [2]*kernel{newKernel(t, 4), newKernel(t, 4)}, simtest.Memory(t)
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, k, dir, 1, &s, &counts{})
		defer p.end()
		for _, f := range p.nodes {
			f.calm = true
		}
		do(p)
		if p.verify(); len(p.bad) > 0 || t.Failed() {
			t.Errorf("%s\n%s", strings.Join(p.bad, "\n"), strings.Join(p.log, "\n"))
		}
	})
}

// TestFollowWaits: a pod with a chosen address moves to another node. The ADD there waits until the DEL on the old
// node, makes few describes, and answers soon after the DEL.
func TestFollowWaits(t *testing.T) {
	for _, late := range []time.Duration{0, 3 * time.Second, 11 * time.Second} {
		quietPair(t, ofIPv4, func(p *pair) {
			a, b := p.nodes[0], p.nodes[1]
			b.addAny() // so that the node has an ENI
			first := a.addNamed("db-0", p.chosen(0))
			for _, action := range actions { // docs/fleet.md has the times that EC2 needs
				p.EC2.Delay(action, 300*time.Millisecond)
			}
			p.EC2.ResetCalls()
			var second *modelPod
			var answered time.Time
			done := make(chan struct{})
			go func() {
				defer close(done)
				second = b.addNamed("db-0", p.chosen(0))
				answered = time.Now()
			}()
			time.Sleep(late)
			ended := time.Now()
			a.delete(first)
			a.releaseChosen()
			<-done
			if !second.alive || answered.Sub(ended) > 5*time.Second {
				t.Errorf("DEL after %v: the ADD has answered %v after it: %v", late, answered.Sub(ended), second.alive)
			}
			describes, most := p.EC2.Asked("DescribeNetworkInterfaces"), 3+int(late/(2*time.Second))
			if describes > most {
				t.Errorf("DEL after %v: %d describes, want at most %d", late, describes, most)
			}
		})
	}
}

// TestFollowEnded: a pod with a chosen address comes to a new node. The new node takes over the address if EC2 says
// that the old instance is stopped or terminated, and otherwise not.
func TestFollowEnded(t *testing.T) {
	for what, tt := range map[string]struct {
		do   func(f *follower)
		want bool
	}{
		"runs":       {func(*follower) {}, false},
		"cut":        {func(f *follower) { f.cut = true }, false},
		"stopped":    {func(f *follower) { f.Stop(false); f.machine = machineStopped; f.powerOff() }, true},
		"hibernated": {func(f *follower) { f.Stop(true); f.machine = machineHibernates }, false},
		"terminated": {func(f *follower) {
			f.powerOff()
			must(f, f.EC2.TerminateInstance(f.ID))
			f.launch()
		}, true},
		"its ENI detached": {func(f *follower) { // its pod has no network, and the node may attach the ENI again
			for f.machine == machineRuns && len(f.attached()) > 1 {
				f.detachOne()
				time.Sleep(5 * time.Second)
			}
		}, false},
	} {
		for _, s := range []setup{ofIPv4, ofIPv6} {
			t.Run(what+" "+s.families[0].String(), func(t *testing.T) {
				quietPair(t, s, func(p *pair) {
					a, b := p.nodes[0], p.nodes[1]
					a.addNamed("db-0", p.chosen(0))
					tt.do(a)
					second := b.addNamed("db-0", p.chosen(0))
					if second.alive != tt.want {
						t.Errorf("the other node has the address: %v, want %v", second.alive, tt.want)
					}
				})
			})
		}
	}
}

// TestFollowSuspended: EC2 answers that the old instance is stopped, and then the new node is suspended for a minute.
// The old instance may run again by now, so the new node does not take over the address.
func TestFollowSuspended(t *testing.T) {
	for _, s := range []setup{ofIPv4, ofIPv6} {
		quietPair(t, s, func(p *pair) {
			a, b := p.nodes[0], p.nodes[1]
			b.addAny()
			a.addNamed("db-0", p.chosen(0))
			a.Stop(false)
			a.machine = machineStopped
			a.powerOff()
			p.EC2.ResetCalls()
			uptime := registry.Uptime
			defer func() { registry.Uptime = uptime }()
			registry.Uptime = func() time.Duration {
				return uptime() + time.Duration(p.EC2.Asked("DescribeInstances"))*time.Minute
			}
			second, taken := b.addNamed("db-0", p.chosen(0)), p.EC2.Asked(book.UnassignActionOf(p.chosen(0)))
			if second.alive || taken > 0 || p.EC2.Asked("DescribeInstances") == 0 {
				t.Errorf("%v: %d calls have taken the address from the old node, want none", s.families[0], taken)
			}
		})
	}
}

// TestReleaseThrottled: EC2 throttles a release, or its repetition after a kill. The node records when it may call this
// action again. It may still call the action of the other family.
func TestReleaseThrottled(t *testing.T) {
	for _, s := range []setup{ofIPv4, ofIPv6} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprint(s.families[0], ", the first was killed: ", killed), func(t *testing.T) {
				quietPair(t, s, func(p *pair) {
					node, chosen := p.nodes[0], p.chosen(0)
					node.delete(node.addNamed("db-0", chosen))
					if killed {
						node.Edit(func(s *registry.State) {
							id, _ := s.ENIOf(chosen)
							x := book.Releasable{Addrs: map[netip.Addr]time.Time{chosen: {}}}
							book.NoteRelease(s, id, x)
							book.Withdraw(s, id, x)
						})
					}
					action := book.UnassignActionOf(chosen)
					p.EC2.Script(action, busyEC2, busyEC2, busyEC2)
					began := time.Now()
					node.releaseChosen()
					noted := node.State().NotBefore
					if len(noted) != 1 || !noted[action].After(began) {
						t.Errorf("the registry notes %v, want %s alone", noted, action)
					}
				})
			})
		}
	}
}

// TestFollowPrefix: a pod chooses an address of a prefix of its node. When the pod is created again on this node, it
// gets the address at once. On another node, the ADD is refused at once, with the reason and a hint.
func TestFollowPrefix(t *testing.T) {
	for _, family := range []lease.Family{lease.IPv4, lease.IPv6} {
		s := setup{families: []lease.Family{family}, prefixes: true}
		quietPair(t, s, func(p *pair) {
			a, b := p.nodes[0], p.nodes[1]
			a.addAny() // this ADD gets a prefix for the node
			b.addAny()
			e := a.attached()[1]
			ask := slices.Concat(e.Prefixes, e.IPv6Prefixes)[0].Addr().Next().Next()
			for range 2 {
				pod := a.addNamed("web-0", ask)
				if !pod.alive || !slices.Contains(pod.addrs, ask) {
					t.Fatalf("%s: its own node does not give a pod the address of a prefix: %v", ask, pod.addrs)
				}
				a.delete(pod)
				a.releaseChosen()
			}
			began := time.Now()
			pod, err := b.tryNamed("web-0", ask)
			refused, _ := errors.AsType[*plugin.Error](err)
			if pod.alive || refused == nil || refused.Code != plugin.CodeRefused ||
				!strings.Contains(err.Error(), "has in a prefix") || !strings.Contains(refused.Hint, "reservation") {
				t.Errorf("%s: the other node has answered %v", ask, err)
			}
			if time.Since(began) > time.Second {
				t.Errorf("%s: the refusal took %v", ask, time.Since(began))
			}
		})
	}
}

// TestFollowRefused: a pod asks for an address that cannot move. The ADD fails at once, and its error has the reason.
func TestFollowRefused(t *testing.T) {
	w := newCity(t, "m5.large")
	other, err := w.EC2.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-pods"})
	must(t, err)
	boot := other.ENIs()[0]
	w.Operate("AssignPrivateIpAddresses", "NetworkInterfaceId", boot.ID, "PrivateIpAddress.1", "10.177.1.99")
	w.Operate("AssignPrivateIpAddresses", "NetworkInterfaceId", boot.ID, "Ipv4Prefix.1", "10.177.1.64/28")
	for ask, want := range map[string]string{
		boot.Addrs[0].String(): "has as its primary address. This ENI is attached to " + other.ID,
		"10.177.1.70":          "has in a prefix. This ENI is attached to " + other.ID,
		"10.177.1.99":          "which " + boot.ID + " has. This ENI is attached to " + other.ID,
	} {
		w.EC2.ResetCalls()
		_, err := w.ask(1, allowAll, `[{"ip": "`+ask+`"}]`)
		e, _ := errors.AsType[*plugin.Error](err)
		if e == nil || e.Code != plugin.CodeRefused || !strings.Contains(err.Error(), want) || e.Hint == "" {
			t.Errorf("%s: got %v, want %s", ask, err, want)
		}
		if asked := w.EC2.Asked("DescribeNetworkInterfaces"); asked != 1 {
			t.Errorf("%s: EC2 was asked %d times which ENI has it", ask, asked)
		}
	}
}
