// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// wrong records a violation of the model.
func (m *model) wrong(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	m.bad = append(m.bad, m.clock()+": "+text)
	m.logf("  WRONG: %s", text)
}

// verify checks what must be true at any time.
func (m *model) verify() {
	m.verifyCalls()
	m.verifyTheirs()
	m.verifyGiven()
	m.verifySlots()
	m.verifyBegun()
	m.noteBegun()
	if err := m.kernel.lost(); err != nil {
		m.wrong("pods that run have lost %v", err)
	}
	for _, p := range m.pods {
		for _, a := range p.addrs {
			if p.alive && !p.robbed && m.carrier(a) == "" {
				m.wrong("%s has %s, which is on no ENI of the node", p.name(), a)
			}
		}
	}
	s, err := m.view()
	if err != nil {
		if !m.damaged {
			m.wrong("%v", err)
		}
		return
	}
	m.forgetEnded(s)
	m.verifyFree()
	for _, p := range m.pods {
		for _, a := range p.addrs {
			if p.alive && !p.robbed {
				m.verifyLease(s, p, a)
			}
		}
	}
}

// An ending is the end of the last pod that had an address.
type ending struct {
	time.Time
	chosen bool // the pod had asked for the address
}

// noteEnd records that the addresses of a running pod are free from now on. It records nothing if an operator has taken
// an address of the pod from the node. It also records nothing if no process has looked at the node since the registry
// was lost. Then nothing shows that there was a pod.
func (m *model) noteEnd(p *modelPod) {
	s, err := m.view()
	looked := err == nil && !lease.Unknown(s)
	for _, a := range p.addrs {
		if p.alive && !p.robbed && looked {
			m.ended[a] = ending{time.Now(), slices.Contains(m.policyOf(p, a).Choice.Addrs, a)}
		}
	}
}

// isWarm reports whether an ADD of the pod must find a free address without a call to EC2 or to metadata.
func (m *model) isWarm(p *modelPod) bool {
	s, err := m.view()
	if err != nil || len(p.asked) > 1 || p.asked[0].Choice.Chooses() || lease.Unknown(s) || book.LeftAny(s) {
		return false
	}
	id, addrs := lease.Candidates(s, p.asked[0].Heed(s, p.Network), time.Now())
	has := m.kernel.addrs()
	for _, a := range addrs {
		if has[a] != "" {
			return false // the node has a route to the address
		}
	}
	return len(addrs) > 0 && len(s.Held(p.Key)) == 0 && m.kernel.linked(id)
}

// forgetEnded forgets the addresses that need not cool any more, whatever comes later. Nothing shows now that there was
// a pod, or a process has released an address for which the pod had asked. EC2 may give this address to another pod.
func (m *model) forgetEnded(s *registry.State) {
	maps.DeleteFunc(m.ended, func(a netip.Addr, end ending) bool {
		return !lease.Unknown(s) && m.nothingShows(end) || end.chosen && m.carrier(a) == ""
	})
}

// pastAddrs returns the addresses of ended pods that EC2 shows on the node. It leaves out an address if nothing shows
// that there was a pod.
func (m *model) pastAddrs() []netip.Addr {
	return slices.DeleteFunc(slices.SortedFunc(maps.Keys(m.ended), netip.Addr.Compare),
		func(a netip.Addr) bool { return m.carrier(a) == "" || m.nothingShows(m.ended[a]) })
}

// verifyCooled checks that a collection has released no address of an ended pod while the address cools. Otherwise EC2
// could give the address to another pod at once. The argument past has the addresses of ended pods. An address that
// follows its pod, or is on an ENI that an operator removes, need not cool.
func (m *model) verifyCooled(before *registry.State, past []netip.Addr, done less.Report) {
	for _, a := range past {
		end := m.ended[a]
		id, e := before.ENIOf(a)
		released := slices.Contains(done.Unassigned, a) || slices.Contains(done.Deleted, id) && !e.Draining ||
			slices.ContainsFunc(done.Returned, func(c netip.Prefix) bool { return c.Contains(a) })
		_, follows := before.Owners[a]
		if cooled := time.Since(end.Time); released && cooled < m.reuseWait(e.Pool) && !(follows && end.chosen) {
			m.wrong("%s is released %v after its pod has ended", a, cooled)
		}
	}
}

// verifyReused checks that an address of an ended pod has cooled before another pod gets the address. A pod may get the
// address for which it has asked. If the registry was lost, and nothing shows that the node has had pods, the address
// need not cool.
func (m *model) verifyReused(p *modelPod, policy lease.Policy, got lease.Allocation) {
	for _, a := range got.Addrs {
		end, ended := m.ended[a]
		if cooled := got.Since.Sub(end.Time); ended && cooled < policy.ReuseWait &&
			!slices.Contains(policy.Choice.Addrs, a) && !m.excused(got.ID, a) && !m.nothingShows(end) {
			m.wrong("%s gets %s %v after the end of the address's pod", p.name(), a, cooled)
		}
	}
}

// nothingShows reports whether the registry was lost since the end of a pod, and nothing on the node shows that the
// node has had pods. A running pod or the mark of a release would show this.
func (m *model) nothingShows(end ending) bool {
	marked := m.exists(known.ReleasedMark)
	survives := func(p *modelPod) bool { return p.alive && p.forgot && !p.robbed }
	return !m.lostAt.Before(end.Time) && !marked && !slices.ContainsFunc(m.pods, survives)
}

// exists reports whether a file is in the directory of the registry.
func (m *model) exists(name string) bool {
	_, err := os.Stat(filepath.Join(m.Dir, name))
	return err == nil
}

// view returns the registry as it is on disk.
func (m *model) view() (*registry.State, error) {
	r, err := registry.Open(m.Dir)
	must(m, err)
	return r.View()
}

// verifyFree checks that each address that an ADD could get now is on the ENI of this node where the registry has it.
func (m *model) verifyFree() {
	for _, policy := range m.policies {
		s, err := m.view()
		must(m, err)
		for range 20 { // not for all addresses: a /80 has too many
			id, addrs := lease.Candidates(s, policy, time.Now())
			if len(addrs) == 0 {
				break
			}
			for _, a := range addrs {
				if at := m.carrier(a); at != id && !m.excused(id, a) {
					m.wrong("the registry says that %s is free on %s: it is on %q", a, id, at)
					return
				}
				must(m, s.Reserve(a, registry.Lease{ENI: id}))
			}
		}
	}
}

// verifyLease checks that no other pod can get the address of a pod.
func (m *model) verifyLease(s *registry.State, p *modelPod, a netip.Addr) {
	l, leased := s.Leases.At(a)
	id, _ := s.ENIOf(a)
	switch {
	case s.Free.Has(a):
		m.wrong("%s has %s, which is free in the registry", p.name(), a)
	case leased && l.Key != p.Key && l.Key != registry.Key{}:
		m.wrong("%s has %s, which is leased by %s", p.name(), a, l.Key)
	case !leased && id != "":
		m.wrong("%s has %s, which the registry knows to be on %s, and has no lease", p.name(), a, id)
	}
}

// verifyCalls checks the calls to EC2 since the last verifyCalls. For example, no process may ask EC2 to unassign a
// primary address.
func (m *model) verifyCalls() {
	for _, e := range m.EC2.ENIs() {
		if len(e.Addrs) > 0 {
			m.primaries[e.ID] = e.Addrs[0]
		}
	}
	for _, c := range m.EC2.Calls() {
		if slices.Contains(m.denied, c.Action) {
			m.wrong("the role may not call it: %v", c)
		}
		if api.Changes(c.Action) || c.Code != "" || c.Lost {
			m.logf("  EC2: %v", c)
		}
		if c.Code != "" || c.Lost {
			m.refused++
		}
		if boot := m.ENIs()[0]; c.Params["AttachmentId"] == boot.Attachment ||
			c.Action == "DeleteNetworkInterface" && c.Params["NetworkInterfaceId"] == boot.ID {
			m.wrong("%v: it is the boot ENI", c)
		}
		m.verifyKept(c)
		m.verifyTagged(c)
		m.noteOutlives(c)
		for name, v := range c.Params {
			a, err := netip.ParseAddr(v)
			if c.Action == "UnassignPrivateIpAddresses" && strings.HasPrefix(name, "PrivateIpAddress") && err == nil &&
				m.primaries[c.Params["NetworkInterfaceId"]] == a {
				m.wrong("%s was to be unassigned: it is a primary address", a)
			}
		}
	}
	m.EC2.ResetCalls()
}

// verifyTagged checks that a node with several pools creates no ENI without tags, because only a tag names the pool.
func (m *model) verifyTagged(c ec2sim.Call) {
	if c.Action == book.CreateAction && m.policies[0].Pools && c.Code == "" &&
		c.Params["TagSpecification.1.ResourceType"] == "" && !m.operated {
		m.wrong("%v: it has no tags, and there are several pools", c)
	}
}

// attached returns the ENIs of the node.
func (m *model) attached() []ec2sim.ENI {
	return slices.DeleteFunc(m.EC2.ENIs(), func(e ec2sim.ENI) bool { return e.Instance != m.ID })
}

// carrier returns the ENI of the node that has the address.
func (m *model) carrier(a netip.Addr) string {
	for _, e := range m.attached() {
		if slices.Contains(e.Addrs, a) || slices.Contains(e.IPv6Addrs, a) ||
			slices.ContainsFunc(slices.Concat(e.Prefixes, e.IPv6Prefixes),
				func(c netip.Prefix) bool { return c.Contains(a) }) {
			return e.ID
		}
	}
	return ""
}

// settle ends the history: nothing fails any more. It checks that a pod gets an address if the node can get one. When
// all pods have ended, it checks that everything is released.
func (m *model) settle() {
	m.logf("%s nothing fails any more", m.clock())
	for _, action := range actions {
		m.EC2.Fail(action, "InternalError", 0)
		m.EC2.Lose(action, 0)
		m.EC2.Script(action)
	}
	m.deny()
	m.confess()
	m.relent()
	m.retype()
	if m.chance(50) {
		time.Sleep(20 * time.Minute)
	} else {
		m.meddled = true // some of this may have been right only for a moment
	}
	if m.chance(30) {
		m.skew(pick(m.rng, -24*time.Hour, 24*time.Hour))
	}
	for range m.conflists() {
		p := m.newPod()
		if !m.kernel.start(m, p.ContainerID) {
			continue
		}
		if m.addOrFull(p); m.multus && p.alive && m.chance(50) {
			if second := m.newFurther(p); second != nil {
				m.addOrFull(second)
			}
		}
	}
	m.verify()
	m.verifyKnownSlots()
	for range m.rng.IntN(3) {
		m.reconfigure() // no ADD comes after this change
	}
	m.allow()
	m.logf("%s all pods go", m.clock())
	for _, p := range m.pods {
		if p.valid {
			m.end(p)
		}
	}
	m.kernel.clear(m)
	for _, p := range m.pods {
		p.alive, p.overtaken = false, false
	}
	_, _ = m.collectNow(less.Collection{Max: -1}, fate{}) // the addresses of these pods cool
	quiet := 0                                            // collections since the last that has ended leases
	for i := range 5 {
		time.Sleep(2 * time.Hour)
		// The first collection may find that the registry was wrong, and say so.
		done, err := m.collectNow(less.Collection{FreeAfter: time.Minute, Max: -1}, fate{})
		if err != nil && i > 0 {
			m.wrong("collect: %v", err)
		}
		m.verify()
		if quiet++; len(done.Ended) > 0 || i == 0 {
			quiet = 0 // the first collection only records which pods are missing
		}
		if quiet >= 2 && m.denied == nil {
			m.verifyEnded()
		}
	}
	m.verifyEnd()
}

// verifyEnded checks that after two collections, no begun call is left unfinished.
func (m *model) verifyEnded() {
	for _, e := range m.EC2.ENIs() {
		if _, others := m.theirs[e.ID]; e.Status == "available" && !others && !m.abandoned[e.ID] &&
			e.Tags[book.TagManaged] == "true" {
			m.wrong("%s is left behind", e.ID)
		}
	}
}

// addOrFull adds a pod. The ADD must succeed if there is room. It may fail at first if an operator or a clock has
// changed something that the node has to find out. A runtime repeats the ADD. One ADD must succeed within reuseIPWait
// and the time limit of an ADD, or later if EC2 has refused something.
func (m *model) addOrFull(p *modelPod) {
	policy, began := p.asked[0], time.Now()
	m.added = began
	room := m.room(policy)
	m.logf("%s ADD %s: room %q", m.clock(), p.name(), room)
	for {
		var got lease.Allocation
		err := m.run(policy, fate{}, policy.Timeout, func(ctx context.Context, pool *Pool) (err error) {
			const tries = 8 // as plugin/chain
			for range tries {
				if got, err = m.obtain(ctx, pool, p.Owner, pool.Acquire); err != nil || !m.inUse(p, got.Addrs) {
					break
				}
			}
			return err
		})
		m.verifyCalls()
		m.logf("  %s has %v on %s, %v", p.name(), got.Addrs, got.ID, err)
		patience := policy.ReuseWait + policy.Timeout
		s, err2 := m.view()
		must(m, err2)
		// After a step of the clock, a refusal of EC2 counts again.
		switch now := time.Now(); {
		case now.Before(s.Instance.FullUntil):
			patience = registry.MostFull + policy.Timeout
		case now.Before(s.Instance.QuotaUntil):
			patience = registry.MostQuota + policy.Timeout
		case refusing(s):
			patience = max(patience, registry.MostRefusal+policy.Timeout)
		}
		late := !m.meddled || time.Since(began) > patience
		switch {
		case err == nil:
			m.answered(p, got)
			return
		case room == "":
			return
		case late:
			m.wrong("ADD fails for %v: %v; but %s", time.Since(began), err, room)
			return
		}
		must(m, m.run(lease.Policy{}, fate{}, time.Minute, func(ctx context.Context, pool *Pool) error {
			return pool.End(ctx, p.Key)
		}))
		time.Sleep(2 * time.Second)
	}
}

// room returns a text that says where an ADD could get addresses, or an empty text.
func (m *model) room(policy lease.Policy) string {
	if policy.Provision == lease.ProvisionNone {
		return ""
	}
	s, err := m.view()
	for _, e := range m.attached() {
		if _, given := m.given[e.ID]; given || e.ID == m.guest || e.EFAOnly || e.AttachmentStatus == "detaching" ||
			err == nil && s.ENIs[e.ID].Retired {
			continue
		}
		pool := ""
		if e.Tags[book.TagPool] != lease.DefaultPool {
			pool = e.Tags[book.TagPool]
		}
		if e.Boot && policy.MinIndex > 0 || e.Index < policy.MinIndex || pool != policy.Pool ||
			len(policy.Families) > 1 || policy.Families[0] == lease.IPv6 {
			continue
		}
		lost := len(m.taken)+len(m.lost) > 0 // the node does not know of this loss before a collection
		if !lost && len(e.Addrs)+len(e.Prefixes) < m.limits.IPv4PerENI && m.left(e.Subnet) > 0 {
			return e.ID + " has a slot"
		}
	}
	creates := policy.Provision == lease.ProvisionFull && !(m.tagless && policy.Pools)
	if creates && m.slots() > m.detached(policy.Pool) {
		for _, subnet := range []string{"subnet-pod0", "subnet-pod1"} {
			if m.left(subnet) > 0 {
				return subnet + " has room for an ENI"
			}
		}
	}
	return ""
}

// detached counts the ENIs of a pool that were made for this node, and that an operator has detached. An ADD attaches
// such an ENI again, because running pods may have its addresses.
func (m *model) detached(pool string) (n int) {
	for _, e := range m.EC2.ENIs() {
		ours := (e.Tags[book.TagInstance] == m.ID || e.Description == book.Description(m.ID)) &&
			strings.TrimPrefix(e.Tags[book.TagPool], lease.DefaultPool) == pool
		if e.Status == "available" && ours {
			n++
		}
	}
	return n
}

// left returns the number of free addresses of a subnet.
func (m *model) left(subnet string) int {
	const reserved = 5
	n := -1
	for _, e := range m.EC2.ENIs() {
		if e.Subnet == subnet {
			if n < 0 {
				n = 1<<(32-e.CIDR.Bits()) - reserved
			}
			n -= len(e.Addrs) + book.BlockSize*len(e.Prefixes)
		}
	}
	if n < 0 && subnet == "subnet-pod0" {
		return 1 // no ENI is in this subnet yet
	}
	return n
}

// verifyEnd checks that nothing is lost when all pods have ended and collections have run.
func (m *model) verifyEnd() {
	m.verifyDetached()
	m.verifyMade()
	s, err := m.view()
	if err != nil {
		m.wrong("%v", err)
		return
	}
	for _, e := range m.EC2.ENIs() {
		if e.Instance != m.ID || e.ID == m.guest {
			continue
		}
		known := s.ENIs[e.ID]
		for i, a := range slices.Concat(e.Addrs, e.IPv6Addrs) {
			if !known.Has(a) {
				m.wrong("%s of %s is not known to the registry", a, e.ID)
			}
			// After a loss of the registry or of an answer, the node takes the first IPv6 address of the boot ENI for
			// its own.
			unclear := i == len(e.Addrs)
			if own := e.Boot && (i == 0 || unclear); !s.Free.Has(a) && !own {
				m.wrong("%s of %s is not free", a, e.ID)
			}
		}
		for _, c := range slices.Concat(e.Prefixes, e.IPv6Prefixes) {
			if !known.Has(c.Addr()) {
				m.wrong("%s of %s is not known to the registry", c, e.ID)
			}
		}
		if e.Tags[book.TagManaged] == "true" && !m.keep(book.PoolOf(aws.ENI{Tags: e.Tags})) {
			m.wrong("%s is empty and ours, and was not deleted", e.ID)
		}
	}
	for a, l := range s.Leases.All() {
		m.wrong("%s is still leased by %s", a, l.Key)
	}
	for token, i := range s.Intents {
		if time.Since(i.Since) > intentLife {
			m.wrong("intent %s of %v", token, i)
		}
	}
	if r := s.Rebuilt; !r.Since.IsZero() && time.Since(r.Since) > intentLife {
		m.wrong("a registry rebuilt at %v is still compared with EC2", r.Since)
	}
	for who, w := range s.Waiters {
		// The next ADD would remove an old waiter. After a step of the clock, a waiter may end later than all ADDs.
		if m.added.After(w.Until) {
			m.wrong("%s is a waiter until %v", who, w.Until)
		}
	}
}
