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

// subnet is a Subnet at work.
type subnet struct {
	Subnet
	pool *pool
}

// eni is a network interface at work.
type eni struct {
	id              string
	mac             string
	description     string
	subnet          *subnet
	groups          []string
	addrs           []netip.Addr // the primary address first; never empty
	prefixes        []netip.Prefix
	publicIP        netip.Addr
	sourceDestCheck bool
	tags            map[string]string
	attachment      *attachment // nil if there is none
}

// attachment is the tie of an eni to an instance.
type attachment struct {
	id                  string
	instance            *Instance
	index, card         int
	status              string // attaching, attached, detaching
	plugged             bool   // metadata and listeners have been told that it is attached
	since               time.Time
	deleteOnTermination bool
}

// newENI makes an eni of blocks that its subnet has given.
func (s *Sim) newENI(sub *subnet, groups []string, as []netip.Addr, prefixes []netip.Prefix) *eni {
	n := s.count("eni")
	e := &eni{
		id: fmt.Sprintf("eni-%017x", n),
		// EC2's are unicast and locally administered as well.
		mac:             fmt.Sprintf("06:00:%02x:%02x:%02x:%02x", byte(n>>24), byte(n>>16), byte(n>>8), byte(n)),
		subnet:          sub,
		groups:          slices.Clone(groups),
		addrs:           as,
		prefixes:        prefixes,
		sourceDestCheck: true,
		tags:            map[string]string{},
	}
	s.enis[e.id] = e
	return e
}

// drop deletes an eni and frees its addresses.
func (s *Sim) drop(e *eni) {
	e.subnet.pool.give(singles(e.addrs)...)
	e.subnet.pool.give(e.prefixes...)
	delete(s.enis, e.id)
}

// owner returns the eni of the subnet that has the address, by itself or in a prefix.
func (s *Sim) owner(sub *subnet, a netip.Addr) *eni {
	for _, e := range s.enis {
		if e.subnet == sub && e.has(a) {
			return e
		}
	}
	return nil
}

func (e *eni) has(a netip.Addr) bool {
	return slices.Contains(e.addrs, a) || slices.ContainsFunc(e.prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// slots is how many of the addresses that its instance type allows the eni uses; a prefix counts as one (Guide:
// "Prefix delegation for Amazon EC2 network interfaces").
func (e *eni) slots() int { return len(e.addrs) + len(e.prefixes) }

// maxSlots is how many it may use. EC2 does not say what binds an ENI that is attached nowhere; here it is the largest
// of all instance types, and attaching it to a smaller one is refused.
func (s *Sim) maxSlots(e *eni) int {
	if e.attachment != nil {
		return e.attachment.instance.limits.IPv4PerENI
	}
	return s.maxIPv4
}

// snapshot is the eni for people outside.
func (e *eni) snapshot() ENI {
	v := ENI{
		ID:              e.id,
		MAC:             e.mac,
		Description:     e.description,
		Subnet:          e.subnet.ID,
		CIDR:            e.subnet.CIDR,
		VPC:             e.subnet.VPC,
		Zone:            e.subnet.Zone,
		SecurityGroups:  slices.Clone(e.groups),
		Addrs:           slices.Clone(e.addrs),
		Prefixes:        slices.Clone(e.prefixes),
		PublicIP:        e.publicIP,
		SourceDestCheck: e.sourceDestCheck,
		Tags:            maps.Clone(e.tags),
		Status:          e.status(),
	}
	if a := e.attachment; a != nil {
		v.Attachment, v.AttachmentStatus, v.DeleteOnTermination = a.id, a.status, a.deleteOnTermination
		v.Instance, v.Index, v.Card = a.instance.ID, a.index, a.card
	}
	return v
}

// attached are the enis of an instance, by card and device index.
func (s *Sim) attached(i *Instance) []*eni {
	var enis []*eni
	for _, e := range s.enis {
		if e.attachment != nil && e.attachment.instance == i {
			enis = append(enis, e)
		}
	}
	slices.SortFunc(enis, func(a, b *eni) int {
		return cmp.Or(cmp.Compare(a.attachment.card, b.attachment.card), cmp.Compare(a.attachment.index, b.attachment.index))
	})
	return enis
}

// attach ties e to i. The caller has checked that it may.
func (s *Sim) attach(e *eni, i *Instance, card, index int, delay time.Duration) *attachment {
	a := &attachment{
		id:       fmt.Sprintf("eni-attach-%017x", s.count("eni-attach")),
		instance: i, card: card, index: index, status: "attaching", since: time.Now(),
	}
	e.attachment = a
	s.after(delay, func() {
		if e.attachment == a && a.status == "attaching" {
			a.status, a.plugged = "attached", true
			s.changed(Attached, e)
		}
	})
	return a
}

// detach unties e.
func (s *Sim) detach(e *eni, delay time.Duration) {
	a := e.attachment
	a.status = "detaching"
	s.after(delay, func() {
		if e.attachment == a {
			s.untie(e)
		}
	})
}

func (s *Sim) untie(e *eni) {
	was, a := e.snapshot(), e.attachment
	e.attachment = nil
	e.publicIP = netip.Addr{} // it was the instance's (Guide: "Public IPv4 addresses")
	s.publish(a.instance)
	if a.plugged {
		s.queue(Change{Kind: Detached, Instance: a.instance.ID, ENI: was})
	}
}

// changed tells metadata and listeners about e, which they know of only while it is in an instance.
func (s *Sim) changed(kind ChangeKind, e *eni) {
	if a := e.attachment; a != nil && a.plugged {
		s.publish(a.instance)
		s.queue(Change{Kind: kind, Instance: a.instance.ID, ENI: e.snapshot()})
	}
}

// dnsName is the private name of an address (VPC Guide: "DNS attributes for your VPC").
func (s *Sim) dnsName(a netip.Addr) string {
	domain := s.cfg.Region + ".compute.internal"
	if s.cfg.Region == "us-east-1" {
		domain = "ec2.internal"
	}
	return "ip-" + strings.ReplaceAll(a.String(), ".", "-") + "." + domain
}
