// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// A world is a node whose pods get their addresses in this process.
type world struct {
	*simtest.Node
	cloud  aws.Options
	policy lease.Policy
}

// newWorld makes a VPC with a node of the type, a subnet for nodes, and subnets for pods. The argument bits has the
// prefix lengths of the pods' subnets. The test machine itself is unlikely to have addresses of this VPC.
func newWorld(t *testing.T, instanceType string, bits ...int) *world {
	t.Helper()
	return buildWorld(t, instanceType, podSubnets(bits...))
}

func podSubnets(bits ...int) ec2sim.Config {
	text := "vpc-1 10.177.0.0/16 100.77.0.0/16\nsubnet-node 10.177.0.0/24"
	for i, n := range bits {
		text += fmt.Sprintf("\nsubnet-pod%d 100.77.%d.0/%d kubernetes_kubelet=true", i, i*32, n)
	}
	return ec2sim.World(text)
}

// newWorld6 makes a VPC of both families, with one subnet for pods.
func newWorld6(t *testing.T, instanceType string) *world {
	t.Helper()
	return dualWorld(t, instanceType, `
		subnet-node 10.177.0.0/24
		subnet-pod0 10.177.16.0/20 2001:db8:77:1::/64 kubernetes_kubelet=true`)
}

func buildWorld(t *testing.T, instanceType string, config ec2sim.Config) *world {
	t.Helper()
	return launch(t, config, ec2sim.RunInstance{Type: instanceType, Subnet: "subnet-node"})
}

func launch(t *testing.T, config ec2sim.Config, run ec2sim.RunInstance) *world {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	w := worldOf(t, simtest.NewNode(t), config, run)
	w.answers(w.EC2.ServeHTTP)
	w.cloud.MetadataURL = simtest.Serve(t, w.Metadata())
	return w
}

// worldOf launches the node. Its EC2 and metadata service have no URL yet.
func worldOf(t *testing.T, n *simtest.Node, config ec2sim.Config, run ec2sim.RunInstance) *world {
	t.Helper()
	n.Launch(t, config, run)
	return &world{Node: n, policy: lease.Policy{MinIndex: 1, Families: []lease.Family{lease.IPv4},
		SubnetTags: map[string]string{"kubernetes_kubelet": "true"}, Provision: lease.ProvisionFull, Batch: 1,
		ReuseWait: time.Minute, Timeout: time.Minute}}
}

// answers puts a handler in the place of EC2.
func (w *world) answers(ec2 http.HandlerFunc) { w.cloud.EC2URL = simtest.Serve(w, ec2) }

// pool returns the pool, as a process of its own opens it.
func (w *world) pool() *Pool {
	w.Helper()
	return New(lease.Pool{Registry: w.Registry(), Host: w.Host, Policy: w.policy}, aws.New(w.cloud))
}

func pod(n int) lease.Owner {
	id := fmt.Sprintf("pod%03d", n)
	return lease.Owner{Key: registry.Key{Network: "net", Attachment: plugin.Attachment{ContainerID: id,
		IfName: "eth0"}},
		Pod: plugin.Pod{Namespace: "default", Name: id}, NetNS: "/run/netns/no-such-" + id}
}

func (w *world) acquire(n int) (lease.Allocation, error) {
	ctx, cancel := context.WithTimeout(w.Context(), w.policy.Timeout)
	defer cancel()
	return w.pool().Acquire(ctx, pod(n))
}

func (w *world) mustAcquire(n int) netip.Addr {
	w.Helper()
	a, err := w.acquire(n)
	if err != nil {
		w.Fatalf("pod %d: %v", n, err)
	}
	return a.Addrs[0]
}

func (w *world) end(n int) {
	w.Helper()
	if err := w.pool().End(w.Context(), pod(n).Key); err != nil {
		w.Fatal(err)
	}
}

// writes returns the number of calls of each action that changed something in EC2.
func (w *world) writes() map[string]int { return w.EC2.Changed() }

func (w *world) wantWrites(want map[string]int) {
	w.Helper()
	if got := w.writes(); !maps.Equal(got, want) {
		w.Errorf("EC2 was asked for %v, want %v", got, want)
	}
	w.EC2.ResetCalls()
}

// consistent checks what must be true at any time. The addresses that the registry leases or calls free are on this
// node's ENIs in EC2, and no address has two owners.
func (w *world) consistent() {
	w.Helper()
	onENI := map[netip.Addr]string{}
	for _, e := range w.EC2.ENIs() {
		if e.Instance == w.ID {
			for _, a := range slices.Concat(e.Addrs, e.IPv6Addrs) {
				onENI[a] = e.ID
			}
		}
	}
	s := w.State()
	for id, e := range s.ENIs {
		if wrong := e.Wrong(); wrong != "" {
			w.Errorf("%s: %s", id, wrong)
		}
	}
	for a := range s.Leases.Keys() {
		if onENI[a] == "" && !w.delegated(a) {
			w.Errorf("%s is leased, but on no ENI of the node", a)
		}
	}
	for a := range s.Free.Keys() {
		if onENI[a] == "" && !w.delegated(a) {
			w.Errorf("%s is free, but on no ENI of the node", a)
		}
	}
}

// delegated reports whether an ENI of the node has a prefix with the address.
func (w *world) delegated(a netip.Addr) bool {
	return slices.ContainsFunc(w.EC2.ENIs(), func(e ec2sim.ENI) bool {
		return e.Instance == w.ID && slices.ContainsFunc(slices.Concat(e.Prefixes, e.IPv6Prefixes),
			func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

var oneENI = map[string]int{"CreateNetworkInterface": 1, "AttachNetworkInterface": 1,
	"ModifyNetworkInterfaceAttribute": 1}

func TestFirstPods(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	a := w.mustAcquire(1)
	w.wantWrites(oneENI)
	if again := w.mustAcquire(1); again != a {
		t.Errorf("the same attachment got %s, then %s", a, again)
	}
	w.wantWrites(map[string]int{})
	b := w.mustAcquire(2)
	w.wantWrites(map[string]int{"AssignPrivateIpAddresses": 1})
	if a == b {
		t.Errorf("two pods have %s", a)
	}
	eni := w.EC2.ENIs()[1]
	if eni.Description != "CNI-ENI "+w.ID || eni.Tags[book.TagInstance] != w.ID ||
		eni.Tags[book.TagManaged] != "true" || !eni.DeleteOnTermination {
		t.Errorf("ENI is %+v", eni)
	}
	if s := w.State(); len(s.Intents) > 0 || len(s.Waiters) != 0 {
		t.Errorf("left over: intents %v, waiters %v", s.Intents, s.Waiters)
	}
	w.consistent()
}

// TestWarm: an ADD with a free address asks neither EC2 nor metadata.
func TestWarm(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 0
	w.mustAcquire(0)
	w.EC2.ResetCalls()
	for n := 1; n < 10; n++ {
		w.mustAcquire(n)
	}
	if ec2, imds := len(w.EC2.Calls()), len(w.MetadataCalls()); ec2+imds != 0 {
		t.Errorf("%d EC2 calls, %d metadata calls", ec2, imds)
	}
}

// TestAtOnce: pods of a burst on an empty node get different addresses, by hardly more calls than the ENIs need.
func TestAtOnce(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	const pods = 20                        // all that two ENIs of ten addresses have
	w.EC2.OnChange(func(c ec2sim.Change) { // EC2 attaches the first ENI only when all pods wait
		for end := time.Now().Add(time.Minute); c.Kind == ec2sim.Attached && len(w.EC2.ENIs()) == 2 &&
			len(w.State().Waiters) < pods && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
	})
	var mu sync.Mutex
	got := map[netip.Addr]int{}
	var wg sync.WaitGroup
	for n := range pods {
		p := w.pool()
		wg.Go(func() {
			a, err := p.Acquire(t.Context(), pod(n))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("pod %d: %v", n, err)
			}
			for _, a := range a.Addrs {
				got[a]++
			}
		})
	}
	wg.Wait()
	if len(got) != pods {
		t.Errorf("%d distinct addresses, want %d: %v", len(got), pods, got)
	}
	writes := w.writes()
	if writes["CreateNetworkInterface"] != 2 || writes["AssignPrivateIpAddresses"] > 2 {
		t.Errorf("EC2 was asked for %v", writes)
	}
	w.consistent()

	_, err := w.acquire(pods)
	e, ok := errors.AsType[*plugin.Error](err)
	if !ok || e.Code != plugin.CodeTryAgain || !errors.Is(err, aws.ErrInstanceFull) || e.Hint == "" {
		t.Errorf("pod %d on a full node: %v (%+v)", pods, err, e)
	}
}

func TestCooling(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	a := w.mustAcquire(1)
	w.end(1)
	if b := w.mustAcquire(2); b == a {
		t.Errorf("%s was given away while it cooled", a)
	}
	w.end(2)
	w.Age(2 * time.Minute)
	w.EC2.ResetCalls()
	if b := w.mustAcquire(3); b == a { // while one address cooled, the node got one more, which no pod has had
		t.Errorf("got %s, which a pod has had, and another is free that none has had", b)
	}
	if b := w.mustAcquire(4); b != a {
		t.Errorf("got %s, want %s, which has been free the longest", b, a)
	}
	w.wantWrites(map[string]int{})
	w.end(99) // pod 99 does not exist
}

// TestFullestFirst: new pods get addresses of the ENI with the most pods, so that a collection can release the other
// ENI.
func TestFullestFirst(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 0
	for n := range 12 {
		w.mustAcquire(n)
	}
	for n := range 5 {
		w.end(n)
	}
	w.Age(time.Hour)
	// The first ENI has 5 pods now, the second 2.
	s := w.State()
	first, _ := s.ENIOf(s.Held(pod(9).Key)[0])
	for n := 20; n < 25; n++ {
		a := w.mustAcquire(n)
		if id, _ := s.ENIOf(a); id != first {
			t.Errorf("pod %d is on %s, want the fuller %s", n, id, first)
		}
	}
}

// TestSubnetFull: if a subnet is full, the node tries the next one. The ADD fails only if all subnets are full.
func TestSubnetFull(t *testing.T) {
	w := newWorld(t, "m5.large", 28, 28) // 11 addresses each
	for n := range 20 {
		w.mustAcquire(n)
	}
	w.consistent()
	subnets := map[string]bool{}
	for _, e := range w.EC2.ENIs() {
		subnets[e.Subnet] = true
	}
	if len(subnets) != 3 {
		t.Errorf("ENIs are in %v", subnets)
	}
	w = newWorld(t, "m5.large", 28)
	var err error
	n := 0
	for ; err == nil && n < 30; n++ {
		_, err = w.acquire(n)
	}
	if n-1 != 11 || !errors.Is(err, aws.ErrSubnetFull) {
		t.Errorf("pod %d: %v", n-1, err)
	}
	if n := len(w.EC2.ENIs()); n > 3 {
		t.Errorf("%d ENIs", n)
	}
}

// TestThrottled: while EC2 throttles an assignment, the node waits, and creates no ENI.
func TestThrottled(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.mustAcquire(1)
	w.EC2.ResetCalls()
	w.EC2.Fail("AssignPrivateIpAddresses", "RequestLimitExceeded", 3)
	w.mustAcquire(2)
	w.wantWrites(map[string]int{"AssignPrivateIpAddresses": 1})

	w.policy.Timeout = 300 * time.Millisecond
	w.EC2.Fail("AssignPrivateIpAddresses", "RequestLimitExceeded", -1)
	asked, err := w.EC2.Asked("AssignPrivateIpAddresses"), error(nil)
	for w.EC2.Asked("AssignPrivateIpAddresses") == asked { // on a busy machine, the time may end before the call
		_, err = w.acquire(3)
	}
	e, ok := errors.AsType[*plugin.Error](err)
	if !ok || e.Code != plugin.CodeTryAgain || !strings.Contains(err.Error(), "AssignPrivateIpAddresses") {
		t.Errorf("throttled for ever: %v", err)
	}
	if len(w.EC2.ENIs()) != 2 {
		t.Errorf("%d ENIs", len(w.EC2.ENIs()))
	}
}

func TestDenied(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.EC2.Fail("CreateNetworkInterface", "UnauthorizedOperation", -1)
	_, err := w.acquire(1)
	e, ok := errors.AsType[*plugin.Error](err)
	if !ok || !errors.Is(err, aws.ErrDenied) || e.Hint != "allow ec2:CreateNetworkInterface in the instance role" {
		t.Errorf("%v (%+v)", err, e)
	}
}

// TestResume: the next process finishes what an interrupted process has begun.
func TestResume(t *testing.T) {
	for _, action := range []string{"AttachNetworkInterface", "ModifyNetworkInterfaceAttribute"} {
		t.Run(action, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			w.EC2.Fail(action, "InternalError", 4)
			_, err := w.acquire(1)
			t.Logf("the first try: %v", err)
			w.mustAcquire(2)
			w.policy.Batch = 20
			w.mustAcquire(3) // a growth repeats ModifyNetworkInterfaceAttribute
			enis := w.EC2.ENIs()
			if len(enis) != 2 || enis[1].Status != "in-use" || !enis[1].DeleteOnTermination {
				t.Errorf("ENIs: %+v", enis)
			}
			if s := w.State(); len(s.Intents) > 0 {
				t.Errorf("intents: %v", s.Intents)
			}
			w.consistent()
		})
	}
}

// TestLostRegistry: after a loss of the registry, addresses that pods use stay used, and all other addresses cool.
func TestLostRegistry(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 3
	a, err := w.acquire(1)
	if err != nil {
		t.Fatal(err)
	}
	stop := w.usePod(a.Addrs[0])
	if err := os.RemoveAll(w.Dir); err != nil {
		t.Fatal(err)
	}
	if w.State().Free.Len() != 0 {
		t.Fatal("the registry is not lost")
	}
	b := w.mustAcquire(2)
	if b == a.Addrs[0] {
		t.Fatalf("%s was given away while a pod has it", b)
	}
	s := w.State()
	if l, _ := s.Leases.At(a.Addrs[0]); l.Key != (registry.Key{}) || !l.Bound {
		t.Errorf("lease of %s: %+v", a.Addrs[0], l)
	}
	// A repeated DEL of an earlier pod with the address does not end the lease of the running pod.
	if err := w.pool().End(t.Context(), pod(3).Key, a.Addrs[0]); err != nil {
		t.Fatal(err)
	}
	if w.State().Free.Has(a.Addrs[0]) {
		t.Errorf("%s is free, and a running pod has it", a.Addrs[0])
	}
	// The DEL of a pod whose lease has no key finds the lease by the address in prevResult.
	stop()
	if err := w.pool().End(t.Context(), pod(1).Key, a.Addrs[0]); err != nil {
		t.Fatal(err)
	}
	if !w.State().Free.Has(a.Addrs[0]) {
		t.Errorf("%s is not free", a.Addrs[0])
	}
	w.consistent()
}

// TestFirstBoot: on a node that has had no pod, addresses from the launch template serve pods at once.
func TestFirstBoot(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.MinIndex, w.policy.Provision = 0, lease.ProvisionNone
	p := w.pool()
	boot := w.EC2.ENIs()[0]
	if _, err := p.Cloud.Assign(t.Context(), boot.ID, 3); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if a := w.mustAcquire(n); a == boot.Addrs[0] {
			t.Errorf("pod %d has the node's own address", n)
		}
	}
	_, err := w.acquire(3)
	if e, ok := errors.AsType[*plugin.Error](err); !ok || !strings.Contains(err.Error(), "does not ask EC2 for more") ||
		e.Hint == "" {
		t.Errorf("fourth pod: %v", err)
	}
}

func TestCollect(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	for n := range 12 {
		w.mustAcquire(n)
	}
	for n := range 12 {
		w.end(n)
	}
	collect := func(c less.Collection) less.Report {
		t.Helper()
		done, err := w.pool().Collect(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		w.consistent()
		return done
	}
	if c := collect(less.Collection{FreeAfter: time.Minute, Max: -1}); len(c.Unassigned)+len(c.Deleted) != 0 {
		t.Errorf("too soon: %+v", c)
	}
	w.Age(2 * time.Minute)
	w.EC2.ResetCalls()
	if c := collect(less.Collection{FreeAfter: time.Minute, Max: 4}); len(c.Unassigned) != 4 {
		t.Errorf("at most 4: %+v", c)
	}
	w.wantWrites(map[string]int{"UnassignPrivateIpAddresses": 1})
	if c := collect(less.Collection{FreeAfter: time.Minute, Max: -1}); len(c.Deleted) != 2 {
		t.Errorf("all: %+v", c)
	}
	if enis := w.EC2.ENIs(); len(enis) != 1 {
		t.Errorf("ENIs: %+v", enis)
	}
	s := w.State()
	if s.Free.Len() != 0 || len(s.ENIs) != 1 {
		t.Errorf("state: %+v", s)
	}
}

// TestCollectUsedENI: a collection releases the idle addresses of an ENI with a pod, but never the primary address.
func TestCollectUsedENI(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 0
	for n := range 10 {
		w.mustAcquire(n)
	}
	primary := w.EC2.ENIs()[1].Addrs[0]
	for n := range 10 {
		if a := w.State().Held(pod(n).Key)[0]; a == primary || n < 9 {
			w.end(n)
		}
	}
	w.Age(time.Hour)
	c := less.Collection{FreeAfter: time.Minute, Max: -1}
	done, err := w.pool().Collect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	eni := w.EC2.ENIs()[1]
	if len(done.Deleted) != 0 || eni.Addrs[0] != primary || slices.Contains(done.Unassigned, primary) {
		t.Errorf("collected %+v, ENI is %+v", c, eni)
	}
	// Learn does not add an address that only metadata still lists.
	if err := w.pool().Learn(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.consistent()
}

// TestCollectLostPods: a pod has ended without a DEL. A collection finds the pod missing. A later collection ends its
// lease, when a grace period has passed.
func TestCollectLostPods(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	a := w.mustAcquire(1)
	c := less.Collection{FreeAfter: time.Hour, Max: -1}
	for want, wait := range []time.Duration{0, 0, 2 * time.Minute} {
		w.Age(wait)
		done, err := w.pool().Collect(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if ended := slices.Contains(done.Ended, a); ended != (want == 2) {
			t.Errorf("collection %d: ended %v", want, done.Ended)
		}
	}
}

// TestCollectLostPodsByProcess: a runtime names a pod's namespace by the PID of its first process. The pod has ended
// without a DEL, and another process of the node has this PID by now. Collections end the lease.
func TestCollectLostPodsByProcess(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	o := pod(1)
	o.NetNS = fmt.Sprintf("/proc/%d/ns/net", os.Getpid())
	if _, err := w.pool().Acquire(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.collect()
		w.Age(2 * time.Minute)
	}
	if s := w.State(); s.Leases.Len() > 0 {
		t.Errorf("leases %v", maps.Collect(s.Leases.All()))
	}
}

func TestRetain(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 3
	for n := range 3 {
		w.mustAcquire(n)
	}
	if err := w.pool().Retain(t.Context(), "another", nil); err != nil || w.State().Leases.Len() != 3 {
		t.Errorf("another network: %v, %d leases", err, w.State().Leases.Len())
	}
	if err := w.pool().Retain(t.Context(), "net", []plugin.Attachment{pod(1).Attachment}); err != nil {
		t.Fatal(err)
	}
	s := w.State()
	if s.Leases.Len() != 1 || len(s.Held(pod(1).Key)) != 1 || s.Free.Len() != 2 {
		t.Errorf("leases %v, free %v", maps.Collect(s.Leases.All()), maps.Collect(s.Free.All()))
	}
}

// TestRouteMeansUsed: the node has a route to a pod whose namespace no process can read. The pod's address counts as
// used.
func TestRouteMeansUsed(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 3
	a := w.mustAcquire(1)
	dummy := nl.Wiring{
		{NS: w.Host, Object: nl.Veth{Name: "veth0", Peer: "veth1", PeerNS: w.Host}},
		{NS: w.Host, Object: nl.Route{Dst: netip.PrefixFrom(a, 32), Dev: "veth0"}},
	}
	if err := dummy.Add(); err != nil {
		t.Fatal(err)
	}
	w.Lose()
	if b := w.mustAcquire(2); b == a {
		t.Errorf("%s was given away while the node routes it to a pod", a)
	}
	if l, _ := w.State().Leases.At(a); !l.Bound {
		t.Errorf("lease of %s: %+v", a, l)
	}
	c := less.Collection{FreeAfter: 1, Max: -1}
	w.Age(hour)
	if done, err := w.pool().Collect(t.Context(), c); err != nil || slices.Contains(done.Unassigned, a) {
		t.Errorf("collected %+v: %v", c, err)
	}
}
