// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// rebootsStale: a collection unassigns an address, and the node boots. Metadata still shows the address until the test
// calls confess, and nothing on the node shows that the address is gone.
func (w *world) rebootsStale() (eni string, gone netip.Addr, confess func()) {
	w.Helper()
	w.policy.Batch, w.policy.ReuseWait = 3, 0
	for n := range 3 {
		w.mustAcquire(n)
	}
	for n := range 3 {
		w.end(n)
	}
	time.Sleep(time.Hour)
	enis := w.ENIs()
	eni = enis[len(enis)-1].ID
	confess = w.Lie(ec2sim.FreezeENI(eni))
	gone = w.collectOne()
	w.Lose()
	w.EC2.ResetCalls()
	return eni, gone, confess
}

// getNot gives pods all addresses of the node, and checks that no pod gets the address gone, which the ENI has lost.
func (w *world) getNot(gone netip.Addr) {
	w.Helper()
	for n := range 4 {
		if a := w.mustAcquire(10 + n); a == gone {
			w.Errorf("a pod has %s, which is on no ENI", a)
		}
	}
	w.noneElsewhere()
	w.consistent()
}

// TestStaleAfterBoot: the first process after the boot asks EC2 which addresses the ENI has. The second process reads
// the same metadata, and must not trust it either.
func TestStaleAfterBoot(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		_, gone, confess := w.rebootsStale()
		for range 3 {
			must(w, w.pool().Learn(w.Context()))
			w.consistent()
		}
		if n := w.EC2.Asked("DescribeNetworkInterfaces"); n > 3 {
			w.Errorf("EC2 was asked %d times, want once for each", n)
		}
		w.getNot(gone)
		confess()
		must(w, w.pool().Learn(w.Context()))
		w.EC2.ResetCalls()
		must(w, w.pool().Learn(w.Context()))
		if n := w.EC2.Asked("DescribeNetworkInterfaces"); n != 0 {
			w.Errorf("metadata shows nothing new, and EC2 was asked %d times", n)
		}
	})
}

// TestStaleForHours: metadata does not change at all. After a loss of the registry, the node asks EC2 which addresses
// its ENIs have. The node does so even if another network may change nothing in EC2, or if no process can read the
// configuration. It also does so if an operator has removed the registry's directory.
func TestStaleForHours(t *testing.T) {
	for _, provision := range []lease.Provision{lease.ProvisionFull, lease.ProvisionAssign, lease.ProvisionNone, "?"} {
		for _, loses := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lost %v", provision, loses), func(t *testing.T) {
				inBubble(t, "m5.large", func(w *world, _ *wires) {
					w.policy.Batch, w.policy.ReuseWait = 3, 0
					w.mustAcquire(0)
					w.end(0)
					time.Sleep(time.Hour)
					w.Lie(ec2sim.FreezeENI(w.ENIs()[1].ID))
					c := w.collectOne()
					if loses {
						must(t, os.RemoveAll(w.Dir))
					}
					for range 3 {
						time.Sleep(time.Hour)
						w.collectBoth(provision)
						w.consistent()
					}
					w.getNot(c)
				})
			})
		}
	}
}

// another is the policy of another network of the node.
func (w *world) another(provision lease.Provision) lease.Policy {
	other := w.policy
	other.Provision = provision
	return other
}

// collectBoth runs a collection for two networks of the node. With the provision "?", their configuration cannot be
// read.
func (w *world) collectBoth(provision lease.Provision) {
	w.Helper()
	p := w.pool()
	if p.Policy = lease.Common(w.policy, w.another(provision)); provision == "?" {
		p.Policy = lease.Policy{Provision: lease.ProvisionNone, Changes: true} // as registry-gc does
	}
	must1(p.Collect(w.Context(), less.Collection{FreeAfter: 24 * time.Hour, Max: -1}))(w)
}

// collectOne runs a collection that unassigns one address.
func (w *world) collectOne() netip.Addr {
	w.Helper()
	c := less.Collection{FreeAfter: time.Minute, Max: 1}
	done := must1(w.pool().Collect(w.Context(), c))(w)
	if len(done.Unassigned) != 1 {
		w.Fatalf("unassigned %v, want one address", done.Unassigned)
	}
	return done.Unassigned[0]
}

// TestStaleBootENI: with interfaceIndex 0, pods get addresses of the boot ENI. The node does not need the tags of this
// ENI, but EC2 must confirm the ENI's addresses, too.
func TestStaleBootENI(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.policy.MinIndex = 0
		_, gone, _ := w.rebootsStale()
		w.getNot(gone)
	})
}

// TestStaleWithoutTags: EC2 does not answer after the boot, so the ENI serves no pod. EC2's later answer also shows
// which addresses the ENI has.
func TestStaleWithoutTags(t *testing.T) {
	for _, least := range []int{0, 1} { // with 0, the boot ENI serves pods
		inBubble(t, "m5.large", func(w *world, _ *wires) {
			w.policy.MinIndex = least
			eni, gone, _ := w.rebootsStale()
			w.EC2.Fail("DescribeNetworkInterfaces", "InternalError", always)
			for range 2 {
				must(w, w.pool().Learn(w.Context()))
				e := w.State().ENIs[eni]
				if why := w.policy.Misfit(e); e.TagsUnknown != registry.NotAsked ||
					strings.Contains(why, "addresses") != (least == 0) {
					w.Errorf("%s: %+v", why, e)
				}
			}
			if a, err := w.acquire(0); err == nil {
				w.Errorf("EC2 has not answered, and a pod has %v", a.Addrs)
			}
			w.EC2.Fail("DescribeNetworkInterfaces", "InternalError", 0)
			had := w.ENI(eni).Addrs
			for n := range 2 {
				if a := w.mustAcquire(n); !slices.Contains(had, a) {
					w.Errorf("pod %d has %s, and %v are free: gone is %s", n, a, had, gone)
				}
			}
			w.getNot(gone)
		})
	}
}

// TestStaleWithoutEC2: EC2 does not answer the second process, which continues with what the registry has.
func TestStaleWithoutEC2(t *testing.T) {
	for _, pools := range []bool{false, true} {
		inBubble(t, "m5.large", func(w *world, _ *wires) {
			eni, gone, _ := w.rebootsStale()
			w.policy.Pools = pools
			must(w, w.pool().Learn(w.Context()))
			w.EC2.Fail("DescribeNetworkInterfaces", "InternalError", always)
			must(w, w.pool().Learn(w.Context()))
			w.consistent()
			if e := w.State().ENIs[eni]; e.TagsUnknown != "" {
				w.Errorf("its tags were known: %+v", e)
			}
			for n := range 2 {
				if a := w.mustAcquire(n); a == gone {
					w.Errorf("pod %d has %s, which is on no ENI", n, a)
				}
			}
		})
	}
}

// TestStaleEC2: a collection deletes an ENI, but EC2's describes still show it when the next growth asks about another
// call. The prefixes and addresses of the ENI do not come back.
func TestStaleEC2(t *testing.T) {
	both := func(c *ec2sim.Config) {
		c.VPCs[0].IPv6CIDRs = []netip.Prefix{netip.MustParsePrefix("2001:db8:77::/56")}
		c.Subnets[1].IPv6CIDR = netip.MustParsePrefix("2001:db8:77:1::/64")
	}
	for name, families := range map[string][]lease.Family{"addresses": nil, "/28": {lease.IPv4}, "/80": {lease.IPv6}} {
		t.Run(name, func(t *testing.T) {
			inBubbleOf(t, "m5.large", both, func(w *world, wires *wires) {
				w.policy.ReuseWait = 0
				if families != nil {
					w.policy.Families, w.policy.Prefixes = families, true
				}
				w.mustAcquire(1)
				w.end(1)
				time.Sleep(2 * time.Hour)
				_, err := w.pool().DescribeENIs(w.Context(), aws.ByInstance(w.ID))
				must(w, err)
				wires.lags.Store(true)
				if c := w.collect(); len(c.Deleted) != 1 {
					w.Fatalf("deleted %v", c.Deleted)
				}
				w.Edit(func(s *registry.State) {
					s.Intents["token"] = registry.Intent{Action: book.AttachAction, ENI: "eni-00000000000000099",
						Since: time.Now()}
				})
				w.mustAcquire(2)
				w.consistent()
			})
		})
	}
}
