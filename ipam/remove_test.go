// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// A twoNodes is a world with a second instance, to which ENIs of the first instance may move.
type twoNodes struct {
	*world
	other *ec2sim.Instance
	eni   string // the ENI for pods of the first node
}

// newTwoNodes gives the first node an ENI that it may release, because its pod has gone.
func newTwoNodes(t *testing.T) *twoNodes {
	w := newWorld(t, "m5.large", 20)
	other, err := w.EC2.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-node"})
	must(t, err)
	w.mustAcquire(1)
	w.end(1)
	w.Age(time.Hour)
	id := w.ENIs()[1].ID
	w.EC2.ResetCalls()
	return &twoNodes{w, other, id}
}

func (w *twoNodes) detach() {
	i := slices.IndexFunc(w.EC2.ENIs(), func(e ec2sim.ENI) bool { return e.ID == w.eni })
	w.Operate("DetachNetworkInterface", "AttachmentId", w.EC2.ENIs()[i].Attachment)
}

func (w *twoNodes) attach() {
	w.Operate("AttachNetworkInterface", "NetworkInterfaceId", w.eni, "InstanceId", w.other.ID, "DeviceIndex", "1")
}

func (w *twoNodes) tag(key, value string) {
	w.Operate("CreateTags", "ResourceId.1", w.eni, "Tag.1.Key", key, "Tag.1.Value", value)
}

// draining marks the ENI, as if a collection was killed when it had begun to delete the ENI.
func (w *twoNodes) draining() {
	w.Edit(func(s *registry.State) { s.Edit(w.eni, (*registry.ENI).Drain) })
}

// afterDetach calls do after our DetachNetworkInterface has been carried out.
func (w *twoNodes) afterDetach(do func()) {
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		w.EC2.ServeHTTP(rw, r)
		if r.FormValue("Action") == "DetachNetworkInterface" {
			do()
		}
	})
}

// TestOthersENIs: no process detaches or deletes an ENI that is attached to another instance, was made for another
// instance, or must not be changed. Such an ENI leaves the registry, or becomes foreign.
func TestOthersENIs(t *testing.T) {
	for name, c := range map[string]struct {
		becomes func(w *twoNodes)
		want    string // in Remove's error
		known   bool   // the registry still knows the ENI
		ours    int    // calls of the node that change something in EC2
	}{
		"moved": {func(w *twoNodes) { w.detach(); w.attach() },
			"it is attached to i-00000000000000002", false, 0},
		"moved, once draining": {func(w *twoNodes) { w.draining(); w.detach(); w.attach() },
			"it is attached to i-00000000000000002", false, 0},
		"moved meanwhile": {func(w *twoNodes) { w.afterDetach(w.attach) },
			"it is attached to i-00000000000000002", false, 1},
		"about to be moved": {func(w *twoNodes) { w.detach(); w.tag(book.TagInstance, w.other.ID) },
			"it was made for i-00000000000000002", false, 0},
		"not to be managed": {func(w *twoNodes) { w.tag(book.TagNoManage, "true") },
			"it has the tag node.k8s.amazonaws.com/no_manage=true", true, 0},
		"so, and once draining": {func(w *twoNodes) { w.draining(); w.tag(book.TagNoManage, "true") }, "it has the tag",
			true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for who, acts := range map[string]func(w *twoNodes) error{
				"collection": func(w *twoNodes) error {
					_, err := w.pool().Collect(t.Context(), less.Collection{FreeAfter: time.Minute, Max: -1})
					return err
				},
				"operator": func(w *twoNodes) error {
					err := w.pool().Remove(t.Context(), w.eni)
					if err == nil || !strings.Contains(err.Error(), c.want) {
						t.Errorf("Remove: %v, want %q", err, c.want)
					}
					return nil
				},
				"growth": func(w *twoNodes) error {
					if c.ours > 0 {
						_, err := w.pool().Collect(t.Context(), less.Collection{FreeAfter: time.Minute, Max: -1})
						return err
					}
					w.draining()
					s := w.State()
					_, err := w.pool().DeleteDraining(t.Context(), s)
					return err
				},
			} {
				t.Run(who, func(t *testing.T) {
					w := newTwoNodes(t)
					c.becomes(w)
					theirs := len(w.writes())
					if err := acts(w); err != nil {
						t.Errorf("%s: %v", who, err)
					}
					if got := len(w.writes()) - theirs; c.ours == 0 && got != 0 {
						t.Errorf("EC2 was asked for %v", w.writes())
					}
					if w.writes()["DeleteNetworkInterface"] > 0 || w.writes()["UnassignPrivateIpAddresses"] > 0 {
						t.Errorf("EC2 was asked for %v", w.writes())
					}
					if e, known := w.State().ENIs[w.eni]; known != c.known || known && !e.Foreign {
						t.Errorf("the registry: %+v, %v", e, known)
					}
				})
			}
		})
	}
}

// TestInherited: an ENI was made for another instance, and then attached to this one. The node both detaches and
// deletes it.
func TestInherited(t *testing.T) {
	w := newTwoNodes(t)
	w.tag(book.TagInstance, w.other.ID)
	must(t, w.pool().Remove(t.Context(), w.eni))
	if enis := w.ENIs(); len(enis) != 1 || w.writes()["DeleteNetworkInterface"] != 1 {
		t.Errorf("%v, after %v", enis, w.writes())
	}
}

// TestRemoveForeignDenied: an operator tries to remove an ENI that serves no pods, and the role may not detach the ENI.
// Afterwards, the ENI still serves no pods.
func TestRemoveForeignDenied(t *testing.T) {
	w := newTwoNodes(t)
	w.Edit(func(s *registry.State) { s.Edit(w.eni, (*registry.ENI).Disown) })
	w.EC2.Fail("DetachNetworkInterface", "UnauthorizedOperation", always)
	if err := w.pool().Remove(t.Context(), w.eni); !errors.Is(err, aws.ErrDenied) {
		t.Errorf("Remove: %v", err)
	}
	if e := w.State().ENIs[w.eni]; e.Phase() != registry.Foreign {
		t.Errorf("it is %s: %+v", e.Phase(), e)
	}
}

// TestRemoveServing: Remove fails while the registry or the kernel shows that a pod has an address of the ENI. The
// address may also be in a prefix of the ENI.
func TestRemoveServing(t *testing.T) {
	for _, prefixes := range []bool{false, true} {
		w := newWorld(t, "m5.large", 20)
		w.policy.Prefixes = prefixes
		a := w.mustAcquire(1)
		id := w.ENIs()[1].ID
		refused := func(why, want string) {
			t.Helper()
			err := w.pool().Remove(t.Context(), id)
			if err == nil || !strings.Contains(err.Error(), "it serves pods: "+a.String()+" is in use: "+want) {
				t.Errorf("prefixes %v, %s: %v", prefixes, why, err)
			}
			if e := w.State().ENIs[id]; e.Draining {
				t.Errorf("prefixes %v, %s: its addresses serve no pod", prefixes, why)
			}
		}
		refused("a lease", "pod default/pod001")
		stop := w.usePod(a)
		w.end(1)
		refused("a namespace", "/proc/")
		w.Lose()
		must(t, w.pool().Learn(t.Context()))
		refused("a new registry", "/proc/")
		stop()
		w.Edit(func(s *registry.State) {
			s.EndWhere(time.Now(), func(netip.Addr, registry.Lease) bool { return true })
		})
		if err := w.pool().Remove(t.Context(), id); err != nil || len(w.ENIs()) != 1 {
			t.Errorf("prefixes %v, without pods: %v, %v", prefixes, err, w.ENIs())
		}
	}
}

// TestRemoveServingUnshown: a pod has an address of a new prefix, which EC2's descriptions do not show yet, and the
// registry is lost. An operator's command must not detach the ENI from the pod.
func TestRemoveServingUnshown(t *testing.T) {
	for name, serve := range map[string]func(*world, netip.Addr){
		"a slave of the ENI's link": func(w *world, a netip.Addr) { w.runPod(a) },
		"a routed pod":              (*world).routeTo,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			w.mustAcquire(1)
			id := w.ENIs()[1].ID
			w.lagsBehind(id, aws.ByInstance(w.ID))
			w.policy.Prefixes = true
			a := w.mustAcquire(2)
			serve(w, a)
			w.Lose()
			w.EC2.ResetCalls()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			err := w.pool().Remove(ctx, id)
			if err == nil || !strings.Contains(err.Error(), "it serves pods: "+a.String()+" is in use") {
				t.Errorf("got %v", err)
			}
			w.wantWrites(map[string]int{})
		})
	}
}

// TestCollectServing: the registry does not know that an ENI serves a pod, but the collection finds out.
func TestCollectServing(t *testing.T) {
	w := newTwoNodes(t)
	e := w.ENIs()[1]
	w.runPod(e.Addrs[0])
	w.Edit(func(s *registry.State) {
		known := s.ENIs[w.eni]
		s.Free.Delete(e.Addrs[0])
		known.Addrs = nil
		s.ENIs[w.eni] = known
		s.Rebuilt = registry.Rebuilt{} // there is no other reason to ask EC2
	})
	w.Lie(ec2sim.HideKeys(w.eni, "local-ipv4s"))
	for range 2 {
		_, err := w.pool().Collect(t.Context(), less.Collection{FreeAfter: time.Minute, Max: -1})
		if err == nil || !strings.Contains(err.Error(), e.Addrs[0].String()+" is in use: ") {
			t.Errorf("Collect: %v", err)
		}
		w.wantWrites(map[string]int{})
	}
}

// TestRemoveFails: EC2 fails while an operator removes an ENI that no growth has created. The next collection continues
// the removal. If EC2 has refused to detach the ENI, it serves pods as before.
func TestRemoveFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fail   func(*world, string)
		serves bool
	}{
		{"refused", func(w *world, _ string) { w.EC2.Fail("DetachNetworkInterface", "InternalError", always) }, false},
		{"throttled", func(w *world, _ string) { w.EC2.Fail("DetachNetworkInterface", throttling, always) }, true},
		{"unsupported", func(w *world, _ string) {
			w.EC2.Fail("DetachNetworkInterface", "UnsupportedOperation", always)
		}, true},
		{"denied", func(w *world, _ string) {
			w.EC2.Fail("DetachNetworkInterface", "UnauthorizedOperation", always)
		}, true},
		{"no answer", func(w *world, _ string) {
			w.EC2.Script("DetachNetworkInterface", slices.Repeat([]ec2sim.Outcome{ec2sim.UndoneLost}, 20)...)
		}, false},
		{"not deleted", func(w *world, _ string) { w.EC2.Fail("DeleteNetworkInterface", throttling, always) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				id := w.attachAt(1)
				time.Sleep(time.Minute)
				must(w, w.pool().Learn(w.Context()))
				tt.fail(w, id)
				if err := w.pool().Remove(w.Context(), id); err == nil {
					w.Error("it does not fail")
				}
				if e := w.State().ENIs[id]; e.Draining == tt.serves {
					w.Errorf("it serves pods: %v", !e.Draining)
				}
				for _, action := range []string{"DetachNetworkInterface", "DeleteNetworkInterface"} {
					w.EC2.Fail(action, throttling, 0)
					w.EC2.Script(action)
				}
				time.Sleep(time.Hour)
				w.collect()
				if is := len(w.EC2.ENIs()) == 2; is != tt.serves {
					w.Errorf("it is there: %v", is)
				}
			})
		})
	}
}

// TestRemoveFailsAssign: a node must not delete ENIs, and an operator tries to remove one. If EC2 has not begun to
// detach the ENI, it soon serves pods again. A detached ENI stays until the operator removes or deletes it.
func TestRemoveFailsAssign(t *testing.T) {
	type step func(w *world, eni string)
	fails := func(action, code string) step { return func(w *world, _ string) { w.EC2.Fail(action, code, always) } }
	for name, tt := range map[string]struct {
		fail     step
		detached bool
	}{
		"throttled": {fails("DetachNetworkInterface", throttling), false},
		"refused":   {fails("DetachNetworkInterface", "UnsupportedOperation"), false},
		"EC2 fails": {fails("DetachNetworkInterface", "InternalError"), false},
		"not sent": {func(w *world, _ string) {
			w.EC2.Script("DetachNetworkInterface", slices.Repeat([]ec2sim.Outcome{ec2sim.UndoneLost}, 20)...)
		}, false},
		"killed before": {func(w *world, eni string) {
			w.Edit(func(s *registry.State) { s.Edit(eni, (*registry.ENI).Drain) })
			fails("DescribeNetworkInterfaces", "InternalError")(w, eni)
		}, false},
		"not deleted": {fails("DeleteNetworkInterface", "InternalError"), true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.mustAcquire(1)
				w.end(1)
				time.Sleep(time.Hour)
				eni := w.ENIs()[1].ID
				w.policy.Provision = lease.ProvisionAssign
				remove := func() error {
					p := w.pool()
					p.Policy.Provision = "" // as the tool does
					return p.Remove(w.Context(), eni)
				}
				tt.fail(w, eni)
				if err := remove(); err == nil {
					w.Error("it does not fail")
				}
				for _, action := range []string{"DescribeNetworkInterfaces", "DetachNetworkInterface",
					"DeleteNetworkInterface"} {
					w.EC2.Fail(action, "", 0)
					w.EC2.Script(action)
				}
				time.Sleep(time.Hour)
				w.collect()
				if e := w.State().ENIs[eni]; e.Draining != tt.detached {
					w.Errorf("the registry has %+v", e)
				}
				if a, err := w.acquire(2); tt.detached == (err == nil) {
					w.Errorf("the pod has %v: %v", a.Addrs, err)
				}
				if tt.detached {
					must(w, remove())
				}
				w.consistent()
			})
		})
	}
}

// TestRemoveUnrecorded: EC2 has attached an ENI for a growth, which has not recorded it yet. An operator cannot remove
// the ENI, because pods get its addresses. If the growth is killed, a collection records the ENI, and the operator can
// then remove it.
func TestRemoveUnrecorded(t *testing.T) {
	for name, c := range map[string]struct {
		killed bool
		lag    time.Duration // of metadata
	}{"recorded": {}, "killed": {killed: true}, "metadata lags": {lag: time.Second}} {
		t.Run(name, func(t *testing.T) {
			inBubbleOf(t, "m5.large", func(of *ec2sim.Config) { of.MetadataDelay = c.lag }, func(w *world, _ *wires) {
				ctx, kill := context.WithCancel(w.Context())
				var eni string
				growth := w.at(nil, func() {
					eni = w.ENIs()[1].ID
					err := w.pool().Remove(w.Context(), eni)
					if err == nil || !strings.Contains(err.Error(), "it is still attached: a process") {
						w.Errorf("Remove: %v", err)
					}
					if c.killed {
						kill()
					}
				}, "Action=AttachNetworkInterface&")
				growth.Acquire(ctx, pod(1)) // the ADD fails if the growth is killed
				w.consistent()
				w.collect()
				if e := w.ENI(eni); e.AttachmentStatus != aws.Attached {
					w.Errorf("EC2 shows the ENI as %q", e.AttachmentStatus)
				}
				w.end(1)
				must(w, w.pool().Remove(w.Context(), eni))
			})
		})
	}
}

// TestRemoveBeforeAttach: a growth is about to attach a new ENI. An operator cannot remove the ENI.
func TestRemoveBeforeAttach(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		asked := false
		growth := w.at(func() {
			if asked {
				return
			}
			asked = true
			err := w.pool().Remove(w.Context(), w.EC2.ENIs()[1].ID)
			if err == nil || !strings.Contains(err.Error(), "has begun to attach") {
				w.Errorf("Remove: %v", err)
			}
		}, nil, "Action=AttachNetworkInterface&")
		must1(growth.Acquire(w.Context(), pod(1)))(w)
	})
}

// TestDrainingUnknown: a node must change nothing in EC2, and its role may not describe ENIs. An earlier process has
// marked an ENI as draining. The collections succeed, and remove the mark when the role may describe the ENI.
func TestDrainingUnknown(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.mustAcquire(1)
		w.end(1)
		time.Sleep(time.Hour)
		eni := w.ENIs()[1].ID
		w.policy.Provision = lease.ProvisionNone
		w.Edit(func(s *registry.State) { s.Edit(eni, (*registry.ENI).Drain) })
		w.EC2.Fail("DescribeNetworkInterfaces", "UnauthorizedOperation", always)
		for _, draining := range []bool{true, false} {
			w.collect()
			if e := w.State().ENIs[eni]; e.Draining != draining {
				w.Errorf("the registry has %+v", e)
			}
			w.EC2.Fail("DescribeNetworkInterfaces", "", 0)
		}
	})
}

// TestDeletionOfEarlierConfiguration: a collection has detached an ENI, and EC2 has failed to delete it. Then the
// configuration forbids deletions. The registry keeps the ENI until an operator deletes it, or attaches it to another
// instance.
func TestDeletionOfEarlierConfiguration(t *testing.T) {
	for name, end := range map[string]func(w *twoNodes){
		"an operator deletes it": func(w *twoNodes) {
			w.Operate("DeleteNetworkInterface", "NetworkInterfaceId", w.eni)
		},
		"an operator attaches it to another instance": (*twoNodes).attach,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				other, err := w.EC2.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-node"})
				must(w, err)
				w.mustAcquire(1)
				w.end(1)
				eni := w.ENIs()[1].ID
				w.EC2.Fail("DeleteNetworkInterface", "UnauthorizedOperation", 1)
				if err := w.collectOld(); err == nil {
					w.Error("the collection does not fail")
				}
				w.policy.Provision = lease.ProvisionAssign
				time.Sleep(time.Hour)
				w.collect()
				if e, known := w.State().ENIs[eni]; !known || !e.Draining {
					w.Errorf("the registry has %+v, %v", e, known)
				}
				end(&twoNodes{w, other, eni})
				w.collect()
				if e, known := w.State().ENIs[eni]; known {
					w.Errorf("the registry has %+v", e)
				}
			})
		})
	}
}

// TestDetachInTurn: EC2 throttles a process that releases an ENI. No other process calls the action before the time
// that the first one has recorded.
func TestDetachInTurn(t *testing.T) {
	for _, action := range []string{"DetachNetworkInterface", "DeleteNetworkInterface"} {
		t.Run(action, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.mustAcquire(1)
				w.end(1)
				time.Sleep(time.Hour)
				must(w, w.pool().NotBefore(w.Context(), action, registry.MostBackoff))
				w.EC2.ResetCalls()
				if _, err := w.pool().Collect(w.Context(), less.Collection{FreeAfter: time.Minute,
					Max: -1}); err == nil || w.EC2.Asked(action) != 0 {
					w.Errorf("%d calls, %v", w.EC2.Asked(action), err)
				}
				time.Sleep(registry.MostBackoff)
				w.EC2.Fail(action, throttling, always)
				w.Edit(func(s *registry.State) { clear(s.NotBefore) })
				if _, err := w.pool().Collect(w.Context(), less.Collection{FreeAfter: time.Minute,
					Max: -1}); err == nil || w.State().NotBefore[action].IsZero() {
					w.Errorf("not before %v, %v", w.State().NotBefore, err)
				}
			})
		})
	}
}

// TestCollectThrottledDetach: a collection wants to detach an ENI of ours, or an ENI on request. EC2 throttles this
// call, or the node must still wait after an earlier throttling. Pods can get the ENI's addresses, because EC2 would
// throttle a growth, too.
func TestCollectThrottledDetach(t *testing.T) {
	for name, throttle := range map[string]func(*world){
		"refused": func(w *world) { w.EC2.Fail("DetachNetworkInterface", throttling, always) },
		"not asked": func(w *world) {
			must(w, w.pool().NotBefore(w.Context(), "DetachNetworkInterface", registry.MostBackoff))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "m5.2xlarge", func(w *world, _ *wires) {
				ask := fmt.Sprintf(`[{"eni": %q}]`, w.given(aws.ENISpec{Subnet: "subnet-node"}).ID)
				w.mustAcquire(1)
				w.mustAsk(2, ask)
				w.end(1)
				w.end(2)
				time.Sleep(time.Hour)
				throttle(w)
				c := less.Collection{FreeAfter: time.Minute, Max: -1}
				if done, err := w.pool().Collect(w.Context(), c); err == nil ||
					len(done.Deleted)+len(done.Detached)+len(done.Unassigned) > 0 {
					t.Errorf("released %+v: %v", c, err)
				}
				w.EC2.ResetCalls()
				w.mustAcquire(3)
				w.mustAsk(4, ask)
				w.wantWrites(map[string]int{})
				w.consistent()
			})
		})
	}
}

// TestCollectThrottledEnds: EC2 throttles a call of a collection. The collection soon ends, although registry-gc has
// two minutes. Further calls would count against the limit of all nodes, and no pod gets an address of a draining ENI.
func TestCollectThrottledEnds(t *testing.T) {
	for _, action := range []string{"DescribeNetworkInterfaces", "DetachNetworkInterface", "DeleteNetworkInterface"} {
		t.Run(action, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.mustAcquire(1)
				w.end(1)
				time.Sleep(time.Hour)
				w.EC2.ResetCalls()
				w.EC2.Fail(action, throttling, always)
				ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute) // as registry-gc has
				defer cancel()
				const soon, few = 10 * time.Second, 12
				began := time.Now()
				_, err := w.pool().Collect(ctx, less.Collection{FreeAfter: time.Minute, Max: -1})
				if took, n := time.Since(began), w.EC2.Asked(action); err == nil || took > soon || n > few {
					w.Errorf("it has taken %v and %d calls: %v", took, n, err)
				}
			})
		})
	}
}

// TestCollectThrottledOnce: EC2 throttles the first call of a collection about one of two ENIs. The collection then
// sends no such call about the other ENI, because each call would count against the limit of all nodes.
func TestCollectThrottledOnce(t *testing.T) {
	for action, keeps := range map[string]bool{"DescribeNetworkInterfaces": false, "DetachNetworkInterface": false,
		"DeleteNetworkInterface": false, book.UnassignAction: true} {
		asked := map[string]bool{} // the ENIs or attachments of the calls
		t.Run(action, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.fill(2)
				w.collect() // finishes the comparison of the registry with EC2
				w.Edit(func(s *registry.State) {
					s.EndWhere(time.Now(), func(a netip.Addr, l registry.Lease) bool {
						return !keeps || a != s.ENIs[l.ENI].Primary()
					})
				})
				time.Sleep(time.Hour)
				w.EC2.ResetCalls()
				w.EC2.Fail(action, throttling, always)
				_, err := w.pool().Collect(w.Context(), less.Collection{FreeAfter: time.Minute, Max: -1})
				for _, c := range w.EC2.Calls() {
					if p := c.Params; c.Action == action {
						asked[p["NetworkInterfaceId"]+p["AttachmentId"]+p["Filter.1.Value.1"]] = true
					}
				}
				if err == nil || len(asked) != 1 {
					w.Errorf("the calls are about %v: %v", slices.Sorted(maps.Keys(asked)), err)
				}
			})
		})
	}
}

// TestCollectUnanswered: EC2 gives no answer to a collection that wants to delete ENIs of ours, or to detach ENIs on
// request. The collection asks no more often for three ENIs than for one.
func TestCollectUnanswered(t *testing.T) {
	for _, asks := range []bool{false, true} {
		asked := map[int]int{}
		for _, enis := range []int{1, 3} {
			inBubble(t, "m5.xlarge", func(w *world, _ *wires) {
				for i := range enis {
					if asks {
						w.mustAsk(i, fmt.Sprintf(`[{"eni": %q}]`, w.given(aws.ENISpec{Subnet: "subnet-node"}).ID))
					}
				}
				if !asks {
					w.fill(enis)
				}
				w.Edit(func(s *registry.State) {
					s.EndWhere(time.Now(), func(netip.Addr, registry.Lease) bool { return true })
				})
				time.Sleep(time.Hour)
				w.EC2.ResetCalls()
				w.EC2.Lose("DescribeNetworkInterfaces", 1000)
				_, err := w.pool().Collect(w.Context(), less.Collection{FreeAfter: time.Minute, Max: -1})
				if asked[enis] = w.EC2.Asked("DescribeNetworkInterfaces"); err == nil || asked[enis] == 0 {
					w.Errorf("asked %d times: %v", asked[enis], err)
				}
			})
		}
		if asked[1] != asked[3] {
			t.Errorf("with requests %v, the numbers of calls by the number of ENIs are %v", asks, asked)
		}
	}
}

// noEC2 passes requests to the metadata service, and gives no answer to requests to EC2. It counts the requests to EC2.
type noEC2 struct {
	*wires
	refuses  bool // without a connection, an error comes before the deadline
	requests int
}

func (n *noEC2) Do(r *http.Request) (*http.Response, error) {
	if r.URL.Host == "imds" {
		return n.wires.Do(r)
	}
	if n.requests++; n.refuses {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestCollectUnconnected: a collection has work to do on one ENI, or on two. It gets no connection to EC2, or no
// answer. For two ENIs, it sends no more requests than for one.
func TestCollectUnconnected(t *testing.T) {
	endAll := func(s *registry.State, but func(netip.Addr) bool) {
		s.EndWhere(time.Now(), func(a netip.Addr, _ registry.Lease) bool { return !but(a) })
	}
	for name, prepare := range map[string]func(*world, *registry.State, string){
		"detached ENIs": func(w *world, s *registry.State, id string) {
			w.Operate("DetachNetworkInterface", "AttachmentId", w.ENI(id).Attachment)
			endAll(s, func(netip.Addr) bool { return false })
			s.Edit(id, func(e *registry.ENI) { e.Miss(time.Now()); e.Detach() })
		},
		"DeleteOnTermination": func(w *world, s *registry.State, id string) {
			s.Intents[id] = registry.Intent{Action: book.ModifyAction, ENI: id, Since: time.Now(),
				Attachment: w.ENI(id).Attachment}
		},
		"idle addresses": func(_ *world, s *registry.State, id string) {
			endAll(s, func(a netip.Addr) bool { _, e := s.ENIOf(a); return a == e.Primary() })
		},
		"chosen addresses": func(_ *world, s *registry.State, id string) {
			a := s.ENIs[id].Addrs[9]
			s.End(a, time.Now())
			s.Owners[a] = registry.Pod{Namespace: "default", Name: id}
		},
		"begun releases": func(_ *world, s *registry.State, id string) {
			a := s.ENIs[id].Addrs[9]
			s.End(a, time.Now())
			x := book.Releasable{Addrs: map[netip.Addr]time.Time{a: {}}}
			book.NoteNamed(s, id, x)
			book.Withdraw(s, id, x)
		},
	} {
		for _, refuses := range []bool{false, true} {
			requests := map[int]int{}
			for _, enis := range []int{1, 2} {
				inBubble(t, "m5.large", func(w *world, wires *wires) {
					ids := w.fill(enis)
					w.collect() // finishes the comparison of the registry with EC2
					w.Edit(func(s *registry.State) {
						for _, id := range ids {
							prepare(w, s, id)
						}
					})
					time.Sleep(10 * time.Minute)
					ec2 := &noEC2{wires: wires, refuses: refuses}
					w.cloud.HTTP = ec2
					_, err := w.pool().Collect(w.Context(), less.Collection{FreeAfter: time.Minute, Max: -1})
					if requests[enis] = ec2.requests; err == nil || ec2.requests == 0 {
						w.Errorf("%s: %d requests, %v", name, ec2.requests, err)
					}
				})
			}
			if requests[1] != requests[2] {
				t.Errorf("%s, refuses %v: the requests by the number of ENIs are %v", name, refuses, requests)
			}
		}
	}
}

// TestDeletedAndReused: a process was killed after it had deleted an ENI, so the registry still has the ENI. The subnet
// has no other free addresses, so EC2 gives those of the deleted ENI to another ENI of the node. An ADD gets one of
// them, before a collection.
func TestDeletedAndReused(t *testing.T) {
	const usable = 11
	small := func(c *ec2sim.Config) { c.Subnets[1].CIDR = netip.MustParsePrefix("10.177.16.0/28") }
	for _, room := range []bool{false, true} { // true: another ENI has room for more addresses
		inBubbleOf(t, "m5.large", small, func(w *world, _ *wires) {
			gone := must1(w.acquire(0))(w)
			w.end(0)
			w.Edit(func(s *registry.State) { s.Edit(gone.ID, (*registry.ENI).Drain) })
			time.Sleep(time.Hour)
			if room {
				w.mustAcquire(1)
			}
			left := usable
			for _, e := range w.ENIs()[1:] {
				left -= len(e.Addrs)
			}
			w.Operate("CreateNetworkInterface", "SubnetId", "subnet-pod0", "SecondaryPrivateIpAddressCount",
				fmt.Sprint(left-1))
			w.byOperator(gone.ID)
			w.Operate("DeleteNetworkInterface", "NetworkInterfaceId", gone.ID)
			if got, err := w.acquire(2); err != nil || !slices.Contains(gone.Addrs, got.Addrs[0]) {
				w.Errorf("room %v: got %v, %v", room, got.Addrs, err)
			}
			w.consistent()
		})
	}
}

// TestCollectMayNotDetach: the role may not detach an ENI, but a collection releases its addresses.
func TestCollectMayNotDetach(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 4
	a := w.mustAcquire(1)
	w.end(1)
	w.Age(hour)
	w.EC2.Fail("DetachNetworkInterface", "UnauthorizedOperation", -1)
	c := less.Collection{FreeAfter: time.Minute, Max: -1}
	if done, err := w.pool().Collect(t.Context(), c); !errors.Is(err, aws.ErrDenied) || len(done.Unassigned) != 3 {
		t.Errorf("%v went back of 4 addresses: %v", done.Unassigned, err)
	}
	if b := w.mustAcquire(2); b != a {
		t.Errorf("a pod has %s, and %s was free, the primary address", b, a)
	}
	w.consistent()
}

// busyDetach is an EC2 that throttles each DetachNetworkInterface of a collection. Before the first such refusal, it
// calls the function in the field first.
type busyDetach struct {
	sim   *ec2sim.Sim
	first func()
	once  sync.Once
}

func (b *busyDetach) Do(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		return http.DefaultClient.Do(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if bytes.Contains(body, []byte("Action=DetachNetworkInterface&")) {
		b.once.Do(b.first)
		b.sim.Fail("DetachNetworkInterface", throttling, 1)
	}
	return http.DefaultClient.Do(r)
}

// TestCollectThrottledGrowthDetaches: EC2 throttles a collection that wants to detach an ENI. Meanwhile a growth
// detaches the same ENI, because the growth needs the slot. No pod gets an address of the ENI.
func TestCollectThrottledGrowthDetaches(t *testing.T) {
	c := podSubnets(24)
	c.DetachDelay = 4 * time.Second
	w := buildWorld(t, "m5.large", c)
	w.policy.Batch = 0
	for n := range 11 {
		w.mustAcquire(n)
	}
	idle, _ := w.State().ENIOf(w.mustAcquire(11))
	w.end(10)
	w.end(11)
	w.Age(hour)
	var grows sync.WaitGroup
	p := w.pool()
	p.Cloud = aws.New(aws.Options{EC2URL: w.cloud.EC2URL, MetadataURL: w.cloud.MetadataURL,
		HTTP: &busyDetach{sim: w.EC2, first: func() {
			grows.Go(func() { w.mustAcquire(12) })
			for deadline := time.Now().Add(time.Minute); w.ENI(idle).AttachmentStatus != "detaching" &&
				time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
		}}})
	if _, err := p.Collect(t.Context(), less.Collection{FreeAfter: time.Minute, Max: -1}); err == nil {
		t.Error("EC2 has throttled the collection, and it says nothing")
	}
	a := w.mustAcquire(13)
	grows.Wait()
	if id, _ := w.State().ENIOf(a); id == idle || id == "" {
		t.Errorf("a pod has got %s of %q while that was detached", a, id)
	}
	w.consistent()
}

// TestCollectStuck: EC2 is still detaching two ENIs, one of ours and one on request. The collection still releases idle
// addresses of other ENIs, and ends in time. When EC2 has finished, a collection continues.
func TestCollectStuck(t *testing.T) {
	const takes = time.Hour
	inSlowBubble(t, "m5.2xlarge", takes, func(w *world, _ *wires) {
		w.mustAsk(99, fmt.Sprintf(`[{"eni": %q}]`, w.given(aws.ENISpec{Subnet: "subnet-node"}).ID))
		w.policy.Batch = 15
		for n := range 2 * 15 { // on two ENIs
			w.mustAcquire(n)
		}
		w.end(99)
		for n := 1; n < 2*15; n++ {
			w.end(n)
		}
		time.Sleep(time.Hour)
		for range 2 {
			ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
			c := less.Collection{FreeAfter: time.Minute, Max: -1}
			if _, err := w.pool().Collect(ctx, c); err == nil || ctx.Err() != nil {
				w.Errorf("got %v, and the time of the collection: %v", err, ctx.Err())
			}
			cancel()
		}
		if n := w.writes()[book.UnassignAction]; n != 1 {
			w.Errorf("addresses were unassigned %d times", n)
		}
		time.Sleep(takes)
		w.collect()
		if n := len(w.ENIs()); n != 1 { // no pod is left, so only the boot ENI stays
			w.Errorf("%d ENIs are attached: %+v", n, w.State().ENIs)
		}
		w.consistent()
	})
}

// TestRemoveBegun: an ADD is killed between the creation and the attachment of its ENI. An operator tries to remove the
// ENI, and follows the advice in the error. The advice is different if another network of the node must not create
// ENIs.
func TestRemoveBegun(t *testing.T) {
	for other, advice := range map[lease.Provision]string{lease.ProvisionFull: "run registry-gc, and try again",
		lease.ProvisionAssign: "first wait 15 minutes", lease.ProvisionNone: "first wait 15 minutes"} {
		inBubble(t, "m5.large", func(w *world, _ *wires) {
			w.notGrown()
			id := w.EC2.ENIs()[1].ID
			p := w.pool()
			p.Policy = lease.Common(w.policy, w.another(other))
			p.Policy.Provision = "" // as the tool does
			if err := p.Remove(w.Context(), id); err == nil || !strings.Contains(err.Error(), advice) {
				w.Errorf("another network has %s, and the first attempt: %v", other, err)
			}
			if other != lease.ProvisionFull {
				time.Sleep(15*time.Minute + time.Second)
			}
			w.collectBoth(other)
			if err := p.Remove(w.Context(), id); err != nil && !errors.Is(err, aws.ErrNotFound) {
				w.Errorf("another network has %s: %v", other, err)
			}
			if n := len(w.EC2.ENIs()); n != 1 {
				w.Errorf("another network has %s, and there are %d ENIs", other, n)
			}
		})
	}
}
