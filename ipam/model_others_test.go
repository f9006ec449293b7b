// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// Others also change EC2. There is a second node. An operator detaches ENIs of the node under test, moves them to the
// second node, and unassigns addresses, also those of pods.
//
// The node must not change what others own: an ENI on another instance, and an ENI that its owner has tagged no_manage.
//
// Until the node looks, it cannot know what others have taken. Until then, a pod may get an address that is gone. A
// collection notices the loss if it begins at least two minutes later, and EC2 and metadata answer it correctly. After
// this collection, no pod may get the address.
const noticed = 2 * time.Minute // longer than EC2 lags behind itself, and than metadata lags behind EC2

// others launches the second node in some histories, and makes ENIs that the node under test must not change.
func (m *model) others() {
	if !m.chance(60) {
		return
	}
	second, err := m.EC2.RunInstance(ec2sim.RunInstance{Type: m.limits.Name, Subnet: "subnet-node"})
	must(m, err)
	m.second = second
	attached := m.make(second.ID, "true", 1)
	card, index, _ := m.freeSlot(second)
	m.attach(attached, second.ID, card, index)
	m.make(second.ID, "true", 1) // the second node has created this ENI, and has not attached it yet
	if m.limits.ENIs > 2 && m.chance(40) && (m.limits.Cards == nil || m.slots() > 1) {
		guest := m.make("", "", 1, "node.k8s.amazonaws.com/no_manage", "true")
		card, index := m.lastSlot()
		m.attach(guest, m.ID, card, index)
		m.guest = guest
	}
	time.Sleep(5 * time.Second) // the longest delay
	for _, e := range m.EC2.ENIs() {
		if e.Instance == second.ID || e.Description == book.Description(second.ID) || e.ID == m.guest {
			m.theirs[e.ID] = e
		}
	}
	m.logf("theirs are %v, the guest is %q", slices.Sorted(maps.Keys(m.theirs)), m.guest)
}

// make creates an ENI with these tags; secondary is the number of its secondary addresses. With an instance, the ENI is
// like one that our plugin on this instance has created. Without an instance, it is like one that a person has created.
func (m *model) make(instance, managed string, secondary int, tags ...string) (id string) {
	params := []string{"SubnetId", "subnet-node", "SecondaryPrivateIpAddressCount", fmt.Sprint(secondary)}
	if instance != "" {
		params = append(params, "Description", book.Description(instance))
		tags = append(tags, book.TagManaged, managed, book.TagInstance, instance, book.TagPool, lease.DefaultPool)
	}
	for i := 0; i < len(tags); i += 2 {
		at := fmt.Sprintf("TagSpecification.1.Tag.%d.", i/2+1)
		params = append(params, at+"Key", tags[i], at+"Value", tags[i+1])
	}
	if len(tags) > 0 {
		params = append(params, "TagSpecification.1.ResourceType", "network-interface")
	}
	m.Operate("CreateNetworkInterface", params...)
	time.Sleep(6 * time.Second) // EC2 may lag behind itself
	all := m.EC2.ENIs()
	return all[len(all)-1].ID
}

func (m *model) attach(eni, instance string, card, index int) {
	m.Operate("AttachNetworkInterface", "NetworkInterfaceId", eni, "InstanceId", instance, "NetworkCardIndex",
		fmt.Sprint(card), "DeviceIndex", fmt.Sprint(index))
}

// podENI returns one of the node's ENIs that an operator can detach.
func (m *model) podENI() (ec2sim.ENI, bool) {
	of := slices.DeleteFunc(m.attached(), func(e ec2sim.ENI) bool {
		_, given := m.given[e.ID]
		return e.Boot || e.AttachmentStatus != "attached" || e.ID == m.guest || e.EFAOnly || given
	})
	if len(of) == 0 {
		return ec2sim.ENI{}, false
	}
	return pick(m.rng, of...), true
}

// detach: an operator detaches an ENI, and may attach it to the second node.
func (m *model) detach() {
	e, ok := m.podENI()
	if !ok {
		return
	}
	m.meddled = true
	m.takes(slices.Concat(e.Addrs, e.IPv6Addrs), slices.Concat(e.Prefixes, e.IPv6Prefixes))
	m.away[e.ID], m.moved[e.ID] = time.Now(), true
	m.Operate("DetachNetworkInterface", "AttachmentId", e.Attachment, "Force", "true")
	time.Sleep(5 * time.Second)
	card, index, found := 0, 0, false
	if m.second != nil {
		card, index, found = m.freeSlot(m.second)
	}
	if !found || m.chance(40) {
		m.logf("%s an operator has detached %s", m.clock(), e.ID)
		return
	}
	m.attach(e.ID, m.second.ID, card, index)
	time.Sleep(5 * time.Second)
	m.logf("%s an operator has moved %s to %s", m.clock(), e.ID, m.second.ID)
	m.theirs[e.ID] = *m.find(e.ID)
}

func (m *model) find(eni string) *ec2sim.ENI {
	for _, e := range m.EC2.ENIs() {
		if e.ID == eni {
			return &e
		}
	}
	return nil
}

// unassign: an operator unassigns an address or a prefix from an ENI.
func (m *model) unassign() {
	e, ok := m.podENI()
	if !ok {
		return
	}
	params := []string{"NetworkInterfaceId", e.ID}
	switch {
	case len(e.Prefixes) > 0:
		c := pick(m.rng, e.Prefixes...)
		m.takes(nil, []netip.Prefix{c})
		params = append(params, "Ipv4Prefix.1", c.String())
	case len(e.Addrs) > 1:
		a := pick(m.rng, e.Addrs[1:]...)
		m.takes([]netip.Addr{a}, nil)
		params = append(params, "PrivateIpAddress.1", a.String())
	default:
		return
	}
	m.meddled = true
	m.logf("%s an operator unassigns %v", m.clock(), params)
	m.Operate("UnassignPrivateIpAddresses", params...)
}

// takes records what the node loses, and which pods lose their addresses.
func (m *model) takes(addrs []netip.Addr, cidrs []netip.Prefix) {
	lost := func(a netip.Addr) bool {
		return slices.Contains(addrs, a) || slices.ContainsFunc(cidrs,
			func(c netip.Prefix) bool { return c.Contains(a) })
	}
	for _, a := range addrs {
		m.taken[a] = time.Now()
	}
	for _, c := range cidrs {
		m.lost = append(m.lost, taken{c, time.Now()})
	}
	for _, p := range m.pods {
		p.robbed = p.robbed || slices.ContainsFunc(p.addrs, lost)
	}
}

// taken is a prefix that an operator has taken, and when.
type taken struct {
	cidr netip.Prefix
	when time.Time
}

// excused reports whether the node cannot know yet that an address has left this ENI.
func (m *model) excused(eni string, a netip.Addr) bool {
	_, one := m.taken[a]
	_, all := m.away[eni]
	return one || all || slices.ContainsFunc(m.lost, func(t taken) bool { return t.cidr.Contains(a) })
}

// notice forgets the losses that a collection must have noticed; began is the time when the collection began. The
// collection notices no lost address of an ENI that has just grown, because EC2 may not show all addresses of this ENI
// yet.
func (m *model) notice(began time.Time) {
	s, err := m.view()
	must(m, err)
	past := func(when time.Time) bool { return began.Sub(when) >= noticed }
	grown := func(a netip.Addr) bool { _, e := s.ENIOf(a); return began.Sub(e.Grown) <= known.Settled }
	maps.DeleteFunc(m.taken, func(a netip.Addr, when time.Time) bool { return past(when) && !grown(a) })
	maps.DeleteFunc(m.away, func(_ string, when time.Time) bool { return past(when) })
	m.lost = slices.DeleteFunc(m.lost, func(t taken) bool { return past(t.when) })
}

// verifyTheirs checks that the node has not changed what others own.
func (m *model) verifyTheirs() {
	for id, was := range m.theirs {
		is := m.find(id)
		switch {
		case is == nil:
			m.wrong("%s of others is deleted", id)
			delete(m.theirs, id)
		case is.Instance != was.Instance || is.Attachment != was.Attachment:
			m.wrong("%s of others was on %q and is on %q", id, was.Instance, is.Instance)
			delete(m.theirs, id)
		case !has(is.Addrs, was.Addrs) || !has(is.Prefixes, was.Prefixes) || !has(is.IPv6Addrs, was.IPv6Addrs) ||
			!has(is.IPv6Prefixes, was.IPv6Prefixes):
			m.wrong("%s of others has lost some of %v %v %v %v", id, was.Addrs, was.Prefixes, was.IPv6Addrs,
				was.IPv6Prefixes)
			delete(m.theirs, id)
		}
	}
}

func has[T comparable](all, these []T) bool {
	return !slices.ContainsFunc(these, func(t T) bool { return !slices.Contains(all, t) })
}
