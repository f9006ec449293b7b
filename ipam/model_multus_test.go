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

// In some histories, a pod has a second attachment, net1, as with Multus. This is another ADD for the same container
// and namespace, in the same network or another one. Each attachment keeps its own addresses until its own DEL, in any
// order of the DELs. The node has no pair for net1, and no route to net1: only the pod's namespace shows the addresses
// of net1.
//
// A DEL may overtake the ADD of net1. The runtime then does not know this attachment, but the ADD may still succeed. If
// the leases of net1 have ended by then, the kernel refuses the addresses of net1 to other pods. The reason is that two
// slaves of one ENI cannot have the same address.

const furtherName = "net1"

// name returns the container's ID. For net1, name adds the names of the network and the interface.
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

// unlink does what a DEL does in the kernel. The namespace ends with the DEL of the pod's last attachment. In some
// cases, the namespace ends earlier, so DELs of the pod's other attachments find no namespace.
func (m *model) unlink(p *modelPod) {
	p.overtaken = false
	switch others := m.siblings(p); {
	case len(others) == 0 || p.valid && m.chance(25):
		m.stop(p)
	default:
		m.kernel.unwire(m, p.ContainerID, p.Key.String())
	}
}

// stop ends the namespace of a pod, and with it all attachments of the pod.
func (m *model) stop(p *modelPod) {
	for _, o := range m.pods {
		if o.ContainerID == p.ContainerID {
			m.noteEnd(o)
			o.alive, o.overtaken = false, false
		}
	}
	m.kernel.stop(m, p.ContainerID)
}

// omits chooses whether the list of a GC lacks this attachment, as the list of a runtime that knows nothing of Multus.
func (m *model) omits(p *modelPod) bool {
	return m.multus && (p.alive || !p.busy) && len(m.siblings(p)) > 0 && m.chance(25)
}

// further is the ADD of net1 for a running pod, or a repetition of such an ADD.
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

// newFurther returns a new attachment net1 of a pod, or nil. If the pod already had a net1 in the same network, the new
// attachment replaces it, because both have the same key.
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

// askFurther lets net1 ask for an interface, in some cases. The request is in args.cni, where Multus puts it.
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

// fateOfFurther chooses what happens while an ADD of net1 asks EC2.
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

// beside chooses what happens to a pod during the ADD of net1: the first attachment's DEL, the pod's end, or a GC.
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

// mustEnd does what ipam does in a DEL. In some cases, the DEL names no addresses, because the runtime has no result of
// the ADD.
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

// link chooses the result of the plugins that follow ipam in an ADD. They fail if the pod is gone, or if another
// namespace has one of the addresses. If the leases have ended by then, link adds the pod's objects nevertheless.
func (m *model) link(p *modelPod, all []lease.Allocation) error {
	if p.IfName == furtherName && m.chance(15) {
		m.beside(p)
	}
	if m.kernel.netSlot(p.ContainerID) == nil {
		m.logf("  the namespace of %s is gone", p.name())
		p.alive = false
		if m.chance(50) { // as when one process runs all plugins
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
	case !p.valid && !m.leased(addrs): // a GC whose list lacked the attachment has ended the leases
	case p.IfName == furtherName && !p.alive && m.chance(8):
		m.logf("  DEL of %s overtakes the links of its ADD", p.name())
		p.addrs, p.valid = addrs, false
		m.mustEnd(p)
	default:
		return nil
	}
	p.alive, p.addrs, p.overtaken = false, addrs, true // the kernel has the addresses, although their leases have ended
	m.kernel.wire(m, p.ContainerID, p.Key.String(), addrs, len(all[0].Addrs), false)
	return nil
}

// leased reports whether all of these addresses have leases.
func (m *model) leased(addrs []netip.Addr) bool {
	s, err := m.view()
	return err != nil || !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !s.Leases.Has(a) })
}

// inUse reports whether the kernel refuses an address to a pod. It records such an address in the registry, as
// [lease.NotesUse] does.
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

// verifySeen checks, after a collection, that each address in a namespace or in a host route has a lease.
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
