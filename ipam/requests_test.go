// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// newCity returns a world with more subnets: one for requests, one with both families, one in another zone, and one of
// another VPC.
func newCity(t *testing.T, instanceType string) *world {
	t.Helper()
	return buildWorld(t, instanceType, ec2sim.World(`
		vpc-1       10.177.0.0/16 2001:db8:77::/56
		subnet-node 10.177.0.0/24
		subnet-pods 10.177.1.0/24 kubernetes_kubelet=true
		subnet-db   10.177.2.0/24
		subnet-both 10.177.3.0/24 2001:db8:77:3::/64
		subnet-far  10.177.4.0/24 us-east-1b
		vpc-2       10.178.0.0/16
		subnet-else 10.178.1.0/24`))
}

// allowAll is a configuration in which the namespace default may ask for nearly everything.
const allowAll = `{"interfaceIndex": 1, "secGroupIds": ["sg-1"], "subnetTags": {"kubernetes_kubelet": "true"}, "requests": [
	{"namespaces": ["default"], "subnets": ["subnet-db", "subnet-both", "subnet-far", "subnet-else"], "securityGroups": ["sg-2", "sg-3"],
		"enis": {"for": "pods"}, "ips": true, "max": 3}]}`

// policies returns the policies of a pod with this annotation.
func (w *world) policies(n int, config, annotation string) ([]lease.Policy, error) {
	w.Helper()
	var c lease.Config
	must(w, json.Unmarshal([]byte(config), &c))
	if annotation != "" {
		c.RuntimeConfig.Annotations = map[string]string{nic.Annotation: annotation}
	}
	must(w, c.Validate())
	return c.Interfaces("net", "eth0", pod(n).Pod)
}

// ask is the ADD of a pod with this annotation.
func (w *world) ask(n int, config, annotation string) (all []lease.Allocation, err error) {
	w.Helper()
	policies, err := w.policies(n, config, annotation)
	if err != nil {
		return nil, err
	}
	for i := range policies {
		policies[i].Timeout = 5 * time.Second
	}
	all = make([]lease.Allocation, len(policies))
	p := w.pool()
	take := func(ctx context.Context, q *lease.Pool, o lease.Owner) (bool, error) {
		a, err := New(*q, p.Cloud).Acquire(ctx, o)
		all[o.NIC] = a
		return a.Fresh, err
	}
	_, err = p.Each(w.Context(), pod(n), policies, take)
	return all, err
}

func (w *world) mustAsk(n int, annotation string) []lease.Allocation {
	w.Helper()
	all, err := w.ask(n, allowAll, annotation)
	if err != nil {
		w.Fatalf("%s: %v", annotation, err)
	}
	return all
}

// given creates an ENI for a pod, as an operator does.
func (w *world) given(spec aws.ENISpec) aws.ENI {
	w.Helper()
	if spec.Tags == nil {
		spec.Tags = map[string]string{"for": "pods", "owner": "team-a"}
	}
	e, err := aws.New(w.cloud).CreateENI(w.Context(), spec)
	must(w, err)
	return e
}

// TestRequestPool: a request for a subnet or for security groups makes a derived pool. Pods with the same request share
// the ENI of this pool, and no other pod gets an address of this ENI. In the end, a collection deletes the ENI.
func TestRequestPool(t *testing.T) {
	w := newCity(t, "m5.4xlarge")
	for i, ask := range []string{`[{"subnet": "subnet-db"}]`, `[{"subnet": "subnet-db"}]`,
		`[{"subnet": "subnet-db", "securityGroups": ["sg-3", "sg-2"]}]`, `[{"securityGroups": ["sg-2"]}]`, "", `[{}]`} {
		w.mustAsk(i, ask)
	}
	same := w.mustAsk(6, `[{"subnet": "subnet-db", "securityGroups": ["sg-2", "sg-3"]}]`)[0]
	var got []string
	for _, e := range w.EC2.ENIs()[1:] {
		got = append(got, fmt.Sprint(e.Tags[book.TagPool], " ", e.Subnet, " ", e.SecurityGroups, " ", len(e.Addrs)))
	}
	want := []string{"default/subnet-db subnet-db [sg-1] 2", "default/subnet-db/sg-2/sg-3 subnet-db [sg-2 sg-3] 2",
		"default/sg-2 subnet-pods [sg-2] 1", "default subnet-pods [sg-1] 2"}
	if !slices.Equal(got, want) {
		t.Errorf("ENIs %q, want %q", got, want)
	}
	if e := w.ENI(same.ID); e.Tags[book.TagPool] != "default/subnet-db/sg-2/sg-3" {
		t.Errorf("the pod is on %+v", e)
	}
	w.Lose() // after this loss, only the ENIs' tags name their pools
	must(t, w.pool().Learn(t.Context()))
	for i := range 7 {
		w.end(i)
	}
	w.Age(hour)
	for ask, pool := range map[string]string{`[{"subnet": "subnet-db"}]`: "default/subnet-db", "": "default"} {
		if e := w.ENI(w.mustAsk(8+len(ask), ask)[0].ID); e.Tags[book.TagPool] != pool {
			t.Errorf("%s: the pod is on an ENI of %s", ask, e.Tags[book.TagPool])
		}
	}
	w.consistent()
}

// TestRequestAddress: a pod gets the address for which it asks, in a subnet of its own choice or of its pool. The
// address is on an existing ENI or on a new one.
func TestRequestAddress(t *testing.T) {
	w := newCity(t, "m5.large")
	pods := w.mustAsk(0, "")[0]
	for i, tt := range []struct{ ask, want string }{
		{`[{"ip": "10.177.1.77"}]`, "10.177.1.77"},
		{`[{"subnet": "subnet-db", "ip": "10.177.2.88"}]`, "10.177.2.88"},
		{`[{"subnet": "subnet-db", "ip": "10.177.2.99"}]`, "10.177.2.99"},
	} {
		for range 2 { // a repeated ADD changes nothing
			a := w.mustAsk(i+1, tt.ask)[0]
			if got := a.Addrs[0].String(); got != tt.want || i == 0 && a.ID != pods.ID {
				t.Errorf("%s: got %s of %s", tt.ask, got, a.ID)
			}
		}
	}
	w.wantWrites(map[string]int{"CreateNetworkInterface": 2, "AttachNetworkInterface": 2,
		"ModifyNetworkInterfaceAttribute": 2, "AssignPrivateIpAddresses": 3})
	w.consistent()
}

// TestRequestAddressWhileOthersCool: a growth creates an ENI for a chosen address. The ENI has room for this address,
// although the growth also wants a reserve, because other addresses cool.
func TestRequestAddressWhileOthersCool(t *testing.T) {
	w := newCity(t, "m5.large")
	for i := range 10 { // as many as an ENI can have
		w.mustAsk(i, "")
	}
	for i := range 9 {
		w.end(i)
	}
	if a := w.mustAsk(10, `[{"ip": "10.177.1.77"}]`)[0]; a.Addrs[0].String() != "10.177.1.77" {
		t.Errorf("the pod has %v", a.Addrs)
	}
	w.consistent()
}

// TestRequestBothFamilies: a pod of two families chooses an address of one family, or of both.
func TestRequestBothFamilies(t *testing.T) {
	w := newCity(t, "m5.4xlarge")
	both := strings.Replace(allowAll, "{", `{"ipFamilies": ["IPv4", "IPv6"], `, 1)
	for i, ask := range []string{`[{"subnet": "subnet-both", "ip": "10.177.3.50"}]`,
		`[{"subnet": "subnet-both", "ip": "2001:db8:77:3::50"}]`} {
		all, err := w.ask(i, both, ask)
		must(t, err)
		chosen := strings.Split(ask, `"`)[7]
		if a := all[0].Addrs; len(a) != 2 || !slices.Contains(a, netip.MustParseAddr(chosen)) || !a[0].Is4() ||
			!a[1].Is6() {
			t.Errorf("%s: got %v", ask, a)
		}
	}
	w.consistent()
}

// TestRequestAgain: a pod that is created again gets its address at once. Another pod waits until the address has
// cooled.
func TestRequestAgain(t *testing.T) {
	w := newCity(t, "m5.large")
	const ask = `[{"ip": "10.177.1.77"}]`
	w.mustAsk(1, ask)
	_, err := w.ask(2, allowAll, ask)
	wantRefusal(t, err, "pod default/pod002 asks for the address 10.177.1.77, which default/pod001 has")
	w.end(1)
	_, err = w.ask(2, allowAll, ask)
	wantRefusal(t, err, "pod default/pod002 asks for the address 10.177.1.77, which has had no lease since ")
	for n := range 9 { // a pod that asks for nothing does not get the address, either
		a, err := w.ask(10+n, allowAll, "")
		must(t, err)
		if a[0].Addrs[0] == netip.MustParseAddr("10.177.1.77") {
			t.Error("a pod has the address that another one had asked for, and that cools")
		}
	}
	again := pod(1)
	again.ContainerID = "again" // the same pod in another sandbox
	policies, err := w.policies(1, allowAll, ask)
	must(t, err)
	p := w.pool()
	p.Policy = policies[0]
	a, err := p.Acquire(t.Context(), again)
	must(t, err)
	if a.Addrs[0] != netip.MustParseAddr("10.177.1.77") {
		t.Errorf("got %v", a.Addrs)
	}
	must(t, p.End(t.Context(), again.Key))
	w.Age(hour)
	w.mustAsk(2, ask)
	w.consistent()
}

// TestRequestChanges: an attachment still has a lease, and its next ADD asks for something else. The ADD fails, because
// the leased addresses do not fit the new request.
func TestRequestChanges(t *testing.T) {
	w := newCity(t, "m5.4xlarge")
	allow := strings.Replace(allowAll, `"ips": true`, `"ips": true, "exclusive": true`, 1)
	given := fmt.Sprintf(`[{"eni": %q}]`, w.given(aws.ENISpec{Subnet: "subnet-db", Secondary: 3}).ID)
	asks := []string{"", `[{"ip": "10.177.1.77"}]`, `[{"ip": "10.177.1.78"}]`, `[{"securityGroups": ["sg-2"]}]`,
		`[{"exclusive": true}]`, given}
	for n, first := range asks {
		had, err := w.ask(n, allow, first)
		must(t, err)
		for _, other := range asks {
			if other == first || other == "" && strings.Contains(first, "ip") {
				continue // the addresses that the pod has also fit this request
			}
			_, err := w.ask(n, allow, other)
			wantRefusal(t, err, fmt.Sprintf("pod default/pod%03d has %v of %s from an earlier ADD, and these "+
				"addresses do not fit the present request of the pod", n, had[0].Addrs, had[0].ID))
		}
		if again, err := w.ask(n, allow, first); err != nil || !slices.Equal(again[0].Addrs, had[0].Addrs) {
			t.Errorf("%q: it had %v, and has %v after the same ADD (%v)", first, had[0].Addrs, again[0].Addrs, err)
		}
		w.end(n)
	}
	w.consistent()
}

// TestRequestInterrupted: a process is killed while EC2 assigns the chosen address, or the answers are lost. The pod
// gets the address with its next ADD, and no other pod gets it before.
func TestRequestInterrupted(t *testing.T) {
	w := newCity(t, "m5.large")
	at := w.mustAsk(0, "")[0].ID
	const ask = `[{"ip": "10.177.1.77"}]`
	asked := netip.MustParseAddr("10.177.1.77")
	w.Edit(func(s *registry.State) {
		s.Intents["killed"] = registry.Intent{Action: "AssignPrivateIpAddresses", ENI: at, Since: time.Now(),
			Addr: asked,
			Pod:  registry.Pod{Network: "net", Namespace: "default", Name: pod(1).Pod.Name}}
	})
	w.Operate("AssignPrivateIpAddresses", "NetworkInterfaceId", at, "PrivateIpAddress.1", asked.String())
	_, err := w.ask(2, allowAll, ask)
	wantRefusal(t, err, "the address 10.177.1.77, which has had no lease since ")
	if a := w.mustAsk(1, ask)[0]; a.Addrs[0] != asked {
		t.Errorf("got %v", a.Addrs)
	}
	w.EC2.Script("AssignPrivateIpAddresses", ec2sim.DoneLost, ec2sim.UndoneLost, ec2sim.UndoneLost)
	w.mustAsk(3, `[{"ip": "10.177.1.88"}]`)
	w.consistent()
}

// TestRequestENI: a pod asks for an ENI that an operator has created. The node attaches the ENI for the first pod,
// detaches it after the last one, and changes nothing else of it.
func TestRequestENI(t *testing.T) {
	w := newCity(t, "m5.large")
	e := w.given(aws.ENISpec{Subnet: "subnet-db", SecurityGroups: []string{"sg-9"}, Secondary: 1})
	before := w.ENI(e.ID)
	ask := fmt.Sprintf(`[{"eni": %q}]`, e.ID)
	first, second := w.mustAsk(1, ask)[0], w.mustAsk(2, fmt.Sprintf(`[{"eni": %q, "ip": %q}]`, e.ID, e.Addrs[1]))[0]
	if first.ID != e.ID || second.ID != e.ID || second.Addrs[0] != e.Addrs[1] || first.Addrs[0] == second.Addrs[0] {
		t.Errorf("the pods have %+v and %+v", first, second)
	}
	_, err := w.ask(3, allowAll, ask)
	wantRefusal(t, err, "the pod asks for "+e.ID+
		", and no address of this ENI is free. The addresses are used by: pod default/pod001, pod default/pod002")
	// The creation is the test's own call.
	w.wantWrites(map[string]int{"CreateNetworkInterface": 1, "AttachNetworkInterface": 1})
	// no other pod gets an address of the ENI
	for n := range 10 {
		if a := w.mustAsk(10+n, "")[0]; a.ID == e.ID {
			t.Fatal("a pod has an address of the ENI without asking")
		}
	}
	w.end(1)
	w.Age(hour)
	w.collect()
	if w.ENI(e.ID).Instance == "" {
		t.Fatal("the ENI is detached, and a pod uses it")
	}
	w.end(2)
	w.Age(hour)
	w.collect()
	after := w.ENI(e.ID)
	if after.Instance != "" || !slices.Equal(after.Addrs, before.Addrs) ||
		fmt.Sprint(after.Tags) != fmt.Sprint(before.Tags) || !slices.Equal(after.SecurityGroups,
		before.SecurityGroups) {
		t.Errorf("the ENI was %+v\nand is   %+v", before, after)
	}
	if _, known := w.State().ENIs[e.ID]; known {
		t.Error("the registry still has the ENI")
	}
	w.mustAsk(4, ask)
	w.consistent()
}

// TestRequestENISoon: the node detaches an ENI as soon as its last pod has ended, even after a short time. The ENI
// stays while an ADD waits for it.
func TestRequestENISoon(t *testing.T) {
	w := newCity(t, "m5.large")
	e := w.given(aws.ENISpec{Subnet: "subnet-db"})
	first := w.mustAsk(1, fmt.Sprintf(`[{"eni": %q}]`, e.ID))[0]
	waits := registry.Waiter{Pool: "default/" + e.ID + "=10.177.2.9", Since: time.Now(),
		Until: time.Now().Add(time.Hour)}
	w.end(1)
	w.Edit(func(s *registry.State) { s.Waiters["net/other/eth0"] = waits })
	if done, err := w.pool().DetachUnused(t.Context()); err != nil || len(done) > 0 {
		t.Errorf("while an ADD waits for it: detached %v, %v", done, err)
	}
	w.Edit(func(s *registry.State) { clear(s.Waiters) })
	if done, err := w.pool().DetachUnused(t.Context()); err != nil || !slices.Equal(done, []string{first.ID}) ||
		w.ENI(e.ID).Instance != "" {
		t.Errorf("detached %v, %v, and EC2 has %+v", done, err, w.ENI(e.ID))
	}
}

// TestRequestENIWithoutEC2: EC2 does not answer when the node wants to detach an ENI. A pod that asks for the ENI now
// gets an address of it.
func TestRequestENIWithoutEC2(t *testing.T) {
	w := newCity(t, "m5.large")
	e := w.given(aws.ENISpec{Subnet: "subnet-db"})
	ask := fmt.Sprintf(`[{"eni": %q}]`, e.ID)
	w.mustAsk(1, ask)
	w.end(1)
	w.Age(hour)
	w.EC2.Fail("DescribeNetworkInterfaces", "Unavailable", always)
	if done, err := w.pool().DetachUnused(t.Context()); err == nil || len(done) > 0 {
		t.Fatalf("detached %v, %v", done, err)
	}
	if w.State().ENIs[e.ID].Draining {
		t.Fatal("no pod can have its addresses")
	}
	w.mustAsk(2, ask)
	w.end(2)
	w.EC2.Fail("DescribeNetworkInterfaces", "", 0)
	if done, err := w.pool().DetachUnused(t.Context()); err != nil || !slices.Equal(done, []string{e.ID}) {
		t.Errorf("detached %v, %v", done, err)
	}
}

// TestRequestENIKept: the owner of an ENI forbids changes of it. DetachUnused does not report the ENI as detached.
func TestRequestENIKept(t *testing.T) {
	w := newCity(t, "m5.large")
	e := w.given(aws.ENISpec{Subnet: "subnet-db"})
	w.mustAsk(1, fmt.Sprintf(`[{"eni": %q}]`, e.ID))
	w.end(1)
	w.Operate("CreateTags", "ResourceId.1", e.ID, "Tag.1.Key", book.TagNoManage, "Tag.1.Value", "true")
	if done, err := w.pool().DetachUnused(t.Context()); err != nil || len(done) > 0 || w.ENI(e.ID).Instance == "" {
		t.Errorf("detached %v, %v, and EC2 has %+v", done, err, w.ENI(e.ID))
	}
}

// TestRequestENIDetaching: a process that has begun to detach an ENI is killed. While EC2 is still detaching the ENI,
// no pod gets an address of it, and the next process waits.
func TestRequestENIDetaching(t *testing.T) {
	inSlowBubble(t, "m5.large", 2*time.Second, func(w *world, _ *wires) {
		// with this jitter, EC2 is still detaching the ENI after the last refusal
		w.cloud.Jitter = func(d time.Duration) time.Duration { return d / 4 }
		e := w.given(aws.ENISpec{Subnet: "subnet-node"})
		w.mustAsk(1, fmt.Sprintf(`[{"eni": %q}]`, e.ID))
		w.end(1)
		w.Edit(func(s *registry.State) { s.Edit(e.ID, (*registry.ENI).Drain) })
		must(w, w.byHand().DetachENI(w.Context(), w.ENI(e.ID).Attachment))
		w.EC2.Fail("DetachNetworkInterface", "RequestLimitExceeded", always)
		throttled, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if done, err := w.pool().DetachUnused(throttled); err == nil || !w.State().ENIs[e.ID].Draining {
			w.Errorf("detached %v, %v, and a pod can have its addresses", done, err)
		}
		w.EC2.Fail("DetachNetworkInterface", "", 0)
		done, err := w.pool().DetachUnused(w.Context())
		if err != nil || !slices.Equal(done, []string{e.ID}) || w.ENI(e.ID).Instance != "" {
			w.Errorf("detached %v, %v, EC2 has %+v, and the registry %+v", done, err, w.ENI(e.ID), w.State().ENIs[e.ID])
		}
	})
}

// TestRequestENILost: the registry is lost while a pod uses an ENI. The pod keeps the ENI, and no other pod gets it.
func TestRequestENILost(t *testing.T) {
	w := newCity(t, "m5.large")
	// this ENI would fit the pods' pool
	e := w.given(aws.ENISpec{Subnet: "subnet-pods", SecurityGroups: []string{"sg-1"}, Secondary: 5})
	ask := fmt.Sprintf(`[{"eni": %q}]`, e.ID)
	w.mustAsk(1, ask)
	w.Lose()
	for n := range 10 {
		if a := w.mustAsk(10+n, "")[0]; a.ID == e.ID {
			t.Fatal("a pod has an address of the ENI without asking")
		}
	}
	p := w.pool()
	policies, _ := w.policies(1, allowAll, "")
	p.Policy = policies[0]
	if err := p.Remove(t.Context(), e.ID); err == nil || w.ENI(e.ID).Instance == "" {
		t.Errorf("an operator's remove-interface: %v, and the ENI is %+v", err, w.ENI(e.ID))
	}
	must(t, w.pool().Learn(t.Context()))
	w.Age(hour)
	again := w.mustAsk(2, ask)[0]
	if again.ID != e.ID {
		t.Errorf("got %+v", again)
	}
	w.consistent()
}

// TestRequestRefused: a pod asks for something that it may not have, or cannot have. The ADD fails before any change in
// EC2. The error names the key, the wrong value, and the right one.
func TestRequestRefused(t *testing.T) {
	w := newCity(t, "m5.large")
	cloud := aws.New(w.cloud)
	other, err := w.EC2.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-db"})
	must(t, err)
	w.mustAsk(0, "")
	w.mustAsk(1, `[{"subnet": "subnet-db", "ip": "10.177.2.88"}]`)
	used := w.given(aws.ENISpec{Subnet: "subnet-db"})
	_, err = cloud.AttachENI(t.Context(), used.ID, other.ID, 0, 1)
	must(t, err)
	blocks := w.given(aws.ENISpec{Subnet: "subnet-db", Prefixes: 1})
	inBlock := blocks.Prefixes[0].Addr().Next()
	far := w.given(aws.ENISpec{Subnet: "subnet-far"})
	elsewhere := w.given(aws.ENISpec{Subnet: "subnet-else", SecurityGroups: []string{"sg-vpc2"}})
	bare := w.given(aws.ENISpec{Subnet: "subnet-db", Tags: map[string]string{"owner": "team-a"}})
	good := w.given(aws.ENISpec{Subnet: "subnet-db"})
	pools := w.mustAsk(2, "")[0].ID
	w.mustAsk(3, "")
	// One address must be free for the further interface of a pod that also asks for an ENI. Otherwise EC2 would assign
	// an address for this interface before the node checks the ENI.
	w.end(3)
	w.Age(hour)
	had := fmt.Sprint(w.EC2.ENIs())
	w.EC2.ResetCalls()
	for _, tt := range []struct{ ask, want string }{
		{`{`, "pod default/pod050: annotation cni-ipvlan-vpc-k8s/nics: the value is not the JSON that is expected"},
		{`[{"vpc": "vpc-1"}]`, `interface 1: "vpc": there is no such key`},
		{`[{"subnet": "subnet-1"}]`, "pod default/pod050 asks for something that the key \"requests\" does not allow " +
			"for the namespace default: interface 1: subnet: subnet-1: allowed are subnet-db, subnet-both, " +
			"subnet-far, subnet-else"},
		{`[{}, {"securityGroups": ["sg-2", "sg-4"]}]`, "interface 2: securityGroups: sg-4: allowed are sg-2, sg-3"},
		{`[{}, {}, {}, {}]`, `4 interfaces: "max" in "requests" is 3`},
		{`[{"exclusive": true}]`, `exclusive: true: "exclusive" in "requests" is not true`},
		{`[{"ip": "2001:db8:77:3::5"}]`,
			"ip: 2001:db8:77:3::5: pods of this network have no IPv6 addresses (ipFamilies)"},
		{`[{"ip": "10.177.9.9"}]`, "the pod asks for the address 10.177.9.9, which is in none of the subnets that " +
			"the pod can use: subnet-pods 10.177.1.0/24"},
		{`[{"subnet": "subnet-db", "ip": "10.177.1.9"}]`,
			"10.177.1.9, which is in none of the subnets that the pod can use: subnet-db 10.177.2.0/24"},
		{`[{"ip": "10.177.1.3"}]`,
			"the pod asks for the address 10.177.1.3, which AWS reserves in subnet-pods (10.177.1.0/24)"},
		{`[{"ip": "10.177.1.255"}]`, "10.177.1.255, which AWS reserves in subnet-pods"},
		{fmt.Sprintf(`[{"subnet": "subnet-db", "ip": %q}]`, used.Addrs[0]), "which " + used.ID +
			" has as its primary address. This ENI is attached to " + other.ID},
		{fmt.Sprintf(`[{"subnet": "subnet-db", "ip": %q}]`, inBlock), "which " + blocks.ID +
			" has in a prefix. This ENI is attached to nothing"},
		{`[{"subnet": "subnet-db", "ip": "10.177.2.88"}]`, "the address 10.177.2.88, which default/pod001 has"},
		{`[{"ip": "10.177.2.88"}]`, "the address 10.177.2.88, which default/pod001 has"},
		{`[{"subnet": "subnet-far"}]`, "the pod asks for the subnet subnet-far, which is not in the VPC and zone of " +
			"this node (vpc-1 in us-east-1a). The subnets there: subnet-both 10.177.3.0/24"},
		{`[{"subnet": "subnet-else"}]`, "the pod asks for the subnet subnet-else, which is not in the VPC and zone"},
		{`[{"eni": "eni-00000000000000fff"}]`, "the pod asks for eni-00000000000000fff, but EC2 knows no such ENI"},
		{fmt.Sprintf(`[{"eni": %q}]`, bare.ID), "but the key \"requests\" allows only ENIs with the tag for=pods"},
		{fmt.Sprintf(`[{"eni": %q}]`, used.ID), "but this ENI is attached to " + other.ID +
			", and this node is " + w.ID},
		{fmt.Sprintf(`[{"eni": %q}]`, far.ID), "but the subnet of this ENI, subnet-far, is not in us-east-1a, the " +
			"zone of this node"},
		{fmt.Sprintf(`[{"eni": %q}]`, elsewhere.ID), "but this ENI is in vpc-2, and this node is in vpc-1"},
		{fmt.Sprintf(`[{"eni": %q}]`, pools), "but the key \"requests\" allows only ENIs with the tag for=pods"},
		{fmt.Sprintf(`[{"eni": %q, "ip": "10.177.2.250"}]`, good.ID),
			"but this ENI does not have the address 10.177.2.250"},
		{`[{}, {"ip": "10.177.1.3"}]`,
			"interface 2: no address is free: the pod asks for the address 10.177.1.3, which AWS reserves"},
		{fmt.Sprintf(`[{}, {"eni": %q}]`, bare.ID), "interface 2: no address is free: the pod asks for " + bare.ID +
			", but the key \"requests\" allows only ENIs with the tag for=pods"},
		{`[{}, {"subnet": "subnet-db", "ip": "10.177.2.88"}]`,
			"interface 2: pod default/pod050 asks for the address 10.177.2.88, which default/pod001 has"},
		{`[{"securityGroups": ["sg-2"]}, {"securityGroups": ["sg-3"]}]`,
			"pod default/pod050 asks for 2 interfaces, which need 2 more ENIs: m5.large can have 3 ENIs, and " +
				"this node has 3"},
		// an m5.large has 3 ENIs
		{fmt.Sprintf(`[{"eni": %q}]`, good.ID), "attach " + good.ID + ", for which the pod asks: instance is full"},
	} {
		_, err := w.ask(50, allowAll, tt.ask)
		wantRefusal(t, err, tt.want)
	}
	_, err = w.ask(50, strings.Replace(allowAll, `"default"`, `"vm-*"`, 1), `[{"subnet": "subnet-db"}]`)
	wantRefusal(t, err,
		`pod default/pod050 asks for interfaces, and the key "requests" does not allow the namespace "default" to ask`)
	_, err = w.ask(50, strings.Replace(allowAll, `"requests"`, `"x"`, 1), `[{"subnet": "subnet-db"}]`)
	wantRefusal(t, err, `"requests" does not allow the namespace "default" to ask`)
	w.wantWrites(map[string]int{})
	if now := fmt.Sprint(w.EC2.ENIs()); now != had {
		t.Errorf("ENIs were %s\nand are %s", had, now)
	}
	if s := w.State(); len(s.Intents) > 0 || len(s.Waiters) > 0 {
		t.Errorf("intents %v, waiters %v", s.Intents, s.Waiters)
	}
	w.consistent()
}

// TestRequestMax: max limits all ADDs of a pod together; with Multus, a pod has several. An ADD without a request, or a
// repeated ADD, is never refused. If several entries allow a request, the largest max counts.
func TestRequestMax(t *testing.T) {
	w := newCity(t, "m5.4xlarge")
	entries := strings.Replace(allowAll, `"requests": [`,
		`"requests": [{"namespaces": ["*"], "subnets": ["subnet-db"], "ips": true, "max": 2}, `, 1)
	add := func(n int, ifName, asked string) error {
		w.Helper()
		var c lease.Config
		must(t, json.Unmarshal([]byte(entries), &c))
		if c.Args.CNI = json.RawMessage(asked); ifName == "eth0" {
			c.Args.CNI, c.RuntimeConfig.Annotations = nil, map[string]string{nic.Annotation: asked}
		}
		must(t, c.Validate())
		policies, err := c.Interfaces("net", ifName, pod(n).Pod)
		if err != nil {
			return err
		}
		p, o := w.pool(), pod(n)
		o.IfName = ifName
		take := func(ctx context.Context, q *lease.Pool, o lease.Owner) (bool, error) {
			a, err := New(*q, p.Cloud).Acquire(ctx, o)
			return a.Fresh, err
		}
		_, err = p.Each(t.Context(), o, policies, take)
		return err
	}
	const db = `{"subnet": "subnet-db"}`
	must(t, add(1, "eth0", `[{}, `+db+`]`))
	for range 2 {
		must(t, add(1, "net1", db))
	}
	had := fmt.Sprint(w.EC2.ENIs())
	for _, again := range []string{db, `{"ips": ["10.177.2.99"]}`} {
		wantRefusal(t, add(1, "net2", again),
			`pod default/pod001 asks for interface net2, and would then have 4 interfaces: "max" in "requests" is 3`)
	}
	if now := fmt.Sprint(w.EC2.ENIs()); now != had {
		t.Errorf("ENIs were %s\nand are %s", had, now)
	}
	must(t, add(1, "net3", `{}`))
	must(t, add(2, "net2", db)) // of another pod
	key := pod(1).Key
	for _, name := range []string{"net1", "net3"} {
		key.IfName = name
		must(t, w.pool().End(t.Context(), key))
	}
	must(t, add(1, "net2", db))
	wantRefusal(t, add(3, "eth0", `[{}, {}, {}, {}]`), `4 interfaces: "max" in "requests" is `)
	w.consistent()
}

// TestRequestEntries: each entry of requests allows the ENIs that have the entry's tags.
func TestRequestEntries(t *testing.T) {
	w := newCity(t, "m5.4xlarge")
	entries := strings.Replace(allowAll, `"requests": [`,
		`"requests": [{"namespaces": ["def*"], "enis": {"for": "databases", "team": "a"}}, {"namespaces": ["other"], `+
			`"enis": {"for": "others"}}, `, 1)
	for n, tags := range []map[string]string{{"for": "databases", "team": "a"}, {"for": "pods"}} {
		e := w.given(aws.ENISpec{Subnet: "subnet-db", Tags: tags})
		all, err := w.ask(n, entries, fmt.Sprintf(`[{"eni": %q}]`, e.ID))
		if err != nil || all[0].ID != e.ID {
			t.Errorf("an ENI with the tags %v: %+v, %v", tags, all, err)
		}
	}
	for n, tags := range []map[string]string{{"for": "databases", "team": "b"}, {"for": "others"}} {
		e := w.given(aws.ENISpec{Subnet: "subnet-db", Tags: tags})
		_, err := w.ask(9+n, entries, fmt.Sprintf(`[{"eni": %q}]`, e.ID))
		wantRefusal(t, err, "but the key \"requests\" allows only ENIs with the tag for=databases, team=a, or for=pods")
	}
}

func wantRefusal(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v\nwant %s", err, text)
	}
	if e, ok := errors.AsType[*plugin.Error](err); !ok || e.Hint == "" {
		t.Errorf("%v: no hint", err)
	}
}

// TestRequestENILostAnswer: the answer to the attachment of an ENI for a pod is lost. The repeated ADD gets an address,
// even before metadata shows the ENI, because no pod of this node has had one of its addresses.
func TestRequestENILostAnswer(t *testing.T) {
	for _, shown := range []bool{true, false} {
		w := newCity(t, "m5.large")
		w.mustAsk(0, "")
		e := w.given(aws.ENISpec{Subnet: "subnet-db"})
		if !shown {
			w.Lie(ec2sim.ForgetENI(e.ID))
		}
		w.EC2.Script("AttachNetworkInterface", ec2sim.DoneLost)
		all, err := w.ask(1, allowAll, fmt.Sprintf(`[{"eni": %q}]`, e.ID))
		if err != nil || all[0].ID != e.ID {
			t.Errorf("shown by metadata %v: %v", shown, err)
		}
		if s := w.State(); len(s.Intents) > 0 {
			t.Errorf("left over: %v", s.Intents)
		}
		w.consistent()
	}
}

// TestRequestAllocate: an operator allocates addresses for the next pods. EC2 assigns them to no ENI that an operator
// has created, and to no ENI whose link is in a pod.
func TestRequestAllocate(t *testing.T) {
	w := newCity(t, "m5.xlarge")
	e := w.given(aws.ENISpec{Subnet: "subnet-db"})
	w.mustAsk(0, fmt.Sprintf(`[{"eni": %q}]`, e.ID))
	whole, err := w.ask(1, strings.Replace(allowAll, `"ips": true`, `"exclusive": true`, 1), `[{"exclusive": true}]`)
	must(t, err)
	want := w.mustAsk(2, "")[0].ID
	p := w.pool()
	p.Policy = lease.Policy{MinIndex: 1}
	if id, got, err := p.Allocate(t.Context(), 1); err != nil || id != want {
		t.Errorf("%v on %s, want %s: %s is on request, and a pod has %s: %v", got, id, want, e.ID, whole[0].ID, err)
	}
}

// TestRequestPutBack: a pod is created again, and its ADD leases the pod's cooling address, but then fails for another
// reason. The address still cools for all other pods. The pod that has chosen it gets it with the pod's next ADD.
func TestRequestPutBack(t *testing.T) {
	w := newCity(t, "m5.large")
	asked := netip.MustParseAddr("10.177.1.77")
	const alone, two = `[{"ip": "10.177.1.77"}]`, `[{"ip": "10.177.1.77"}, {"subnet": "subnet-db"}]`
	w.mustAsk(0, "") // has the primary address
	w.mustAsk(1, alone)
	w.end(1) // its address cools
	w.EC2.Fail("CreateNetworkInterface", "UnauthorizedOperation", 1)
	if _, err := w.ask(1, allowAll, two); err == nil {
		t.Fatal("no error")
	}
	w.end(1) // as runtimes do
	if a := w.mustAsk(2, "")[0].Addrs[0]; a == asked {
		t.Errorf("a pod that asks for nothing gets %v, which was a pod's a moment ago", a)
	}
	w.Forgive()
	if all, err := w.ask(1, allowAll, two); err != nil || all[0].Addrs[0] != asked {
		t.Errorf("the pod that had it: %v, %v", all, err)
	}
	w.consistent()
}

// TestRequestInTurn: EC2 has assigned a chosen address. Before the pod's ADD leases this address, an ADD of another pod
// looks for a free address. This other ADD does not get the chosen address.
func TestRequestInTurn(t *testing.T) {
	w := newCity(t, "m5.large")
	asked := netip.MustParseAddr("10.177.1.77")
	w.mustAsk(0, "")
	policies, err := w.policies(1, allowAll, `[{"ip": "10.177.1.77"}]`)
	must(t, err)
	p := w.pool()
	p.Policy = policies[0]
	if _, err := p.Take(t.Context(), pod(1)); !lease.IsNone(err) { // the ADD becomes a waiter
		t.Fatal(err)
	}
	must(t, p.growPool(t.Context()))
	if a := w.mustAsk(2, "")[0].Addrs[0]; a == asked {
		t.Errorf("a pod that asks for nothing gets %v, which EC2 was asked for on behalf of another", a)
	}
	if a, err := p.Take(t.Context(), pod(1)); err != nil || a.Addrs[0] != asked {
		t.Errorf("the pod that asks for %v: %v, %v", asked, a.Addrs, err)
	}
	w.consistent()
}

// TestRequestWithdrawn: a collection is killed before it asks EC2 to unassign an address. The pod that asks for the
// address gets an error that says why it must wait, and gets the address when it has cooled. Metadata may lag for
// minutes, but EC2 does not.
func TestRequestWithdrawn(t *testing.T) {
	w := newCity(t, "m5.large")
	const ask = `[{"ip": "10.177.1.77"}]`
	asked := netip.MustParseAddr("10.177.1.77")
	w.mustAsk(0, "")
	w.mustAsk(1, ask)
	w.end(1)
	w.Age(hour)
	w.Edit(func(s *registry.State) { // as a collection does before it is killed
		id, _ := s.ENIOf(asked)
		book.Withdraw(s, id, book.Releasable{Addrs: map[netip.Addr]time.Time{asked: {}}})
	})
	w.Age(time.Minute) // EC2 has shown all changes by now
	policies, err := w.policies(1, allowAll, ask)
	must(t, err)
	p := w.pool()
	p.Policy = policies[0]
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	began := time.Now()
	_, err = p.Acquire(ctx, pod(1))
	t.Logf("after %v, %d calls: %v", time.Since(began), len(w.EC2.Calls()), err)
	wantRefusal(t, err, "asks for the address 10.177.1.77, which has had no lease since ")
	w.Age(time.Minute)
	if a, err := p.Acquire(ctx, pod(1)); err != nil || a.Addrs[0] != asked {
		t.Errorf("%v, %v", a.Addrs, err)
	}
	w.consistent()
}

// TestRequestENILast: the subnet for the second interface is full, and the runtime repeats the ADD. The node does not
// attach and detach the chosen ENI of the first interface each time.
func TestRequestENILast(t *testing.T) {
	w := newCity(t, "m5.large")
	given := w.given(aws.ENISpec{Subnet: "subnet-db", SecurityGroups: []string{"sg-x"}})
	ask := fmt.Sprintf(`[{"eni": %q}, {}]`, given.ID)
	w.EC2.ResetCalls()
	w.EC2.Script("CreateNetworkInterface", slices.Repeat([]ec2sim.Outcome{noRoom}, 50)...)
	for range 2 {
		_, err := w.ask(1, allowAll, ask)
		wantRefusal(t, err, "interface 2: no address is free")
		must(t, w.pool().End(t.Context(), pod(1).Key))
		_, err = w.pool().DetachUnused(t.Context())
		must(t, err)
	}
	w.wantWrites(map[string]int{})

	w.EC2.Script("CreateNetworkInterface")
	w.Lose() // without this, the node would ask EC2 again only in some seconds
	all := w.mustAsk(1, ask)
	if all[0].ID != given.ID || all[0].Addrs[0] != given.Addrs[0] || all[1].ID == given.ID {
		t.Errorf("got %+v", all)
	}
	w.consistent()
}

// TestRequestLostBetween: the registry is lost after the pod has got its first interface. The ADD fails, because
// otherwise another pod would get the address of the first interface.
func TestRequestLostBetween(t *testing.T) {
	w := newCity(t, "m5.large")
	policies, err := w.policies(1, allowAll, `[{}, {}]`)
	must(t, err)
	p := w.pool()
	take := func(ctx context.Context, q *lease.Pool, o lease.Owner) (bool, error) {
		a, err := New(*q, p.Cloud).Acquire(ctx, o)
		if o.NIC == 0 {
			w.Lose()
		}
		return a.Fresh, err
	}
	_, err = p.Each(t.Context(), pod(1), policies, take)
	wantRefusal(t, err, "the registry was lost while the pod got its 2 interfaces: interface 1 has no address any more")
	if n := w.State().Leases.Len(); n > 0 {
		t.Errorf("%d leases are left", n)
	}
	if _, err := w.ask(1, allowAll, `[{}, {}]`); err != nil {
		t.Errorf("once more: %v", err)
	}
	w.consistent()
}

// TestChosenNone: a network of the node must change nothing in EC2, so no process releases a chosen address. When its
// pod has ended for some time, each pod of the pool can get the address. The address is no longer marked for release.
func TestChosenNone(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		a := w.mustAsk(1, `[{"ip": "10.177.16.77"}]`)[0].Addrs[0]
		w.end(1)
		if !lease.AnyToRelease(w.State()) {
			w.Error("the DEL has not marked the address")
		}
		for range 3 {
			time.Sleep(6 * time.Minute)
			w.collectBoth(lease.ProvisionNone)
		}
		if s := w.State(); lease.AnyToRelease(s) || !s.Free.Has(a) {
			w.Errorf("%s is free: %v; owners %v", a, s.Free.Has(a), s.Owners)
		}
		w.mustAcquire(2) // has the primary address of the ENI
		if is := w.mustAcquire(3); is != a {
			w.Errorf("the next pod has %s, want %s", is, a)
		}
		w.consistent()
	})
}
