// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// refusalLatency is how long EC2 takes to refuse a throttled call.
const refusalLatency = 50 * time.Millisecond

// A ledger counts the calls of all nodes of an account.
type ledger struct {
	mu      sync.Mutex
	made    map[string]int // key: an action; value: number of calls that EC2 did not throttle
	refused map[string]int // key: an action; value: number of throttled calls
}

func newLedger() *ledger { return &ledger{made: map[string]int{}, refused: map[string]int{}} }

func (l *ledger) note(action string, throttled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if throttled {
		l.refused[action]++
	} else {
		l.made[action]++
	}
}

func (l *ledger) cut() (made, refused map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	made, refused = l.made, l.refused
	l.made, l.refused = map[string]int{}, map[string]int{}
	return made, refused
}

// A place is the place of a node in the fleet. It gives the node times of its own: no two nodes call EC2 at the same
// nanosecond. So no result depends on the order of goroutines.
type place struct {
	index int
	seed  uint64
	mu    sync.Mutex
	rng   *rand.Rand
	calls map[string]*place // the key is an action
}

func newPlace(seed uint64, index int) *place {
	return &place{index: index, seed: seed, rng: rand.New(rand.NewPCG(seed, uint64(index))), calls: map[string]*place{}}
}

// jitter returns a random duration of less than d.
func (p *place) jitter(d time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.rng.Int64N(int64(d)))
}

// of returns a place for the node's calls of an action. This place has random times of its own, because a node may make
// several calls at once.
func (p *place) of(action string) *place {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, known := p.calls[action]
	if !known {
		h := fnv.New64a()
		io.WriteString(h, action)
		at = newPlace(p.seed^h.Sum64(), p.index)
		p.calls[action] = at
	}
	return at
}

// about returns a random duration between 3/4 and 5/4 of d.
func (p *place) about(d time.Duration) time.Duration { return d*3/4 + p.jitter(d/2) }

// slots is the number of places. A fleet must have fewer nodes.
const slots = 1 << 13

// sleep sleeps for about d. It returns at a nanosecond that belongs to this node alone.
func (p *place) sleep(d time.Duration) {
	d = p.about(d)
	late := (time.Now().Add(d).UnixNano() - int64(p.index)) % slots
	time.Sleep(d + time.Duration(slots-late))
}

// A region simulates EC2 for the nodes that run the real code.
type region struct {
	*ledger
	sim   *ec2sim.Sim
	mu    sync.Mutex
	hosts map[string]*host                     // the key is the ID of an instance
	watch func(action string, began time.Time) // called after each answer; may be nil
}

// instanceType has 8 CPUs. It can have three ENIs for pods, with 15 addresses each.
const instanceType = "m5.2xlarge"

// podSubnets is the number of subnets for pods. They have enough addresses for 2000 nodes with 64 addresses each.
const podSubnets = 3

func newRegion(open func(instance string) *host) (*region, error) {
	text := "vpc-1 10.0.0.0/16 100.64.0.0/16 100.65.0.0/16 100.66.0.0/16\nsubnet-nodes 10.0.0.0/16"
	for i := range podSubnets {
		text += fmt.Sprintf("\n%s 100.%d.0.0/16 kubernetes_kubelet=true", podSubnet(i), 64+i)
	}
	c := ec2sim.World(text)
	c.Throttle = true
	sim, err := ec2sim.New(c)
	if err != nil {
		return nil, err
	}
	r := &region{ledger: newLedger(), sim: sim, hosts: map[string]*host{}}
	sim.OnChange(func(c ec2sim.Change) {
		r.mu.Lock()
		h := r.hosts[c.Instance]
		if h == nil {
			h = open(c.Instance)
			r.hosts[c.Instance] = h
		}
		r.mu.Unlock()
		h.plug(c)
	})
	return r, nil
}

// hostOf returns the host of an instance. The host exists after EC2 has attached the boot ENI.
func (r *region) hostOf(instance string) *host {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hosts[instance]
}

// throttle makes EC2 refuse all calls of the nodes, as if other clients of the account took all tokens.
func (r *region) throttle(on bool) {
	n := 0
	if on {
		n = -1
	}
	for _, action := range []string{
		"AssignPrivateIpAddresses", "UnassignPrivateIpAddresses", "CreateNetworkInterface", "AttachNetworkInterface",
		"ModifyNetworkInterfaceAttribute",
		"DetachNetworkInterface", "DeleteNetworkInterface", "DescribeNetworkInterfaces", "DescribeSubnets",
		"DescribeInstanceTypes", "DescribeVpcs",
	} {
		r.sim.Fail(action, "RequestLimitExceeded", n)
	}
}

var subnetTags = map[string]string{"kubernetes_kubelet": "true"}

func podSubnet(i int) string { return fmt.Sprintf("subnet-pods%d", i) }

// A wire carries the requests of one node to the simulated EC2 and metadata.
type wire struct {
	*region
	*place
	instance *ec2sim.Instance
}

// Do sends a request, and returns the answer after a simulated latency.
func (w *wire) Do(r *http.Request) (*http.Response, error) {
	if r.URL.Host == "imds" {
		return answer(w.instance.Metadata(), r), r.Context().Err()
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, err
	}
	action, began := form.Get("Action"), time.Now()
	at := w.of(action)
	at.sleep(refusalLatency / 2)
	resp := answer(w.sim, r)
	throttled := resp.StatusCode == http.StatusServiceUnavailable
	w.note(action, throttled)
	at.sleep(latency(action, throttled) - refusalLatency/2)
	if w.watch != nil {
		w.watch(action, began)
	}
	return resp, r.Context().Err()
}

func latency(action string, throttled bool) time.Duration {
	if throttled {
		return refusalLatency
	}
	return ec2sim.Latency(action)
}

func answer(h http.Handler, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func sum(counts map[string]int) (n int) {
	for c := range maps.Values(counts) {
		n += c
	}
	return n
}
