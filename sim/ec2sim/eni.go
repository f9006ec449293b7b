// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// subnet is the state of a Subnet. It has a space for each of its families.
type subnet struct {
	Subnet
	v4, v6 *space
}

func newSubnet(c Subnet) *subnet {
	sub := &subnet{Subnet: c}
	if c.CIDR.IsValid() {
		sub.v4 = &space{c.CIDR, prefixBits4, newBitmap(c.CIDR)}
	}
	if c.IPv6CIDR.IsValid() {
		sub.v6 = &space{c.IPv6CIDR, prefixBits6, newSparse(c.IPv6CIDR)}
	}
	return sub
}

// freeIPv4 returns the number of free IPv4 addresses. EC2 does not count IPv6 addresses.
func (sub *subnet) freeIPv4() int {
	if sub.v4 == nil {
		return 0
	}
	return sub.v4.pool.freeAddrs()
}

// eni is the state of a network interface.
type eni struct {
	id              string
	mac             string
	description     string
	subnet          *subnet
	groups          []string
	v4              holding // the primary address first; empty in a subnet without IPv4, and if efaOnly is true
	v6              holding
	publicIP        netip.Addr
	sourceDestCheck bool
	tracking        Tracking
	tags            map[string]string
	efaOnly         bool        // an EFA-only ENI has no address
	token           string      // the client token of its creation, if any
	findableFrom    time.Time   // actions find the ENI from this time on: see Lag
	attachment      *attachment // nil if there is none
}

// attachment attaches an eni to an instance.
type attachment struct {
	id                  string
	instance            *Instance
	index, card         int
	status              string // attaching, attached, detaching
	plugged             bool   // metadata and the listeners (Sim.OnChange) know that the ENI is attached
	since               time.Time
	deleteOnTermination bool
	boot                bool // the ENI is the boot ENI
}

// A spec describes a new eni.
type spec struct {
	primary netip.Addr // zero: EC2's choice
	v4, v6  demand     // v4 does not include the primary address
}

// validate checks the demand of each family: see demand.check.
func (w spec) validate() error { return cmp.Or(w.v4.check("IPv4", 0), w.v6.check("IPv6", 0)) }

// newENI creates an eni with all addresses and prefixes of the spec. If an address or prefix is not available, newENI
// returns an error, and creates nothing.
func (s *Sim) newENI(sub *subnet, groups []string, w spec) (*eni, error) {
	v4, err := sub.takeIPv4(w)
	if err != nil {
		return nil, err
	}
	v6, err := sub.takeIPv6(sub.withDefaultIPv6(w.v6))
	if err != nil {
		sub.returnBlocks(v4, holding{})
		return nil, err
	}
	e := s.bareENI(sub, groups)
	e.v4, e.v6 = v4, v6
	return e, nil
}

// bareENI creates an eni without addresses.
func (s *Sim) bareENI(sub *subnet, groups []string) *eni {
	n := s.nextNumber("eni")
	e := &eni{
		id: fmt.Sprintf("eni-%017x", n),
		// Like the MAC addresses of EC2, this address is unicast and locally administered.
		mac: fmt.Sprintf("06:%02x:%02x:%02x:%02x:%02x", byte(s.cfg.MACs>>8), byte(s.cfg.MACs), byte(n>>16),
			byte(n>>8), byte(n)),
		subnet:          sub,
		groups:          slices.Clone(groups),
		sourceDestCheck: true,
		tags:            map[string]string{},
	}
	s.enis[e.id] = e
	return e
}

// interfaceType returns EC2's name for the type of the ENI (API: NetworkInterface).
func (e *eni) interfaceType() string {
	if e.efaOnly {
		return "efa-only"
	}
	return "interface"
}

func (sub *subnet) takeIPv4(w spec) (h holding, err error) {
	if sub.v4 == nil {
		if w.primary.IsValid() || !w.v4.isEmpty() {
			return holding{}, noFamily(sub, "IPv4")
		}
		return holding{}, nil
	}
	if h.addrs, err = sub.v4.takeFirst(w.primary, w.v4.addrs, intValue(w.v4.count)); err != nil {
		return holding{}, err
	}
	if h.prefixes, err = sub.v4.takePrefixes(w.v4.prefixes, intValue(w.v4.prefixCount)); err != nil {
		sub.v4.pool.putBack(singleBlocks(h.addrs)...)
		return holding{}, atCreation(err, "Ipv4")
	}
	return h, nil
}

// withDefaultIPv6 completes a request's demand for IPv6. If the request does not mention IPv6 and the subnet has
// AssignIPv6, the ENI gets one address. If the request asks for 0 addresses, the ENI gets none (API:
// CreateNetworkInterface, Ipv6AddressCount). In a subnet without IPv4, each ENI gets at least one address. This is a
// guess.
func (sub *subnet) withDefaultIPv6(d demand) demand {
	if d.isEmpty() && sub.AssignIPv6 || d.slots() == 0 && sub.v4 == nil {
		return demand{count: new(1)}
	}
	return d
}

// takeIPv6 takes the IPv6 addresses or prefixes of a new eni from the subnet.
func (sub *subnet) takeIPv6(d demand) (holding, error) {
	switch {
	case d.slots() == 0:
		return holding{}, nil
	case sub.v6 == nil:
		return holding{}, noFamily(sub, "IPv6")
	}
	h, err := sub.v6.takeDemand(d, "InvalidIPAddress.InUse")
	return h, atCreation(err, "Ipv6")
}

func (sub *subnet) returnBlocks(v4, v6 holding) {
	if sub.v4 != nil {
		sub.v4.pool.putBack(v4.blocks()...)
	}
	if sub.v6 != nil {
		sub.v6.pool.putBack(v6.blocks()...)
	}
}

func (s *Sim) deleteENI(e *eni) {
	e.subnet.returnBlocks(e.v4, e.v6)
	s.retireToken(e)
	delete(s.enis, e.id)
}

// ownerOf returns the eni that has this IPv4 address of the subnet, as a single address or in a prefix; nil if there is
// none.
func (s *Sim) ownerOf(sub *subnet, a netip.Addr) *eni {
	for _, e := range s.enis {
		if e.subnet == sub && e.v4.contains(a) {
			return e
		}
	}
	return nil
}

// primary returns the primary address, or zero if the eni has no IPv4.
func (e *eni) primary() netip.Addr {
	if len(e.v4.addrs) == 0 {
		return netip.Addr{}
	}
	return e.v4.addrs[0]
}

// maxSlots returns how many addresses and prefixes of each family the eni may have. The documentation names no limit
// for an unattached ENI. In the simulator, an unattached ENI has the limit of the largest instance type.
func (s *Sim) maxSlots(e *eni) (v4, v6 int) {
	if e.attachment != nil {
		return e.attachment.instance.limits.IPv4PerENI, e.attachment.instance.limits.IPv6PerENI
	}
	return s.maxIPv4, s.maxIPv6
}

// snapshot returns the exported view of the eni.
func (e *eni) snapshot() ENI {
	v := ENI{
		ID:              e.id,
		MAC:             e.mac,
		Description:     e.description,
		Subnet:          e.subnet.ID,
		CIDR:            e.subnet.CIDR,
		IPv6CIDR:        e.subnet.IPv6CIDR,
		VPC:             e.subnet.VPC,
		Zone:            e.subnet.Zone,
		SecurityGroups:  slices.Clone(e.groups),
		Addrs:           slices.Clone(e.v4.addrs),
		Prefixes:        slices.Clone(e.v4.prefixes),
		IPv6Addrs:       slices.Clone(e.v6.addrs),
		IPv6Prefixes:    slices.Clone(e.v6.prefixes),
		PublicIP:        e.publicIP,
		SourceDestCheck: e.sourceDestCheck,
		EFAOnly:         e.efaOnly,
		Tracking:        e.tracking,
		Tags:            maps.Clone(e.tags),
		Status:          e.status(),
	}
	if a := e.attachment; a != nil {
		v.Attachment, v.AttachmentStatus, v.DeleteOnTermination = a.id, a.status, a.deleteOnTermination
		v.Instance, v.Index, v.Card, v.Boot = a.instance.ID, a.index, a.card, a.boot
	}
	return v
}

// enisOf returns the enis of an instance: first the boot ENI, and then the others in the order of cards and device
// indices.
func (s *Sim) enisOf(i *Instance) []*eni {
	var enis []*eni
	for _, e := range s.enis {
		if e.attachment != nil && e.attachment.instance == i {
			enis = append(enis, e)
		}
	}
	slices.SortFunc(enis, func(x, y *eni) int {
		a, b := x.attachment, y.attachment
		switch {
		case a.boot:
			return -1
		case b.boot:
			return 1
		}
		return cmp.Or(cmp.Compare(a.card, b.card), cmp.Compare(a.index, b.index))
	})
	return enis
}

// attach attaches the ENI to the instance, without a check of EC2's rules. The status becomes "attached" after the
// delay.
func (s *Sim) attach(e *eni, i *Instance, card, index int, delay time.Duration) *attachment {
	a := &attachment{
		id:       fmt.Sprintf("eni-attach-%017x", s.nextNumber("eni-attach")),
		instance: i, card: card, index: index, status: "attaching", since: time.Now(),
		boot: len(s.enisOf(i)) == 0, // the launch attaches the boot ENI first, so no other ENI is there yet
	}
	e.attachment = a
	s.runAfter(delay, func() {
		if e.attachment == a && a.status == "attaching" {
			a.status, a.plugged = "attached", true
			s.publishChange(Attached, e)
		}
	})
	return a
}

// detach begins to detach the ENI. The detachment ends after the delay.
func (s *Sim) detach(e *eni, delay time.Duration) {
	a := e.attachment
	a.status = "detaching"
	s.runAfter(delay, func() {
		if e.attachment == a {
			s.finishDetach(e)
		}
	})
}

func (s *Sim) finishDetach(e *eni) {
	was, a := e.snapshot(), e.attachment
	e.attachment = nil
	e.publicIP = netip.Addr{} // the ENI loses its public address (Guide: "Public IPv4 addresses")
	s.publishMetadata(a.instance)
	if a.plugged {
		s.queueChange(Change{Kind: Detached, Instance: a.instance.ID, ENI: was})
	}
}

// publishChange updates the instance's metadata, and reports a change of the ENI to the listeners. It does nothing
// before the ENI is plugged.
func (s *Sim) publishChange(kind ChangeKind, e *eni) {
	if a := e.attachment; a != nil && a.plugged {
		s.publishMetadata(a.instance)
		s.queueChange(Change{Kind: kind, Instance: a.instance.ID, ENI: e.snapshot()})
	}
}

// dnsName returns the private DNS name of an IPv4 address (VPC Guide: "DNS attributes for your VPC").
func (s *Sim) dnsName(a netip.Addr) string {
	return "ip-" + strings.ReplaceAll(a.String(), ".", "-") + "." + s.domain()
}

func (s *Sim) domain() string {
	if s.cfg.Region == "us-east-1" {
		return "ec2.internal"
	}
	return s.cfg.Region + ".compute.internal"
}
