// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

var (
	histories  = flag.Int("histories", 0, "how many random histories TestModel tries; 0: 300")
	mostFailed = flag.Int("most", 5, "how many histories may fail until TestModel plays no more")
	firstSeed  = flag.Int("seed", 0, "the seed of the first of them")
)

// TestModel plays random histories of a node against a model that knows which pod has which address. In a synctest
// bubble, hours take no time. The processes call EC2 without a socket. A history comes from its seed:
//
//	go test ./ipam -run TestModel/seed=123
//
// The seed decides the events, but not the order of Go's maps or the jitter of a backoff. A history that fails seldom
// needs -count=50.
func TestModel(t *testing.T) {
	n := *histories
	if n == 0 {
		n = 300
		if testing.Short() {
			n = 100
		}
	}
	first := *firstSeed
	if m := regexp.MustCompile(`/\^?seed=(\d+)`).FindStringSubmatch(flag.Lookup("test.run").Value.String()); m != nil {
		first, _ = strconv.Atoi(m[1])
		n = 1
	}
	simtest.Credentials(t)
	playAll(t, first, n, runtime.GOMAXPROCS(0), oneKernel, history)
}

// playAll plays n histories, up to atOnce of them at the same time. Histories that run at the same time have different
// kernels. After a few failures, playAll stops.
func playAll[K any](
	t *testing.T, first, n, atOnce int, kernels func(*testing.T) K, history func(t *testing.T, k K, seed uint64),
) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a history makes much garbage, and ends soon
	var players sync.WaitGroup
	var played, failed atomic.Int32
	for range min(n, atOnce) {
		k := kernels(t)
		players.Go(func() {
			for int(failed.Load()) < *mostFailed {
				i := int(played.Add(1)) - 1
				if i >= n {
					return
				}
				if i > 0 && i%1000 == 0 {
					fmt.Fprintf(os.Stderr, "%d of %d histories, %d failed\n", i, n, failed.Load())
				}
				name := fmt.Sprintf("seed=%d", first+i)
				if !t.Run(name, func(t *testing.T) { history(t, k, uint64(first+i)) }) {
					failed.Add(1)
					// This is printed at once. The test framework prints a subtest only when the whole test has ended.
					fmt.Fprintf(os.Stderr, "%s FAILS; again: go test ./ipam -run '%s$/^%s$'\n", name, t.Name(), name)
				}
			}
		})
	}
	players.Wait()
}

// oneKernel makes the kernel for histories of one node.
func oneKernel(t *testing.T) *kernel { return newKernel(t, 9) }

// forever is longer than any machine needs for a history, which takes a twentieth of a second.
const forever = 5 * time.Minute

// history plays the history of a seed.
func history(t *testing.T, k *kernel, seed uint64) {
	dir := filepath.Join(simtest.Memory(t), "state")
	var m *model
	hang := time.AfterFunc(forever, func() {
		panic(fmt.Sprintf("seed=%d neither ends nor waits:\n%s", seed, strings.Join(m.log, "\n")))
	})
	defer hang.Stop()
	synctest.Test(t, func(t *testing.T) {
		defer k.end(t)
		m = newModel(t, k, dir, seed, false)
		m.multus = seed%4 >= 2
		m.operated = seed%2 == 1
		m.others()
		switch seed % 3 {
		case 0:
			m.requests()
		case 1:
			m.networks()
		}
		m.play()
	})
}

// A model is a node, and what must be true of it.
type model struct {
	*simtest.Node
	kernel   *kernel
	rng      *rand.Rand
	policies []lease.Policy
	nets     []network // of each policy
	changes  bool      // an operator changes the conflists
	multus   bool      // a pod may have two attachments
	began    time.Time
	steps    int
	atOnce   bool // processes run at once, in real time

	pods      []*modelPod // all pods of the history, except those before a reboot
	count     int
	added     time.Time // when the last ADD has begun
	damaged   bool      // the registry may not parse
	rebuilt   bool      // the registry was lost once
	lostAt    time.Time // when the registry was last lost
	lies      []func()  // functions that make the metadata service stop its lies
	refusals  []func()  // functions that end refusals of EC2
	depth     int       // how many processes wait for EC2 while another process acts
	bad       []string  // what turned out not to be true
	log       []string
	refused   int // calls that EC2 has refused, or whose answers were lost
	sent      int // how many calls the last process has made to EC2 and metadata
	limits    ec2sim.InstanceType
	primaries map[string]netip.Addr // the primary address of each ENI

	denied    []string        // actions that the role may not call: a process that calls one is wrong
	tagless   bool            // the role may not call CreateTags
	provision lease.Provision // the value that collections find in the configuration

	second *ec2sim.Instance         // another node; nil: none
	guest  string                   // an ENI on the node that its owner has tagged no_manage
	theirs map[string]ec2sim.ENI    // ENIs of others, as their owners have left them
	taken  map[netip.Addr]time.Time // what an operator has taken from the node, and when, until the node can know
	away   map[string]time.Time     // ENIs that an operator has detached, and when, until the node can know
	lost   []taken
	ended  map[netip.Addr]ending // the end of the last pod that had the address

	conf   *lease.Config         // of histories in which pods ask for their interfaces
	common lease.Policy          // the policy that collections find in conf
	given  map[string]ec2sim.ENI // ENIs for which pods ask, as an operator has made them

	keeps   bool // no operator removes the registry or sets the clock while a process waits
	meddled bool // an operator or a clock has changed what the node knows

	operated bool                // operators make ENIs by new-interface
	commands []*command          // commands that operators have typed
	answers  map[string]sighting // the ENIs with which a command has answered
	moved    map[string]bool     // the ENIs that an operator has ever detached
	losses   int                 // how often the registry was lost, or its times have changed
	quiet    bool                // nothing interrupts a command any more

	cut   bool   // the node has no way to EC2
	calm  bool   // nothing interrupts a process
	other func() // plays what happens while a process waits, in histories of two nodes; nil: in others

	mixed     bool                // one network may make fewer changes in EC2 than another one
	noBoot    bool                // the node does not boot
	begunAt   map[string]sighting // the ENIs that a process has begun to make
	abandoned map[string]bool     // ENIs that no process may finish any more, because their intents have ended

	stays    map[string]time.Time // since when EC2 refuses to set an ENI's DeleteOnTermination
	outlives map[string]bool      // the ENIs for which EC2 refused this so long that no process tries again
}

// A modelPod is what the runtime knows of a pod, or of a further attachment of it.
type modelPod struct {
	lease.Owner
	policy    int            // the index of the pod's policy in model.policies
	asked     []lease.Policy // the policies of its interfaces, by the conflist at the pod's creation
	asks      bool           // the pod has asked for these interfaces
	addrs     []netip.Addr   // the result of the ADD, with the addresses of the first interface first
	alive     bool           // the ADD has answered, and no DEL has begun
	valid     bool           // the runtime knows the pod
	original  bool           // a pod of the original plugin: no ADD of ours has made it
	forgot    bool           // the registry was lost since the ADD
	robbed    bool           // an operator has taken its address from the node
	overtaken bool           // its leases had ended before the ADD added its addresses to the kernel
	busy      bool           // an ADD is under way: the runtime does nothing else to it
}

func (m *model) chance(percent int) bool { return m.rng.IntN(100) < percent }

func newModel(t *testing.T, k *kernel, dir string, seed uint64, atOnce bool) *model {
	m := &model{Node: k.of(t, dir), atOnce: atOnce, kernel: k, rng: rand.New(rand.NewPCG(seed, 1)), began: time.Now(),
		primaries: map[string]netip.Addr{},
		theirs:    map[string]ec2sim.ENI{}, taken: map[netip.Addr]time.Time{}, away: map[string]time.Time{},
		given: map[string]ec2sim.ENI{}, answers: map[string]sighting{}, moved: map[string]bool{},
		stays: map[string]time.Time{}, outlives: map[string]bool{}, begunAt: map[string]sighting{},
		abandoned: map[string]bool{}, ended: map[netip.Addr]ending{}}
	k.carrier = m.carrier
	k.adversary.begin(t, seed)
	m.limits = ec2sim.InstanceType{Name: "model.small", ENIs: 2 + m.rng.IntN(3), IPv4PerENI: 2 + m.rng.IntN(4),
		IPv6PerENI: 1 + m.rng.IntN(4)}
	if seed%7 >= 5 {
		m.giveCards()
	}
	c := m.config()
	if m.tagless = seed%22 == 10; m.tagless {
		c.Denied = []string{"CreateTags"}
	}
	m.EC2 = simtest.Sim(t, c)
	m.EC2.OnChange(m.plug)
	run := ec2sim.RunInstance{Type: m.limits.Name, Subnet: "subnet-node"}
	if seed%5 == 4 && m.limits.ENIs > 2 { // the slot at index 0 stays empty, and counts nevertheless
		run.BootIndex = 1
	}
	if m.limits.Cards != nil {
		m.chooseCards(&run)
	}
	var err error
	m.Instance, err = m.EC2.RunInstance(run)
	must(t, err)
	m.spareEFA()
	m.choosePolicies()
	m.steps = 4 + m.rng.IntN(14)
	m.logf("boot ENI at %d.%d, %+v, lag %+v, throttle %v, delays %v %v %v", run.BootCard, run.BootIndex, m.limits,
		c.Lag, c.Throttle, c.MetadataDelay, c.AttachDelay, c.DetachDelay)
	for i := range m.policies {
		m.logf("%s", m.conflist(i))
	}
	return m
}

// plug gives the node the link of an ENI when EC2 attaches the ENI, and removes it when EC2 detaches the ENI.
func (m *model) plug(c ec2sim.Change) {
	switch ours := m.Instance == nil || c.Instance == m.ID; {
	case c.ENI.EFAOnly: // such an ENI has no link
	case ours && c.Kind == ec2sim.Attached:
		m.kernel.plug(m, c.ENI)
	case ours && c.Kind == ec2sim.Detached:
		m.kernel.unplug(m, c.ENI.ID)
		m.kernel.slavesGo(m, func(a netip.Addr) bool { return carriesAddr(c.ENI, a) })
		if _, given := m.given[c.ENI.ID]; given { // when the ENI is attached again, its addresses need not cool
			maps.DeleteFunc(m.ended, func(a netip.Addr, _ ending) bool { return carriesAddr(c.ENI, a) })
		}
	}
}

// config returns the configuration of a history's EC2.
func (m *model) config() ec2sim.Config {
	c := ec2sim.Config{
		InstanceTypes: []ec2sim.InstanceType{m.limits},
		MetadataDelay: pick(m.rng, 0, 0, 2*time.Second, 90*time.Second),
		AttachDelay:   pick(m.rng, 0, 0, 2*time.Second),
		DetachDelay:   pick(m.rng, 0, 0, 3*time.Second),
	}
	text := "vpc-1 10.178.0.0/16 100.78.0.0/16 2001:db8:78::/56\nsubnet-node 10.178.0.0/24 2001:db8:78::/64"
	for i := range 1 + m.rng.IntN(2) {
		text += fmt.Sprintf("\nsubnet-pod%d 100.78.%[1]d.0/%d 2001:db8:78:%[3]x::/64 for=pods", i,
			pick(m.rng, 24, 24, 27, 28), i+1)
	}
	vpc := ec2sim.World(text)
	c.VPCs, c.Subnets = vpc.VPCs, vpc.Subnets
	if m.atOnce {
		c.MetadataDelay, c.AttachDelay, c.DetachDelay = 0, 0, 0
		return c
	}
	if m.chance(30) {
		c.Lag = ec2sim.Lag{Most: 5 * time.Second, Back: m.rng.IntN(4), Seed: m.rng.Uint64()}
	}
	if m.chance(15) {
		c.Throttle, c.Buckets = true, map[string]ec2sim.Bucket{}
		for _, action := range writes {
			c.Buckets[action] = ec2sim.Bucket{Size: 3, Refill: 1}
		}
	}
	return c
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func (m *model) choosePolicies() {
	families := pick(m.rng, []lease.Family{lease.IPv4}, []lease.Family{lease.IPv4}, []lease.Family{lease.IPv4},
		[]lease.Family{lease.IPv4, lease.IPv6}, []lease.Family{lease.IPv6})
	base := lease.Policy{
		MinIndex: pick(m.rng, 1, 1, 1, 0), Families: families, SubnetTags: map[string]string{"for": "pods"},
		Provision: lease.ProvisionFull,
		ReuseWait: pick(m.rng, time.Minute, time.Minute, time.Minute, 10*time.Minute), Timeout: 10 * time.Second,
	}
	pools := []string{""}
	if m.chance(25) {
		base.Pools, pools = true, []string{"", "b"}
	}
	for _, name := range pools {
		p := base
		p.Pool, p.Batch, p.Prefixes, p.Keep = name, pick(m.rng, 1, 1, 3, 0), m.chance(30), m.chance(5)
		p.Warm = pick(m.rng, registry.Warm{}, registry.Warm{}, registry.Warm{}, registry.Warm{Min: 2, Max: 4})
		m.policies, m.nets = append(m.policies, p), append(m.nets, network{name: "net"})
	}
}

// play plays the events of the history, and checks what must be true at its end.
func (m *model) play() {
	defer func() {
		if len(m.bad) > 0 {
			m.Errorf("%s\n\nthe history:\n%s", strings.Join(m.bad, "\n"), strings.Join(m.log, "\n"))
		}
	}()
	if m.chance(15) && !slices.Contains(m.denied, "CreateNetworkInterface") {
		m.originals()
	}
	for range m.steps {
		m.kernel.adversary.act(m)
		if m.step(0); m.chance(20) {
			m.reconfigure()
		}
		if m.verify(); len(m.bad) > 0 {
			return
		}
	}
	m.settle()
}

// originals makes pods of the original plugin, on an ENI that the original plugin created before ours was installed.
func (m *model) originals() {
	card, index, found := m.freeSlot(m.Instance)
	if !found {
		return // ENIs of others take all slots
	}
	ctx := context.Background()
	c := aws.New(aws.Options{EC2URL: "http://ec2", MetadataURL: "http://imds", HTTP: &process{model: m}})
	e, err := c.CreateENI(ctx, aws.ENISpec{Subnet: "subnet-pod0", Description: book.Description(m.ID),
		Secondary: 1})
	must(m, err)
	time.Sleep(time.Minute)
	_, err = c.AttachENI(ctx, e.ID, m.ID, card, index)
	must(m, err)
	time.Sleep(2 * time.Minute)
	for _, a := range e.Addrs[:1+m.rng.IntN(2)] {
		p := m.newPod()
		p.original, p.addrs, p.alive = true, []netip.Addr{a}, true
		m.kernel.start(m, p.ContainerID)
		m.kernel.wire(m, p.ContainerID, p.Key.String(), p.addrs, len(p.addrs), true)
		m.logf("%s is the original's, and has %s", p.ContainerID, a)
	}
	m.EC2.ResetCalls()
}
