// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

var follows = flag.Int("follows", 0, "how many random histories of two nodes TestFollow tries; 0: 100")

// TestFollow plays random histories of two nodes with one EC2. Pods of both nodes ask for the same few addresses.
// Processes are killed, answers are lost, EC2's descriptions lag, and a node cannot reach EC2 while its pods run.
// Instances are stopped, hibernated, started and terminated. The pods have one family or both, and in some histories,
// nodes get prefixes. Two running pods never have the same address. While a pod with an address runs, the address does
// not leave its ENI. A history comes from its seed, as in TestModel.
func TestFollow(t *testing.T) {
	n := *follows
	if n == 0 {
		n = 100
		if testing.Short() {
			n = 30
		}
	}
	simtest.Credentials(t)
	var count counts
	make := func(t *testing.T) [2]*kernel { return [2]*kernel{newKernel(t, 6), newKernel(t, 6)} }
	playAll(t, *firstSeed, n, runtime.GOMAXPROCS(0), make, func(t *testing.T, k [2]*kernel, seed uint64) {
		dir := simtest.Memory(t)
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, k, dir, seed, nil, &count)
			defer p.end()
			p.play()
		})
	})
	t.Logf("%d histories: %d ADDs of pods with a chosen address have answered, %d of them with one of a prefix of "+
		"their node; %d addresses have moved from the other node, %d of them IPv6, %d from an instance that had ended "+
		"without a DEL", n, count.added.Load(), count.ofPrefix.Load(), count.moved.Load(), count.moved6.Load(),
		count.takenOver.Load())
	for _, c := range []*atomic.Int32{&count.ofPrefix, &count.moved, &count.moved6, &count.takenOver} {
		if c.Load() == 0 {
			t.Error("some of this has not happened at all, so these histories show nothing of it")
		}
	}
}

// counts has the numbers of some events in all histories.
type counts struct{ added, ofPrefix, moved, moved6, takenOver atomic.Int32 }

// A setup is the part of the configuration that both nodes share. If newPair gets a setup, EC2 and metadata have no
// delays and no lag.
type setup struct {
	families []lease.Family
	prefixes bool
}

// drawSetup draws the setup of a history.
func drawSetup(rng *rand.Rand) setup {
	return setup{
		families: pick(rng, []lease.Family{lease.IPv4}, []lease.Family{lease.IPv4},
			[]lease.Family{lease.IPv4, lease.IPv6}, []lease.Family{lease.IPv6}),
		prefixes: rng.IntN(3) == 0,
	}
}

// A pair is two nodes and their EC2.
type pair struct {
	*testing.T
	*counts
	setup
	rng   *rand.Rand
	EC2   *ec2sim.Sim
	nodes [2]*follower
	steps int
	last  map[netip.Addr]*holder // the last pod that has had an address
	bad   []string
	log   []string
}

// A holder is a pod that has had an address, with the instance on which it ran.
type holder struct {
	of       *follower
	instance string
	deleted  bool // its DEL has begun
}

// A follower is one of the nodes.
type follower struct {
	*model
	pair    *pair
	machine string // running, stopped or hibernated
	boots   int    // how often the machine was powered off: its processes end then
}

const (
	machineRuns       = "running"
	machineStopped    = "stopped"
	machineHibernates = "hibernated"
)

// newPair makes two nodes. Without a setup, the seed chooses the setup and the failures.
func newPair(t *testing.T, k [2]*kernel, dir string, seed uint64, steady *setup, c *counts) *pair {
	p := &pair{T: t, counts: c, rng: rand.New(rand.NewPCG(seed, 4)), last: map[netip.Addr]*holder{}}
	limits := ec2sim.InstanceType{Name: "model.small", ENIs: 3, IPv4PerENI: 4, IPv6PerENI: 4}
	vpc := ec2sim.World("vpc-1 10.178.0.0/16 100.78.0.0/16 2001:db8:78::/56\nsubnet-node 10.178.0.0/24\n" +
		"subnet-pod0 100.78.0.0/20 2001:db8:78:1::/64 for=pods")
	c1 := ec2sim.Config{InstanceTypes: []ec2sim.InstanceType{limits}, VPCs: vpc.VPCs, Subnets: vpc.Subnets,
		MetadataDelay: pick(p.rng, 0, 2*time.Second, 90*time.Second),
		AttachDelay:   pick(p.rng, 0, 2*time.Second), DetachDelay: pick(p.rng, 0, 3*time.Second)}
	if p.rng.IntN(2) == 0 {
		c1.Lag = ec2sim.Lag{Most: 5 * time.Second, Back: p.rng.IntN(4), Seed: p.rng.Uint64()}
	}
	if p.setup = drawSetup(p.rng); steady != nil {
		p.setup = *steady
		c1.Lag, c1.MetadataDelay, c1.AttachDelay, c1.DetachDelay = ec2sim.Lag{}, 0, 0, 0
	}
	p.EC2 = simtest.Sim(t, c1)
	for i := range p.nodes {
		m := &model{Node: k[i].of(t, filepath.Join(dir, fmt.Sprint("state", i))), kernel: k[i], rng: p.rng,
			began: time.Now(), limits: limits, provision: lease.ProvisionFull,
			primaries: map[string]netip.Addr{}, theirs: map[string]ec2sim.ENI{}, taken: map[netip.Addr]time.Time{},
			away: map[string]time.Time{}, given: map[string]ec2sim.ENI{}, moved: map[string]bool{},
			ended: map[netip.Addr]ending{}}
		m.EC2 = p.EC2
		f := &follower{model: m, pair: p, machine: machineRuns}
		p.nodes[i] = f
		k[i].carrier = m.carrier
		k[i].adversary.begin(t, seed)
		m.count = 100 * i
		m.other = f.meanwhile
		m.configureFollow(p.setup)
		p.EC2.OnChange(func(c ec2sim.Change) {
			if m.Instance != nil {
				m.plug(c)
			}
		})
		f.launch()
	}
	p.steps = 10 + p.rng.IntN(25)
	p.logf("families %v, prefixes %v, lag %+v, delays %v %v %v", p.families, p.prefixes, c1.Lag, c1.MetadataDelay,
		c1.AttachDelay, c1.DetachDelay)
	return p
}

// configureFollow makes the configuration of a node. The node's pods may choose addresses that other nodes have.
func (m *model) configureFollow(s setup) {
	var families []string
	for _, f := range s.families {
		families = append(families, f.String())
	}
	text, err := json.Marshal(map[string]any{"interfaceIndex": 1, "addTimeout": 20, "secGroupIds": []string{},
		"subnetTags": map[string]string{"for": "pods"}, "ipFamilies": families, "prefixDelegation": s.prefixes,
		"warm":     pick(m.rng, registry.Warm{}, registry.Warm{Min: 1, Max: 3}),
		"eniTags":  map[string]string{"cluster": "a"},
		"requests": []lease.Permission{{Namespaces: []string{"*"}, IPs: true, Takeover: true}}})
	must(m, err)
	m.conf = &lease.Config{}
	must(m, json.Unmarshal(text, m.conf))
	must(m, m.conf.Validate())
	m.policies, m.common = m.conf.Policies(), lease.Common(m.conf.Policies()[0])
	m.nets = []network{{name: "net"}}
}

// launch launches an instance for the node.
func (f *follower) launch() {
	f.Instance = nil
	f.kernel.end(f)
	i, err := f.EC2.RunInstance(ec2sim.RunInstance{Type: f.limits.Name, Subnet: "subnet-node"})
	must(f, err)
	f.Instance, f.machine = i, machineRuns
	f.kernel.plug(f, i.ENIs()[0])
}

func (p *pair) logf(format string, args ...any) { p.log = append(p.log, fmt.Sprintf(format, args...)) }

func (p *pair) wrong(format string, args ...any) {
	p.bad = append(p.bad, fmt.Sprintf(format, args...))
	p.logf("  WRONG: "+format, args...)
}

func (f *follower) say(format string, args ...any) {
	f.pair.logf("%s%s %s: %s", strings.Repeat("    ", f.pair.depth()), f.clock(), f.ID[len(f.ID)-3:],
		fmt.Sprintf(format, args...))
}

func (p *pair) depth() int { return p.nodes[0].model.depth + p.nodes[1].model.depth }

func (p *pair) end() {
	for _, f := range p.nodes {
		f.kernel.end(p.T)
	}
}

// deeds are the possible events of a history. An event with a larger weight happens more often.
var deeds = []struct {
	weight int
	do     func(*follower)
}{
	{30, (*follower).addChosen}, {6, (*follower).addAny}, {12, (*follower).addOfPrefix}, {22, (*follower).endOne},
	{14, (*follower).releaseChosen}, {6, (*follower).collectOne}, {3, (*follower).dieOne},
	{3, (*follower).loseRegistry}, {2, (*follower).skewClock}, {5, (*follower).cutOrHeal},
	{5, (*follower).stopMachine}, {8, (*follower).startMachine}, {2, (*follower).terminate},
	{2, (*follower).detachOne}, {4, (*follower).fault}, {8, (*follower).pass},
}

func (p *pair) step() {
	total := 0
	for _, d := range deeds {
		total += d.weight
	}
	f := p.nodes[p.rng.IntN(2)]
	n := p.rng.IntN(total)
	for _, d := range deeds {
		if n -= d.weight; n < 0 {
			d.do(f)
			break
		}
	}
	p.verify()
}

// meanwhile plays events while a process of the node waits for EC2. If an event powers the machine off, the process
// ends, too.
func (f *follower) meanwhile() {
	boots := f.boots
	for range 1 + f.rng.IntN(3) {
		f.pair.step()
	}
	if f.boots != boots {
		runtime.Goexit()
	}
}

func (p *pair) play() {
	defer func() {
		if len(p.bad) > 0 {
			p.Errorf("%s\n\nthe history:\n%s", strings.Join(p.bad, "\n"), strings.Join(p.log, "\n"))
		}
	}()
	for range p.steps {
		if p.step(); len(p.bad) > 0 {
			return
		}
	}
	p.settle()
}

// verify checks what must be true at any time.
func (p *pair) verify() {
	for _, f := range p.nodes {
		for _, line := range f.model.log {
			p.logf("%s", line)
		}
		f.model.log = nil
		p.bad = append(p.bad, f.model.bad...)
		f.model.bad = nil
		for _, c := range p.EC2.Calls() {
			if strings.Contains(c.Action, "ssign") || c.Code != "" || c.Lost {
				p.logf("  EC2: %v", c)
			}
		}
		p.EC2.ResetCalls()
	}
	has := map[netip.Addr]string{}
	for i, f := range p.nodes {
		for _, pod := range f.pods {
			for _, a := range pod.addrs {
				if !pod.alive || f.machine != machineRuns {
					continue
				}
				name := fmt.Sprintf("%s of node %d", pod.name(), i)
				if other := has[a]; other != "" && !pod.robbed {
					p.wrong("%s and %s run and have %s", other, name, a)
				}
				if !pod.robbed {
					has[a] = name
				}
				if f.carrier(a) == "" && !pod.robbed {
					p.wrong("%s runs, and %s has left its ENI", name, a)
				}
			}
		}
	}
}

// idle reports whether the node runs, and the locks "grow" and "collect" are both free.
func (f *follower) idle() bool {
	return f.machine == machineRuns && !f.locked("grow") && !f.locked("collect")
}

// chosen returns one of the few addresses for which pods of a StatefulSet ask. EC2 assigns these addresses only to
// callers that name them, as if they were reserved. If the pods have both families, each pod asks for an address of one
// family.
func (p *pair) chosen(n int) netip.Addr {
	if p.families[n%len(p.families)] == lease.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:78:1:ffff::%x", 100+n))
	}
	return netip.AddrFrom4([4]byte{100, 78, 15, byte(100 + n)})
}

// addChosen is the ADD of pod db-0, db-1 or db-2, which asks for its address. In some cases, a pod with another name
// asks for this address.
func (f *follower) addChosen() {
	if f.machine != machineRuns {
		return
	}
	n := f.rng.IntN(3)
	name := fmt.Sprint("db-", n)
	if f.chance(15) {
		name = "thief-0"
	}
	f.addNamed(name, f.pair.chosen(n))
}

// addOfPrefix is the ADD of a pod that asks for an address in a prefix. An ENI of either node has this prefix.
func (f *follower) addOfPrefix() {
	var all []netip.Prefix
	for _, e := range f.EC2.ENIs() {
		all = append(append(all, e.Prefixes...), e.IPv6Prefixes...)
	}
	if f.machine != machineRuns || len(all) == 0 {
		return
	}
	a := pick(f.rng, all...).Addr()
	for range 1 + f.rng.IntN(3) {
		a = a.Next()
	}
	if p := f.addNamed("web-0", a); p.alive {
		f.pair.ofPrefix.Add(1)
		delete(f.pair.last, a) // note does not count a move of this address
	}
}

func (f *follower) addNamed(name string, a netip.Addr) *modelPod {
	p, _ := f.tryNamed(name, a)
	return p
}

// tryNamed does what addNamed does, and also returns the error of the ADD.
func (f *follower) tryNamed(name string, a netip.Addr) (*modelPod, error) {
	p := f.newPod()
	p.Pod.Namespace, p.Pod.Name = "default", name
	if !f.kernel.start(f, p.ContainerID) {
		p.valid = false
		return p, errors.New("this kernel has no namespace left")
	}
	c := *f.conf
	c.RuntimeConfig.Annotations = map[string]string{nic.Annotation: fmt.Sprintf(`[{"ip": %q}]`, a)}
	policies, err := c.Interfaces("net", "eth0", p.Pod)
	must(f, err)
	p.asked, p.asks = policies, true
	f.say("ADD %s %s, for %s", p.name(), name, a)
	boots := f.boots
	err = f.acquire(p)
	if f.boots != boots {
		p.alive, p.valid, p.busy = false, false, false
		return p, err
	}
	f.say("ADD %s: %v", p.name(), err)
	if p.alive {
		f.note(a)
	} else if f.chance(70) {
		f.endPod(p)
	}
	return p, err
}

// note counts a successful ADD with a chosen address. If another instance had the address before, note also counts a
// move.
func (f *follower) note(a netip.Addr) {
	f.pair.added.Add(1)
	if was := f.pair.last[a]; was != nil && (was.of != f || was.instance != f.ID) {
		f.pair.moved.Add(1)
		if a.Is6() {
			f.pair.moved6.Add(1)
		}
		if !was.deleted {
			f.pair.takenOver.Add(1)
		}
	}
	f.pair.last[a] = &holder{of: f, instance: f.ID}
}

// addAny is the ADD of a pod that asks for nothing.
func (f *follower) addAny() {
	if f.machine != machineRuns {
		return
	}
	p := f.newPod()
	if !f.kernel.start(f, p.ContainerID) {
		p.valid = false
		return
	}
	boots := f.boots
	if err := f.acquire(p); f.boots != boots {
		p.alive, p.valid, p.busy = false, false, false
	} else if err != nil {
		f.endPod(p)
	}
}

func (f *follower) endOne() {
	if f.machine != machineRuns {
		return
	}
	if p := f.choose(func(p *modelPod) bool { return p.valid }); p != nil {
		f.endPod(p)
	}
}

// endPod is a DEL. In most cases, cni-release.service runs directly after it: the mark that a DEL leaves starts this
// unit.
func (f *follower) endPod(p *modelPod) {
	f.delete(p)
	if f.chance(60) {
		f.releaseChosen()
	}
}

func (f *follower) delete(p *modelPod) {
	f.say("DEL %s of %v", p.name(), p.addrs)
	for _, a := range p.addrs {
		if h := f.pair.last[a]; h != nil && h.of == f && p.alive {
			h.deleted = true
		}
	}
	f.end(p)
}

// releaseChosen does what cni-release.service does.
func (f *follower) releaseChosen() {
	if !f.idle() {
		return
	}
	fate := f.fate()
	f.say("release%v", fate)
	var gone []netip.Addr
	err := f.run(f.common, fate, time.Minute, func(ctx context.Context, pool *Pool) (err error) {
		gone, err = pool.ReleaseChosen(ctx)
		return err
	})
	f.say("released %v: %v", gone, err)
}

func (f *follower) collectOne() {
	if !f.idle() {
		return
	}
	fate := f.fate()
	f.say("collect%v", fate)
	c := less.Collection{FreeAfter: pick(f.rng, time.Minute, time.Hour), Max: -1, Conflists: f.conf.Policies()}
	err := f.run(f.common, fate, time.Minute, func(ctx context.Context, pool *Pool) error {
		_, err := pool.Collect(ctx, c)
		return err
	})
	f.say("collected: %v", err)
}

func (f *follower) dieOne() {
	if f.machine != machineRuns {
		return
	}
	if p := f.choose(func(p *modelPod) bool { return p.alive }); p != nil {
		f.say("%s dies", p.name())
		p.valid = f.chance(50)
		f.stop(p)
	}
}

func (f *follower) loseRegistry() {
	if !f.idle() {
		return
	}
	f.say("the registry is lost")
	f.forget()
	if err := os.Remove(filepath.Join(f.Dir, "registry.json")); !errors.Is(err, os.ErrNotExist) {
		must(f, err)
	}
}

func (f *follower) skewClock() {
	if f.idle() {
		f.say("the clock steps")
		f.skew(pick(f.rng, -24*time.Hour, -time.Hour, time.Hour, 24*time.Hour))
	}
}

// cutOrHeal interrupts or repairs the node's path to EC2. The pods continue to run.
func (f *follower) cutOrHeal() {
	f.cut = !f.cut
	f.say("no way to EC2: %v", f.cut)
}

// stopMachine stops the instance, or hibernates it. After a hibernation, its processes continue.
func (f *follower) stopMachine() {
	if f.machine != machineRuns || f.model.depth > 0 && f.chance(50) {
		return
	}
	hibernates := f.model.depth == 0 && f.chance(30)
	f.say("stop, hibernates: %v", hibernates)
	f.Stop(hibernates)
	if f.machine = machineHibernates; hibernates {
		return
	}
	f.machine = machineStopped
	f.powerOff()
}

// powerOff ends everything that is in the machine's memory.
func (f *follower) powerOff() {
	f.boots++
	for _, p := range f.pods {
		p.alive, p.valid, p.overtaken = false, false, false
	}
	f.kernel.clear(f)
	must(f, os.RemoveAll(f.Dir))
	f.damaged = false
	f.forget()
}

// startMachine starts the instance again, after the shortest time in which a machine boots.
func (f *follower) startMachine() {
	const boot = 20 * time.Second
	if f.machine == machineRuns {
		return
	}
	f.say("start")
	f.Start()
	f.Reboot()
	if f.machine == machineStopped {
		time.Sleep(boot)
	}
	f.machine = machineRuns
}

// terminate ends the instance, and launches another in its place. Some of its ENIs may stay.
func (f *follower) terminate() {
	for _, e := range f.attached() {
		if !e.Boot && f.chance(50) {
			f.Operate("ModifyNetworkInterfaceAttribute", "NetworkInterfaceId", e.ID, "Attachment.AttachmentId",
				e.Attachment, "Attachment.DeleteOnTermination", "false")
		}
	}
	f.say("terminate")
	f.powerOff()
	must(f, f.EC2.TerminateInstance(f.ID))
	f.launch()
	f.cut = false
	f.say("launched")
}

// detachOne: an operator detaches an ENI of the node. The pods that use this ENI continue to run, without a network.
func (f *follower) detachOne() {
	all := f.attached()
	e := all[f.rng.IntN(len(all))]
	if e.Boot || e.Attachment == "" {
		return
	}
	if err := f.EC2.Operate("DetachNetworkInterface", map[string]string{"AttachmentId": e.Attachment}); err != nil {
		return // it is being detached
	}
	f.say("an operator has detached %s", e.ID)
	for _, p := range f.pods {
		for _, a := range p.addrs {
			p.robbed = p.robbed || carriesAddr(e, a) // the pod's slave is gone
		}
	}
	for _, a := range slices.Concat(e.Addrs, e.IPv6Addrs) {
		f.taken[a] = time.Now()
	}
	f.away[e.ID] = time.Now()
}

// moves are the actions by which an address moves.
var moves = []string{"AssignPrivateIpAddresses", "UnassignPrivateIpAddresses", "AssignIpv6Addresses",
	"UnassignIpv6Addresses"}

// fault makes EC2 fail, or lose answers.
func (f *follower) fault() {
	switch f.rng.IntN(3) {
	case 0:
		action, code := pick(f.rng, slices.Concat(actions, moves)...), pick(f.rng, codes...)
		f.say("%s will answer %s", action, code)
		f.EC2.Fail(action, code, pick(f.rng, 1, 2))
	case 1:
		action := pick(f.rng, slices.Concat(moves, []string{"DescribeInstances"})...)
		f.say("an answer of %s will be lost", action)
		f.EC2.Lose(action, 1)
	default:
		action, outcomes := pick(f.rng, moves...), pick(f.rng, scripts...)
		f.say("%s meets %+v", action, outcomes)
		f.EC2.Script(action, outcomes...)
	}
}

func (f *follower) pass() {
	time.Sleep(pick(f.rng, time.Second, 10*time.Second, 61*time.Second, 10*time.Minute))
}

// settle ends the history: nothing fails any more. It checks that the address of db-0 follows this pod from node to
// node, and that each ADD succeeds in time.
func (p *pair) settle() {
	p.logf("nothing fails any more")
	for _, action := range slices.Concat(actions, moves, []string{"DescribeInstances"}) {
		p.EC2.Fail(action, "InternalError", 0)
		p.EC2.Lose(action, 0)
		p.EC2.Script(action)
	}
	for _, f := range p.nodes {
		f.cut = false
		f.startMachine()
		for _, pod := range f.pods {
			f.model.end(pod)
		}
		f.kernel.clear(p.T)
	}
	for range 3 {
		time.Sleep(2 * time.Hour)
		for _, f := range p.nodes {
			err := f.run(f.common, fate{}, time.Minute, func(ctx context.Context, pool *Pool) error {
				all := less.Collection{FreeAfter: time.Minute, Max: -1, Conflists: f.conf.Policies()}
				_, err := pool.Collect(ctx, all)
				return err
			})
			p.logf("collected: %v", err)
		}
	}
	addr := p.chosen(0)
	for _, f := range p.nodes { // a node that has lost its registry does not know that a pod had chosen the address
		if s, err := f.view(); err == nil && s.Free.Has(addr) {
			must(p.T, f.run(f.common, fate{}, time.Minute, func(ctx context.Context, pool *Pool) error {
				_, err := pool.Deallocate(ctx, addr)
				return err
			}))
		}
	}
	for turn := range 4 {
		f := p.nodes[turn%2]
		f.quietly(func() {
			pod := f.addNamed("db-0", addr)
			if !pod.alive {
				p.wrong("node %d: nothing fails, and db-0 does not get its address", turn%2)
				return
			}
			f.delete(pod)
			f.releaseChosen()
		})
		if p.verify(); len(p.bad) > 0 {
			return
		}
	}
}

// quietly calls do. Meanwhile no process is killed or cancelled, and no other process acts.
func (f *follower) quietly(do func()) {
	f.calm = true
	defer func() { f.calm = false }()
	do()
}
