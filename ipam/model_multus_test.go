// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// In some histories, a pod has a second attachment, net1, as Multus makes it: another ADD for the same container and
// namespace, in the same network or another one. Each attachment keeps its own addresses until its own DEL, in any
// order of the DELs. The node has no pair for net1, and no route to it: only the pod's namespace shows its addresses.
//
// A DEL may overtake the ADD of net1. The runtime then does not know this attachment, but the ADD may still succeed. If
// its lease has ended, the kernel refuses its addresses to other pods, because two slaves of one ENI cannot have the
// same address.

const furtherName = "net1"

// name returns the name of the container, and of a further attachment.
func (p *modelPod) name() string {
	if p.IfName == furtherName {
		return p.ContainerID + "/" + p.Network + "/" + p.IfName
	}
	return p.ContainerID
}

// siblings returns the other attachments of a pod's container that the runtime or the kernel knows.
func (m *model) siblings(p *modelPod) (all []*modelPod) {
	for _, o := range m.pods {
		if o != p && o.ContainerID == p.ContainerID && (o.alive || o.valid) {
			all = append(all, o)
		}
	}
	return all
}

// unlink is what a DEL does in the kernel. The last attachment's namespace ends with it. The namespace may also end
// earlier, and the other DELs then come without it.
func (m *model) unlink(p *modelPod) {
	p.overtaken = false
	switch others := m.siblings(p); {
	case len(others) == 0 || p.valid && m.chance(25):
		m.stop(p)
	default:
		m.kernel.unwire(m, p.ContainerID, p.Key.String())
	}
}

// stop ends the namespace of a pod, with all of its attachments.
func (m *model) stop(p *modelPod) {
	for _, o := range m.pods {
		if o.ContainerID == p.ContainerID {
			m.noteEnd(o)
			o.alive, o.overtaken = false, false
		}
	}
	m.kernel.stop(m, p.ContainerID)
}

// omits reports whether the list of a GC lacks this attachment, because the runtime does not know Multus.
func (m *model) omits(p *modelPod) bool {
	return m.multus && (p.alive || !p.busy) && len(m.siblings(p)) > 0 && m.chance(25)
}

// further is the ADD of net1 for a running pod, or its repetition.
func (m *model) further() {
	p := m.choose(func(p *modelPod) bool {
		return !p.alive && p.valid && p.IfName == furtherName && m.kernel.netSlot(p.ContainerID) != nil
	})
	if p == nil || m.chance(60) {
		of := m.choose(func(p *modelPod) bool {
			return p.alive && p.valid && !p.original && p.IfName != furtherName && len(m.siblings(p)) == 0 &&
				m.kernel.attachments(p.ContainerID) == 1
		})
		if of == nil {
			return
		}
		if p = m.newFurther(of); p == nil {
			return
		}
		m.askFurther(p)
	}
	m.acquire(p)
	switch first := m.choose(func(o *modelPod) bool { return slices.Contains(m.siblings(p), o) && o.valid }); {
	case p.alive || !p.valid:
	case m.chance(40):
		m.end(p)
	case first != nil && m.chance(50): // the runtime gives the pod up
		if m.chance(50) {
			m.end(first)
			m.end(p)
		} else {
			m.end(p)
			m.end(first)
		}
	}
}

// newFurther returns net1 of a pod. If the runtime has deleted it before, it has the same key again.
func (m *model) newFurther(of *modelPod) *modelPod {
	i := of.policy
	var others []int
	for j, n := range m.nets {
		if n.name != of.Network && !n.removed {
			others = append(others, j)
		}
	}
	if len(others) > 0 && m.chance(50) {
		i = pick(m.rng, others...)
	}
	if m.nets[i].removed {
		return nil
	}
	p := &modelPod{Owner: of.Owner, policy: i, valid: true}
	p.Network, p.IfName = m.nets[i].name, furtherName
	if at := slices.IndexFunc(m.pods, func(o *modelPod) bool { return o.Key == p.Key }); at >= 0 {
		if m.pods[at].busy {
			return nil // the DEL has overtaken its ADD
		}
		*m.pods[at] = *p
		p = m.pods[at]
	} else {
		m.pods = append(m.pods, p)
	}
	p.asked = []lease.Policy{m.policies[i]}
	return p
}

// askFurther lets net1 ask for its own interface, as Multus passes the request on.
func (m *model) askFurther(p *modelPod) {
	if m.conf == nil || !m.chance(40) {
		return
	}
	c := *m.conf
	text := pick(m.rng, `{"exclusive": true}`, `{"eni": "`+pick(m.rng, slices.Sorted(maps.Keys(m.given))...)+`"}`,
		`{"securityGroups": ["sg-2"]}`)
	c.Args.CNI = json.RawMessage(text)
	policies, err := c.Interfaces(p.Network, p.IfName, p.Pod)
	must(m, err)
	p.asked = policies
	m.logf("%s asks for %s", p.name(), text)
}

// fateOfFurther chooses what happens around an ADD of net1 that asks EC2.
func (m *model) fateOfFurther(p *modelPod) fate {
	f := fate{at: 1 + m.rng.IntN(3), after: m.chance(50)}
	f.meet = func() {
		for range 1 + m.rng.IntN(3) {
			pick(m.rng, (*model).lose, (*model).collect, func(m *model) { m.overtake(p) },
				func(m *model) { m.beside(p) })(m)
			m.verify()
		}
	}
	return f
}

// overtake is the DEL of a further attachment whose ADD is under way.
func (m *model) overtake(p *modelPod) {
	if !p.valid {
		return
	}
	m.logf("%s DEL of %s overtakes its ADD", m.clock(), p.name())
	p.alive, p.valid = false, false
	m.kernel.unwire(m, p.ContainerID, p.Key.String())
	m.mustEnd(p)
}

// beside happens to a pod during its further ADD: the DEL of its first attachment, a GC, or the end of both.
func (m *model) beside(p *modelPod) {
	first := m.choose(func(o *modelPod) bool { return o.alive && o.ContainerID == p.ContainerID })
	switch n := m.rng.IntN(3); {
	case n == 0 && first != nil:
		m.end(first)
	case n == 1 && first != nil:
		m.logf("%s dies", p.name())
		m.stop(first)
	default:
		m.retain()
	}
}

// mustEnd is what ipam does in a DEL. A runtime may have no result of the ADD.
func (m *model) mustEnd(p *modelPod) {
	hints := p.addrs
	if m.multus && m.chance(15) {
		hints = nil
	}
	err := m.run(lease.Policy{}, fate{}, time.Minute, func(ctx context.Context, pool *Pool) error {
		return pool.End(ctx, p.Key, hints...)
	})
	if err != nil {
		m.wrong("DEL of %s: %v", p.name(), err)
	}
	m.damaged = false
}

// link does the work of the plugins after ipam in an ADD. They fail if the pod is gone, or if another namespace has an
// address.
func (m *model) link(p *modelPod, all []lease.Allocation) error {
	if p.IfName == furtherName && m.chance(15) {
		m.beside(p)
	}
	if m.kernel.netSlot(p.ContainerID) == nil {
		m.logf("  the namespace of %s is gone", p.name())
		p.alive = false
		if m.chance(50) { // in one process
			m.mustEnd(p)
		}
		return errors.New("no namespace")
	}
	var addrs []netip.Addr
	for _, got := range all {
		addrs = append(addrs, got.Addrs...)
	}
	if m.inUse(p, addrs) {
		p.alive = false
		return errors.New("in use")
	}
	switch {
	case !p.valid && !m.leased(addrs): // a GC has come, which does not know of it any more
	case p.IfName == furtherName && !p.alive && m.chance(8):
		m.logf("  DEL of %s overtakes the links of its ADD", p.name())
		p.addrs, p.valid = addrs, false
		m.mustEnd(p)
	default:
		return nil
	}
	p.alive, p.addrs, p.overtaken = false, addrs, true // and in the kernel it is linked nevertheless
	m.kernel.wire(m, p.ContainerID, p.Key.String(), addrs, len(all[0].Addrs), false)
	return nil
}

// leased reports whether all of these addresses have leases.
func (m *model) leased(addrs []netip.Addr) bool {
	s, err := m.view()
	return err != nil || !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !s.Leases.Has(a) })
}

// inUse reports whether the kernel refuses an address to a pod. It records this as [lease.NotesUse] does.
func (m *model) inUse(p *modelPod, addrs []netip.Addr) bool {
	linked := m.kernel.addrs()
	taken := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
		return !slices.ContainsFunc(m.pods, func(o *modelPod) bool {
			return o.overtaken && o != p && linked[a] == o.Key.String()
		})
	})
	if len(taken) == 0 {
		return false
	}
	m.logf("  the kernel refuses %v to %s", taken, p.name())
	must(m, m.run(lease.Policy{}, fate{}, time.Minute, func(ctx context.Context, pool *Pool) error {
		return pool.Registry.Change(ctx, func(s *registry.State) {
			for _, a := range s.Held(p.Key) {
				if l, _ := s.Leases.At(a); slices.Contains(taken, a) {
					s.Found(a, registry.Lease{ENI: l.ENI, Bound: true, Since: time.Now()})
				} else {
					s.End(a, time.Time{})
				}
			}
		})
	}))
	return true
}

// verifySeen checks that after a collection, each address in a namespace has a lease.
func (m *model) verifySeen() {
	s, err := m.view()
	if err != nil {
		return
	}
	for a, of := range m.kernel.addrs() {
		if id, e := s.ENIOf(a); id != "" && !e.Foreign && !s.Leases.Has(a) {
			m.wrong("the collection has seen that %s has %s of %s, and it has no lease", of, a, id)
		}
	}
}
