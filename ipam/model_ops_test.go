// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// writes are the actions that change something in EC2.
var writes = []string{
	"AssignPrivateIpAddresses", "UnassignPrivateIpAddresses", "AssignIpv6Addresses", "CreateNetworkInterface",
	"AttachNetworkInterface",
	"ModifyNetworkInterfaceAttribute", "DetachNetworkInterface", "DeleteNetworkInterface",
}

var actions = append([]string{"DescribeNetworkInterfaces", "DescribeSubnets", "DescribeInstanceTypes"}, writes...)

// codes are errors of EC2, one or more for each row of the table in package aws.
var codes = []string{
	"RequestLimitExceeded", "InsufficientFreeAddressesInSubnet", "InsufficientCidrBlocks",
	"PrivateIpAddressLimitExceeded",
	"AttachmentLimitExceeded", "NetworkInterfaceLimitExceeded", "SecurityGroupsPerInterfaceLimitExceeded",
	"InvalidParameterValue",
	"InvalidNetworkInterface.InUse", "DependencyViolation", "InvalidNetworkInterfaceID.NotFound",
	"InvalidSubnetID.NotFound",
	"UnauthorizedOperation", "RequestExpired", "AuthFailure", "OptInRequired", "TagPolicyViolation",
	"OperationNotPermitted",
	"IdempotentParameterMismatch", "IncorrectState", "InternalError", "Unavailable", "InsufficientAddressCapacity",
	"UnsupportedOperation",
}

// An act is an event of a history.
type act struct {
	weight int
	nested bool // the event also happens while a process waits for EC2
	do     func(*model)
}

// ofMultus are further acts, for histories in which a pod may have two attachments.
var acts, ofMultus []act

// ofOperators are further acts, for histories in which operators make ENIs.
var ofOperators []act

func init() {
	ofMultus = []act{{50, true, (*model).further}}
	ofOperators = []act{{25, true, (*model).newInterface}, {5, true, (*model).removeInterface}}
	acts = []act{
		{30, true, (*model).add}, {5, false, (*model).again}, {16, true, (*model).del}, {3, true, (*model).delAgain},
		{5, true, (*model).retain}, {12, true, (*model).collect}, {3, false, (*model).fill}, {4, true, (*model).die},
		{2, true, (*model).lose}, {2, true, (*model).corrupt}, {2, false, (*model).reboot},
		{7, true, (*model).fail}, {4, true, (*model).loseAnswer}, {6, true, (*model).script},
		{2, true, (*model).detach}, {3, true, (*model).unassign},
		{2, true, (*model).clockSteps}, {6, true, (*model).lie}, {5, true, (*model).confess},
		{14, true, (*model).tick}, {3, true, (*model).deallocate},
		{3, true, (*model).retire}, {3, true, (*model).allocate},
		{3, true, (*model).attachByHand}, {3, true, (*model).assignByHand}, {2, true, (*model).stick},
	}
}

// step plays one act. The argument depth is the number of processes that wait for EC2 meanwhile.
func (m *model) step(depth int) {
	total, possible := 0, acts
	if m.multus {
		possible = slices.Concat(possible, ofMultus)
	}
	if m.operated {
		possible = slices.Concat(possible, ofOperators)
	}
	if m.conf != nil {
		possible = append(slices.Clip(possible), act{6, true, (*model).release})
	}
	for _, a := range possible {
		if depth == 0 || a.nested {
			total += a.weight
		}
	}
	n := m.rng.IntN(total)
	for _, a := range possible {
		if depth > 0 && !a.nested {
			continue
		}
		if n -= a.weight; n < 0 {
			a.do(m)
			return
		}
	}
}

// fate chooses what happens to a process.
func (m *model) fate() fate {
	if m.calm {
		return fate{}
	}
	f := fate{at: 1 + m.rng.IntN(7), after: m.chance(50)}
	// A process asks metadata from several goroutines at once. In histories of two nodes, only one of these goroutines
	// would end with its machine.
	if m.other == nil && m.chance(20) {
		f.of = metadata
	}
	switch n := m.rng.IntN(100); {
	case n < 12:
		f.end = "killed"
	case n < 18:
		f.end = "cancelled"
	case n < 45 && m.depth < 2 && m.other != nil:
		f.meet = m.other
	case n < 45 && m.depth < 2:
		f.meet = func() {
			for range 1 + m.rng.IntN(3) {
				m.step(m.depth)
				m.verify()
			}
		}
	default:
		return fate{}
	}
	return f
}

// locked reports whether a process that waits for EC2 has the lock. If it has the lock, the history starts no process
// that would wait for this lock. While a goroutine waits in the kernel, the bubble's time stands still.
func (m *model) locked(name string) bool {
	f, err := os.OpenFile(filepath.Join(m.Dir, name+".lock"), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	must(m, err)
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}

func (m *model) newPod() *modelPod {
	m.count++
	o := pod(m.count)
	o.NetNS = m.kernel.path(o.ContainerID)
	i := pick(m.rng, m.configured()...)
	o.Network = m.nets[i].name
	p := &modelPod{Owner: o, policy: i, asked: []lease.Policy{m.policies[i]}, valid: true}
	m.pods = append(m.pods, p)
	return p
}

// add is an ADD of a new pod. While another process asks EC2, a real ADD would wait for its answer. The model's ADD
// gives up instead.
func (m *model) add() {
	p := m.newPod()
	if !m.kernel.start(m, p.ContainerID) {
		p.valid = false
		return
	}
	m.ask(p)
	m.acquire(p)
	switch {
	case p.alive && m.chance(4):
		m.logf("%s is abandoned", p.name())
		p.alive, p.valid = false, m.chance(50)
		m.stop(p)
	case !p.alive && m.chance(60):
		m.end(p)
	case !p.alive && m.chance(50):
		m.kernel.stop(m, p.ContainerID)
	}
}

func (m *model) acquire(p *modelPod) error {
	policies, f, waits := p.asked, fate{}, m.locked("grow")
	if !waits {
		f = m.fate()
	}
	if !waits && p.IfName == furtherName && m.chance(40) {
		f = m.fateOfFurther(p)
	}
	m.logf("%s ADD %s pool %q, %d interfaces%v", m.clock(), p.name(), policies[0].Pool, len(policies), f)
	all := make([]lease.Allocation, len(policies))
	p.busy, m.added = true, time.Now()
	warm := m.isWarm(p)
	err := m.run(policies[0], f, policies[0].Timeout, func(ctx context.Context, pool *Pool) error {
		add := func(ctx context.Context, by *lease.Pool, o lease.Owner) (bool, error) {
			own := New(*by, pool.Cloud)
			take := own.Acquire
			if waits {
				take = own.Take
			}
			got, err := m.obtain(ctx, own, o, take)
			all[o.NIC] = got
			return got.Fresh, err
		}
		_, err := pool.Each(ctx, p.Owner, policies, add)
		return err
	})
	for _, got := range all {
		m.logf("  %s has %v on %s, %v", p.name(), got.Addrs, got.ID, err)
	}
	if warm && (err != nil || m.sent > 0) {
		m.wrong("%s: an address is free, and the ADD makes %d calls: %v", p.name(), m.sent, err)
	}
	if err == nil && m.multus {
		err = m.link(p, all)
	}
	p.busy = false
	if err == nil && !p.overtaken {
		m.answered(p, all...)
	}
	return err
}

// obtain gets an address as an ADD does. To wait for the link of the address's ENI, it calls appears. A wait in the
// kernel would stop the bubble's time.
func (m *model) obtain(
	ctx context.Context, pool *Pool, o lease.Owner, take func(context.Context, lease.Owner) (lease.Allocation, error),
) (lease.Allocation, error) {
	got, _, err := pool.Obtain(ctx, o, func(ctx context.Context, o lease.Owner) (lease.Allocation, error) {
		got, err := take(ctx, o)
		if err == nil {
			m.appears(ctx, pool, got.ID)
		}
		return got, err
	})
	if err != nil {
		got = lease.Allocation{Fresh: got.Fresh}
	}
	return got, err
}

// appears waits for the link of an ENI as long as a process does, and reports whether the node has the link.
func (m *model) appears(ctx context.Context, pool *Pool, id string) bool {
	for gone := false; !m.kernel.linked(id); {
		err := pool.Registry.Change(ctx, func(s *registry.State) {
			e, ok := s.ENIs[id]
			if e.Missed.IsZero() {
				e.Missed = time.Now()
			}
			if ok {
				s.ENIs[id], gone = e, e.NoLink(time.Now())
			}
		})
		if gone || err != nil {
			return false
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// answered checks and records the addresses of a successful ADD. The argument all has one allocation for each interface
// of the pod.
func (m *model) answered(p *modelPod, all ...lease.Allocation) {
	var addrs []netip.Addr
	excused := false
	for i, got := range all {
		if len(got.Addrs) != len(p.asked[0].Families) {
			m.wrong("%s has %d addresses", p.name(), len(got.Addrs))
		}
		// While the ADD waited for another interface, an operator may have detached the ENI. Then the next plugin
		// fails.
		if _, away := m.away[got.ID]; !away && !m.kernel.linked(got.ID) {
			m.wrong("%s has an address of %s, whose link is not on the node", p.name(), got.ID)
		}
		if len(got.VPC.CIDRs) == 0 {
			m.wrong("%s gets no routes to the VPC", p.name())
		}
		m.verifyAsked(p, p.asked[i], got)
		m.verifyApart(p, i, all)
		m.verifyReused(p, p.asked[i], got)
		addrs = append(addrs, got.Addrs...)
		excused = excused || slices.ContainsFunc(got.Addrs, func(a netip.Addr) bool { return m.excused(got.ID, a) })
	}
	linked := m.kernel.addrs() // lacks the addresses of pods whose ENI an operator has detached
	for i, a := range addrs {
		if slices.Contains(addrs[:i], a) {
			m.wrong("%s has %s on two interfaces", p.name(), a)
		}
		for _, other := range m.pods {
			if other != p && other.alive && slices.Contains(other.addrs, a) && linked[a] == other.Key.String() {
				m.wrong("%s has %s, which %s has", p.name(), a, other.name())
				return
			}
		}
	}
	if p.alive && !p.forgot && !p.robbed && !slices.Equal(p.addrs, addrs) {
		m.wrong("%s had %v, and has %v after the same ADD", p.name(), p.addrs, addrs)
	}
	p.robbed = p.robbed && slices.Equal(p.addrs, addrs) || excused
	if p.alive = true; !slices.Equal(p.addrs, addrs) || !m.kernel.linkedTo(p.ContainerID, p.Key.String(), addrs) {
		p.addrs, p.forgot = addrs, false
		m.kernel.wire(m, p.ContainerID, p.Key.String(), addrs, len(all[0].Addrs), false)
	}
}

// choose returns a pod that meets the condition so, and that has no ADD under way. If there is no such pod, choose
// returns nil.
func (m *model) choose(so func(*modelPod) bool) *modelPod {
	var those []*modelPod
	for _, p := range m.pods {
		if so(p) && !p.busy {
			those = append(those, p)
		}
	}
	if len(those) == 0 {
		return nil
	}
	return pick(m.rng, those...)
}

func (m *model) again() {
	p := m.choose(func(p *modelPod) bool { return p.alive && !p.original && !p.forgot })
	if p != nil {
		m.acquire(p)
	}
}

func (m *model) del() {
	if p := m.choose(func(p *modelPod) bool { return p.valid }); p != nil {
		m.end(p)
	}
}

// delAgain repeats the DEL of a pod that is gone, with the result of its ADD.
func (m *model) delAgain() {
	if p := m.choose(func(p *modelPod) bool { return !p.valid }); p != nil {
		m.end(p)
	}
}

func (m *model) end(p *modelPod) {
	m.noteEnd(p)
	p.alive = false
	m.logf("%s DEL %s of %v", m.clock(), p.name(), p.addrs)
	early := m.chance(50)
	if early {
		m.unlink(p)
	}
	m.mustEnd(p)
	if !early {
		m.unlink(p)
	}
	p.valid = false
}

// die ends a pod without a DEL.
func (m *model) die() {
	if p := m.choose(func(p *modelPod) bool { return p.alive }); p != nil {
		m.logf("%s dies", p.name())
		p.valid = m.chance(50)
		for _, o := range m.siblings(p) {
			o.valid = o.valid && m.chance(50)
		}
		m.stop(p)
	}
}

func (m *model) retain() {
	var valid []plugin.Attachment
	of := pick(m.rng, m.nets...).name
	for _, p := range m.pods {
		if p.Network == of && (p.valid && !m.omits(p) || m.chance(30)) {
			valid = append(valid, p.Attachment)
		}
	}
	m.logf("%s GC of %s with %d valid", m.clock(), of, len(valid))
	err := m.run(lease.Policy{}, fate{}, time.Minute, func(ctx context.Context, pool *Pool) error {
		return pool.Retain(ctx, of, valid)
	})
	if err != nil {
		m.wrong("GC: %v", err)
	}
	m.damaged = false
}

// never is longer than any history.
const never = 1000 * time.Hour

func (m *model) collect() {
	if m.locked("collect") || m.locked("grow") && m.begun() {
		return // the collection would wait for a lock
	}
	c := less.Collection{FreeAfter: pick(m.rng, 0, time.Minute, time.Hour), Max: pick(m.rng, -1, -1, 1, 3)}
	if m.locked("grow") {
		c.FreeAfter = never // otherwise a collection that releases addresses would wait for the lock
	}
	m.collectNow(c, m.fate())
}

// begun reports whether a collection would wait for a growth to end, because the collection has something to finish.
func (m *model) begun() bool {
	s, err := m.view()
	return err != nil || known.Due(s) || lease.Unknown(s) || lease.AnyToRelease(s)
}

func (m *model) collectNow(c less.Collection, f fate) (done less.Report, err error) {
	m.logf("%s collect what is free for %v, at most %d%v", m.clock(), c.FreeAfter, c.Max, f)
	m.verifyCalls()
	began, refused := time.Now(), m.refused
	past := m.pastAddrs()
	before, unread := m.view()
	policy := lease.Common(append(m.conflists(), m.common)...)
	c.ReuseWait = m.reuseWait
	if c.Conflists = m.conflists(); !m.mixed {
		policy.Provision = m.provision
	}
	err = m.run(policy, f, time.Minute, func(ctx context.Context, pool *Pool) (err error) {
		done, err = pool.Collect(ctx, c)
		return err
	})
	m.logf("  ended %v, unassigned %v %v, deleted %v, detached %v, %v", done.Ended, done.Unassigned, done.Returned,
		done.Deleted, done.Detached, err)
	if unread == nil {
		m.verifyCooled(before, past, done)
	}
	if f.at == 0 && unread == nil {
		m.verifyWarm(before, done)
	}
	if f.at == 0 && err == nil {
		m.verifySeen()
	}
	m.noteAbandoned()
	if m.verifyCalls(); err == nil && f.at == 0 && len(m.lies) == 0 && m.refused == refused {
		m.notice(began)
	}
	return done, err
}

// deallocate: an operator releases a free address by name.
func (m *model) deallocate() {
	s, err := m.view()
	keeps := slices.ContainsFunc(m.policies, func(p lease.Policy) bool { return p.Keep })
	if err != nil || keeps || m.denied != nil || m.locked("grow") {
		return // the operator's command would wait for the lock
	}
	free := slices.DeleteFunc(slices.SortedFunc(s.Free.Keys(), netip.Addr.Compare), func(a netip.Addr) bool {
		_, e := s.ENIOf(a)
		_, given := m.given[m.carrier(a)]
		return !slices.Contains(e.Addrs, a) || a == e.Primary() || given
	})
	if len(free) == 0 {
		return
	}
	a, f := pick(m.rng, free...), m.fate()
	m.logf("%s an operator releases %s%v", m.clock(), a, f)
	var gone []netip.Addr
	err = m.run(lease.Policy{}, f, time.Minute, func(ctx context.Context, pool *Pool) (err error) {
		gone, err = pool.Deallocate(ctx, a)
		return err
	})
	m.logf("  %v, %v", gone, err)
	delete(m.ended, a) // an operator's command does not wait until the address has cooled
}

func (m *model) fill() {
	policy := pick(m.rng, m.conflists()...)
	f := m.fate()
	m.logf("%s fill pool %q%v", m.clock(), policy.Pool, f)
	err := m.run(policy, f, time.Minute, func(ctx context.Context, pool *Pool) error {
		_, err := pool.Fill(ctx)
		return err
	})
	m.logf("  %v", err)
}

func (m *model) forget() {
	for _, p := range m.pods {
		p.forgot = true
	}
	m.rebuilt, m.lostAt = true, time.Now()
	m.losses++
}

func (m *model) lose() {
	if m.depth > 0 && m.keeps || m.locked("grow") && m.locked("collect") {
		return // the collection would wait for the growth
	}
	m.logf("%s the registry is lost", m.clock())
	m.forget()
	if err := os.Remove(filepath.Join(m.Dir, "registry.json")); !errors.Is(err, os.ErrNotExist) {
		must(m, err)
	}
	m.damaged = false
}

func (m *model) corrupt() {
	if m.depth > 0 && m.keeps || m.locked("grow") && m.locked("collect") {
		return
	}
	m.logf("%s the registry is damaged", m.clock())
	m.forget()
	must(m, os.MkdirAll(m.Dir, 0o700))
	text := pick(m.rng, "", "{", `{"schema_version": 1, "ips": 7}`, `{"schema_version": 0}`)
	must(m, os.WriteFile(filepath.Join(m.Dir, "registry.json"), []byte(text), 0o600))
	m.damaged = true
}

func (m *model) reboot() {
	if m.noBoot {
		return
	}
	m.logf("%s reboot", m.clock())
	for _, p := range m.pods {
		p.alive, p.valid, p.forgot, p.overtaken = false, false, true, false
	}
	m.kernel.clear(m)
	must(m, os.RemoveAll(m.Dir))
	m.Reboot()
	m.lies, m.damaged, m.rebuilt, m.lostAt = nil, false, true, time.Now()
	m.losses++
	time.Sleep(time.Minute)
}

func (m *model) fail() {
	action, code, n := pick(m.rng, actions...), pick(m.rng, codes...), pick(m.rng, 1, 1, 2, 5)
	if m.denied != nil && (slices.Contains(m.denied, action) || code == "UnauthorizedOperation") {
		return // the permissions of the role must not change
	}
	m.logf("%s %d %s will answer %s", m.clock(), n, action, code)
	m.EC2.Fail(action, code, n)
}

func (m *model) loseAnswer() {
	action, n := pick(m.rng, actions...), pick(m.rng, 1, 1, 2)
	m.logf("%s %d answers of %s will be lost", m.clock(), n, action)
	m.EC2.Lose(action, n)
}

// scripts are possible outcomes of the attempts of one call, or of the calls of one action.
var scripts = [][]ec2sim.Outcome{
	{ec2sim.DoneLost, ec2sim.Refused("RequestLimitExceeded")},
	{ec2sim.DoneLost, ec2sim.Refused("UnauthorizedOperation")},
	{ec2sim.DoneLost, ec2sim.Refused("InternalError")},
	{ec2sim.DoneLost, ec2sim.Refused("InternalError"), ec2sim.Refused("RequestLimitExceeded")},
	{ec2sim.DoneLost, ec2sim.UndoneLost, ec2sim.UndoneLost},
	{ec2sim.DoneBut("InternalError"), ec2sim.Refused("RequestLimitExceeded"), ec2sim.Refused("RequestLimitExceeded")},
	{ec2sim.UndoneLost, ec2sim.Refused("RequestLimitExceeded")},
	{ec2sim.Answered, ec2sim.Refused("RequestLimitExceeded")},
	{ec2sim.Answered, ec2sim.Refused("UnauthorizedOperation")},
	{ec2sim.Answered, ec2sim.DoneLost, ec2sim.Refused("RequestLimitExceeded")},
}

// script makes EC2 answer the next attempts as one of the scripts says.
func (m *model) script() {
	action, outcomes := pick(m.rng, slices.Concat(writes, actions)...), pick(m.rng, scripts...)
	refused := func(o ec2sim.Outcome) bool { return o.Code == "UnauthorizedOperation" }
	if m.denied != nil && (slices.Contains(m.denied, action) || slices.ContainsFunc(outcomes, refused)) {
		return
	}
	m.logf("%s %s meets %+v", m.clock(), action, outcomes)
	m.EC2.Script(action, outcomes...)
}

func (m *model) lie() {
	eni := pick(m.rng, m.EC2.ENIs()...).ID
	names := []string{"forget", "keep", "freeze", "hide", "keys", "number", "fail", "unavailable", "silent"}
	if m.limits.Cards != nil {
		names = append(names, "card")
	}
	name := pick(m.rng, names...)
	m.logf("%s metadata: %s %s", m.clock(), name, eni)
	m.lies = append(m.lies, m.Lie(map[string]ec2sim.Lie{
		"forget": ec2sim.ForgetENI(eni), "keep": ec2sim.KeepENI(eni), "freeze": ec2sim.FreezeENI(eni),
		"hide": ec2sim.HideENI(eni),
		"keys": ec2sim.HideKeys(eni, "local-ipv4s", "ipv4-prefix"), "number": ec2sim.ZeroDeviceNumber(eni),
		"card": ec2sim.LateNetworkCard(eni),
		"fail": ec2sim.FailENI(eni), "unavailable": ec2sim.Unavailable(), "silent": ec2sim.Silent(),
	}[name]))
}

func (m *model) confess() {
	m.logf("%s metadata is right again", m.clock())
	for _, stop := range m.lies {
		stop()
	}
	m.lies = nil
}

func (m *model) tick() {
	d := pick(m.rng, time.Second, 10*time.Second, 61*time.Second, 10*time.Minute, 20*time.Minute, 2*time.Hour)
	m.logf("%s sleep %v", m.clock(), d)
	time.Sleep(d)
}
