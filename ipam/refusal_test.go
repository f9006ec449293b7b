// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// ofOne are refusals of EC2 that are about one ENI or one subnet.
var ofOne = []struct{ code, message string }{
	{"AuthFailure", "You do not own the specified resource"},
	{"AuthFailure", "The caller is not the owner"},
	{"OperationNotPermitted", "The resource is managed by another service"},
	{"UnsupportedOperation", "The operation is not supported"},
	{"Unsupported", "The requested configuration is not supported"},
	{"InvalidParameterValue", "Value (x) for parameter y is invalid."},
	{"InvalidParameterCombination",
		"You may not attach a network interface to an instance if they are not in the same availability zone"},
	{"InvalidRequest", ""},
	{"SomethingNew", ""},
}

// inTwoSubnets does what inBubble does, with a second subnet for pods.
func inTwoSubnets(t *testing.T, f func(*world)) {
	t.Helper()
	inBubbleOf(t, "m5.large", func(c *ec2sim.Config) {
		c.Subnets = append(c.Subnets, ec2sim.Subnet{ID: "subnet-pod1", VPC: "vpc-1", Zone: "us-east-1a",
			CIDR: netip.MustParsePrefix("10.177.64.0/20"), Tags: c.Subnets[1].Tags})
	}, func(w *world, _ *wires) { f(w) })
}

// TestRefusedENI: EC2 refuses to change one ENI. The pod gets an address of another ENI, and the node does not ask
// again at once. The error of a pod without an address names the refused ENI.
func TestRefusedENI(t *testing.T) {
	const assign = "AssignPrivateIpAddresses"
	for _, r := range append(ofOne, struct{ code, message string }{"IncorrectState", ""},
		struct{ code, message string }{"InvalidState", ""},
		struct{ code, message string }{"Resource.AlreadyAssigned", ""},
		struct{ code, message string }{"DependencyViolation", ""}) {
		t.Run(r.code+" "+r.message, func(t *testing.T) {
			inTwoSubnets(t, func(w *world) {
				w.mustAcquire(0)
				first := w.EC2.ENIs()[1].ID
				w.EC2.RefuseOn(first, assign, r.code, r.message)
				w.mustAcquire(1)
				if n := len(w.EC2.ENIs()); n != 3 || w.EC2.Asked(assign) != 1 {
					t.Fatalf("%d ENIs, and EC2 was asked %d times to change the first", n, w.EC2.Asked(assign))
				}
				w.policy.Timeout = 5 * time.Second
				w.mustAcquire(2) // gets an address of the other ENI
				if n := w.EC2.Asked(assign); n > 3 {
					t.Errorf("EC2 was asked %d times", n)
				}
				w.EC2.RefuseOn(w.EC2.ENIs()[2].ID, assign, r.code, r.message)
				_, err := w.acquire(3)
				e, ok := errors.AsType[*plugin.Error](err)
				if !ok || e.Code != plugin.CodeTryAgain || !strings.Contains(err.Error(), r.code) {
					t.Errorf("the error does not name the refusal: %v", err)
				}
				w.EC2.RefuseOn(first, assign, "", "")
				time.Sleep(10 * time.Minute)
				w.mustAcquire(4) // a refusal does not last for ever
				w.noneLeaked()
				w.consistent()
			})
		})
	}
}

// TestRefusedSubnet: EC2 refuses creations in both subnets, or attachments of their ENIs. The ADD fails, no ENI is
// left, and the next ADD does not ask again at once. When EC2 refuses nothing in one subnet any more, a pod gets an
// address of an ENI in this subnet.
func TestRefusedSubnet(t *testing.T) {
	for _, action := range []string{book.CreateAction, book.AttachAction} {
		refusals := ofOne
		if action == book.CreateAction {
			refusals = append(refusals, struct{ code, message string }{"InvalidSubnetID.NotFound", ""},
				struct{ code, message string }{"UnauthorizedOperation",
					"with an explicit deny in a resource-based policy"})
		}
		for _, r := range refusals {
			t.Run(action+" "+r.code+" "+r.message, func(t *testing.T) {
				inTwoSubnets(t, func(w *world) {
					for _, subnet := range []string{"subnet-pod0", "subnet-pod1"} { // the node begins with one of them
						w.EC2.RefuseOn(subnet, action, r.code, r.message)
						defer w.EC2.RefuseOn(subnet, action, "", "")
					}
					_, err := w.acquire(0)
					e, ok := errors.AsType[*plugin.Error](err)
					if !ok || e.Code != plugin.CodeTryAgain || e.Hint == "" && r.code != "InvalidSubnetID.NotFound" ||
						strings.Count(err.Error(), r.code) < 2 {
						t.Errorf("error %v", err)
					}
					if n := len(w.EC2.ENIs()); n != 1 {
						t.Fatalf("%d ENIs are left", n-1)
					}
					before := w.EC2.Asked(book.CreateAction)
					w.acquire(1)
					if n := w.EC2.Asked(book.CreateAction) - before; n != 0 && r.code != "InvalidSubnetID.NotFound" {
						t.Errorf("EC2 was asked for another %d ENIs at once", n)
					}
					time.Sleep(10 * time.Minute)
					w.EC2.RefuseOn("subnet-pod1", action, "", "")
					w.mustAcquire(2)
					if e := w.EC2.ENIs()[len(w.EC2.ENIs())-1]; len(w.EC2.ENIs()) != 2 || e.Subnet != "subnet-pod1" {
						t.Errorf("the ENI is %+v", e)
					}
					w.noneLeaked()
					w.consistent()
				})
			})
		}
	}
}

// TestStuckENI: EC2 refuses to attach the ENIs of two subnets, as if they stayed in a transition. At most one such ENI
// exists. When EC2 can attach the ENIs of one subnet, a pod gets an address.
func TestStuckENI(t *testing.T) {
	inTwoSubnets(t, func(w *world) {
		for _, subnet := range []string{"subnet-pod0", "subnet-pod1"} {
			w.EC2.RefuseOn(subnet, book.AttachAction, "IncorrectState", "")
		}
		for i := range 10 {
			w.acquire(i)
			if n := len(w.EC2.ENIs()); n > 2 {
				t.Fatalf("%d ENIs", n)
			}
			time.Sleep(10 * time.Second)
		}
		w.EC2.RefuseOn("subnet-pod1", book.AttachAction, "", "")
		for i := range 10 {
			if _, err := w.acquire(20 + i); err == nil {
				w.noneLeaked()
				return
			}
			time.Sleep(30 * time.Second)
		}
		t.Error("no pod gets an address, though the ENIs of one subnet can be attached")
	})
}

// TestRefusedAction: the role may not call an action. The next process knows this for a while, and other actions
// succeed.
func TestRefusedAction(t *testing.T) {
	const assign = "AssignPrivateIpAddresses"
	inTwoSubnets(t, func(w *world) {
		w.mustAcquire(0)
		w.EC2.FailAs(assign, "UnauthorizedOperation", "not authorized to perform: ec2:"+assign+
			" with an explicit deny in a service control policy", always)
		for i := range 3 {
			_, err := w.acquire(1 + i)
			if e, ok := errors.AsType[*plugin.Error](err); !ok ||
				!strings.Contains(e.Hint, "denies ec2:"+assign+" explicitly") {
				t.Errorf("%v: hint %+v", err, e)
			}
		}
		if n := w.EC2.Asked(assign); n != 1 {
			t.Errorf("EC2 was asked %d times", n)
		}
		time.Sleep(2 * time.Minute)
		w.EC2.FailAs(assign, "", "", 0)
		w.mustAcquire(9)
	})
}

// TestOutpost: a subnet of an Outpost is in a zone of the region, but an instance of the region cannot use it. An
// instance of the Outpost cannot use a subnet of the region.
func TestOutpost(t *testing.T) {
	const outpost = "arn:aws:outposts:us-east-1:1:outpost/op-1"
	for _, own := range []string{"", outpost} {
		t.Run(fmt.Sprint("of the node: ", own), func(t *testing.T) {
			inBubbleOf(t, "m5.large", func(c *ec2sim.Config) {
				c.Subnets[0].Outpost, c.Subnets[1].Outpost = own, own
				other := ec2sim.Subnet{ID: "subnet-pod1", VPC: "vpc-1", Zone: "us-east-1a", Outpost: outpost,
					CIDR: netip.MustParsePrefix("10.177.64.0/18"), Tags: c.Subnets[1].Tags}
				if own != "" {
					other.Outpost = ""
				}
				c.Subnets = append(c.Subnets, other)
			}, func(w *world, _ *wires) {
				for i := range 15 { // two ENIs
					w.mustAcquire(i)
					w.end(i)
				}
				w.policy.Batch = 20
				w.mustAcquire(16)
				for _, e := range w.EC2.ENIs() {
					if e.Subnet == "subnet-pod1" {
						t.Errorf("%s is in a subnet of elsewhere", e.ID)
					}
				}
				if n := w.EC2.Asked(book.AttachAction) - (len(w.EC2.ENIs()) - 1); n != 0 {
					t.Errorf("%d attachments were refused", n)
				}
			})
		})
	}
}

// TestVolumes: EC2 accepts fewer ENIs than the type allows, because volumes have taken slots.
func TestVolumes(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.EC2.FailAs(book.AttachAction, "AttachmentLimitExceeded", "Interface count 2 exceeds the limit", always)
		for i := range 2 {
			_, err := w.acquire(i)
			if e, ok := errors.AsType[*plugin.Error](err); !ok || !errors.Is(err, aws.ErrInstanceFull) ||
				!strings.Contains(e.Hint, "EBS volumes") {
				t.Errorf("%v: hint %+v", err, e)
			}
		}
	})
}

// TestHintOfFamilies: pods have both families, and the ENIs' subnet has only one. The hint does not recommend prefixes.
func TestHintOfFamilies(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.mustAcquire(0)
		w.policy.MaxENIs = 2
		w.policy.Families = []lease.Family{lease.IPv4, lease.IPv6}
		_, err := w.acquire(1)
		e, ok := errors.AsType[*plugin.Error](err)
		if !ok || strings.Contains(e.Hint, "prefixDelegation") ||
			!strings.Contains(e.Hint, "add a CIDR of IPv6 to the subnet subnet-pod0") {
			t.Errorf("%v: hint %+v", err, e)
		}
	})
}

// TestRefusedRelease: EC2 refuses to detach or delete one ENI. The collection releases the other ENIs.
func TestRefusedRelease(t *testing.T) {
	for _, action := range []string{"DetachNetworkInterface", "DeleteNetworkInterface"} {
		for _, r := range ofOne {
			t.Run(action+" "+r.code+" "+r.message, func(t *testing.T) {
				inTwoSubnets(t, func(w *world) {
					w.policy.Batch = 9
					for i := range 12 {
						w.mustAcquire(i)
					}
					enis := w.EC2.ENIs()
					if len(enis) != 3 {
						t.Fatalf("%d ENIs", len(enis))
					}
					for i := range 12 {
						w.end(i)
					}
					time.Sleep(time.Hour)
					w.EC2.FailAs(action, r.code, r.message, 1) // EC2 refuses only the first call
					collect := func() error {
						_, err := w.pool().Collect(w.Context(), less.Collection{FreeAfter: time.Minute, Max: -1})
						return err
					}
					if err := collect(); err == nil || !strings.Contains(err.Error(), r.code) {
						t.Errorf("error %v", err)
					}
					if n := len(w.EC2.ENIs()); n != 2 {
						t.Errorf("%d ENIs, want the boot ENI and the one that EC2 keeps", n)
					}
					time.Sleep(time.Hour)
					must(t, collect())
					if n := len(w.EC2.ENIs()); n != 1 {
						t.Errorf("%d ENIs are left", n-1)
					}
				})
			})
		}
	}
}
