// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// An Instance is an instance that EC2 has launched.
type Instance struct {
	ID     string
	Type   string
	Zone   string
	Subnet string // of the boot ENI
	VPC    string

	sim          *Sim
	limits       InstanceType
	role         string
	tags         map[string]string
	launched     time.Time
	launch       launch    // if a test called the method RunInstance, only the field "reservation" is set
	pendingUntil time.Time // the end of the state "pending"
	shuttingDown bool      // sim.mu guards this field and the next five
	terminated   bool
	stopped      bool
	hibernates   bool
	views        []view // views of the metadata: the present view, then future views
	lies         []*activeLie

	metadata struct {
		sync.Mutex
		tokens map[string]time.Time // the expiry of each token
		calls  []string
	}
}

// RunInstance launches an instance, and returns when it is running. When the instance ends, EC2 deletes the boot ENI
// (API: RunInstances).
func (s *Sim) RunInstance(r RunInstance) (*Instance, error) {
	var i *Instance
	var err error
	s.update(func() { i, err = s.runInstance(r) })
	if err != nil {
		return nil, fmt.Errorf("run instance: %w", err)
	}
	return i, nil
}

func (s *Sim) runInstance(r RunInstance) (*Instance, error) {
	limits, ok := s.types[r.Type]
	if !ok {
		return nil, refuse("InvalidParameterValue", "Invalid value '%s' for InstanceType.", r.Type)
	}
	sub, err := s.subnet(r.Subnet)
	if err != nil {
		return nil, err
	}
	groups, err := s.checkGroupsIn(sub, r.SecurityGroups)
	if err != nil {
		return nil, err
	}
	w := r.bootSpec()
	if err := w.validate(); err != nil {
		return nil, err
	}
	if err := limits.checkLimits(1+w.v4.slots(), sub.withDefaultIPv6(w.v6).slots(), w.v4.wantsPrefixes() ||
		w.v6.wantsPrefixes()); err != nil {
		return nil, err
	}
	if err := limits.checkEFA(r.EFAOnly); err != nil {
		return nil, err
	}
	if err := limits.checkBootSlot(r); err != nil {
		return nil, err
	}
	e, err := s.newENI(sub, groups, w)
	if err != nil {
		return nil, err
	}
	e.tracking, e.tags = r.Tracking, copyTags(r.ENITags)
	i := &Instance{
		ID:   fmt.Sprintf("i-%017x", s.nextNumber("i")),
		Type: r.Type, Zone: sub.Zone, Subnet: sub.ID, VPC: sub.VPC,
		sim: s, limits: limits, role: cmp.Or(r.Role, "node"), tags: copyTags(r.Tags), launched: time.Now(),
	}
	i.launch.reservation = fmt.Sprintf("r-%017x", s.nextNumber("r"))
	i.metadata.tokens = map[string]time.Time{}
	s.instances[i.ID] = i
	public := sub.MapPublicIP
	if r.PublicIP != nil {
		public = *r.PublicIP
	}
	if public && e.primary().IsValid() {
		e.publicIP = s.publicIP()
	}
	s.attach(e, i, r.BootCard, r.BootIndex, 0).deleteOnTermination = true
	s.attachEFA(i, sub, groups, r.EFAOnly)
	i.views = []view{{since: i.launched, enis: i.snapshots()}}
	s.dropPast() // no lag for a new instance, because a real boot takes longer than any lag
	return i, nil
}

// attachEFA attaches one EFA-only ENI to each of the first cards of a new instance. On card 0, the device index of this
// ENI is 1, because the boot ENI has index 0. On the other cards, the index is 0 (Guide: "Maximize network bandwidth on
// Amazon EC2 instances with multiple network cards"). An EFA-only ENI has no address of any family (Guide: "Elastic
// Fabric Adapter").
func (s *Sim) attachEFA(i *Instance, sub *subnet, groups []string, cards int) {
	for card := range cards {
		e := s.bareENI(sub, groups)
		e.efaOnly = true
		index := 0
		if card == 0 {
			index = 1
		}
		s.attach(e, i, card, index, 0).deleteOnTermination = true
	}
}

// checkEFA refuses more EFA-only ENIs than the type has cards. If card 0 has room for only the boot ENI, checkEFA
// refuses every EFA-only ENI.
func (t InstanceType) checkEFA(cards int) error {
	if cards < 0 || cards > len(t.cards()) || cards > 0 && t.cards()[0] < 2 {
		return refuse("InvalidParameterValue",
			"%s has no room for an EFA-only network interface on each of %d network cards.", t.Name, cards)
	}
	return nil
}

// checkBootSlot checks that the instance type has the card and the device index of the boot ENI. With EFA-only ENIs,
// the boot ENI must have index 0 on card 0 (see attachEFA).
func (t InstanceType) checkBootSlot(r RunInstance) error {
	switch {
	case r.BootCard < 0 || r.BootCard >= len(t.cards()) || r.BootIndex < 0 || r.BootIndex >= t.cards()[r.BootCard]:
		return refuse("InvalidParameterValue", "%s has no device index %d on network card %d.", t.Name,
			r.BootIndex, r.BootCard)
	case r.EFAOnly > 0 && r.BootCard+r.BootIndex > 0:
		return refuse("InvalidParameterValue", "An EFA-only network interface may have the place of the boot ENI.")
	}
	return nil
}

func (r RunInstance) bootSpec() spec {
	return spec{
		primary: r.PrivateIP,
		v4:      demand{count: nilIfZero(&r.Secondary), prefixCount: nilIfZero(&r.Prefixes)},
		v6:      demand{count: nilIfZero(&r.IPv6), prefixCount: nilIfZero(&r.IPv6Prefixes)},
	}
}

// publicIP returns an address of 198.18.0.0/15. No real host has an address of this block (RFC 2544, RFC 6890).
func (s *Sim) publicIP() netip.Addr {
	n := s.nextNumber("public")
	return netip.AddrFrom4([4]byte{198, 18 + byte(n>>16&1), byte(n >> 8), byte(n)})
}

// TerminateInstance ends an instance. EC2 deletes those ENIs of the instance that have DeleteOnTermination. It detaches
// the other ENIs, and keeps them (Guide: "Elastic network interfaces").
func (s *Sim) TerminateInstance(id string) error {
	var err error
	s.update(func() { err = s.terminateInstance(id) })
	return err
}

func (s *Sim) terminateInstance(id string) error {
	i, err := s.runningInstance(id)
	if err != nil {
		return fmt.Errorf("terminate: %w", err)
	}
	i.terminated = true
	for _, e := range s.enisOf(i) {
		remove := e.attachment.deleteOnTermination
		s.finishDetach(e)
		if remove {
			s.deleteENI(e)
		}
	}
	return nil
}

// Stop stops an instance. Its ENIs stay attached, with their addresses (Guide: "Stop and start Amazon EC2 instances").
// If hibernates is true, DescribeInstances shows that the instance hibernates. A hibernating instance keeps the content
// of its memory. The caller must end the programs of the instance.
func (i *Instance) Stop(hibernates bool) {
	i.sim.update(func() { i.stopped, i.hibernates = true, hibernates })
}

// Start starts a stopped instance.
func (i *Instance) Start() {
	i.sim.update(func() { i.stopped = false })
}

// runningInstance returns the instance with this ID. It refuses a terminated instance.
func (s *Sim) runningInstance(id string) (*Instance, error) {
	i, ok := s.instances[id]
	switch {
	case !strings.HasPrefix(id, "i-"):
		return nil, refuse("InvalidInstanceID.Malformed", "Invalid id: %q (expecting \"i-...\")", id)
	case !ok:
		return nil, notFound("InvalidInstanceID", "instance ID", id)
	case i.terminated:
		return nil, refuse("InvalidParameterValue", "Instance '%s' is not 'running'.", id)
	}
	return i, nil
}

// ENIs returns the instance's network interfaces: first the boot ENI, and then the others in the order of network cards
// and device indices.
func (i *Instance) ENIs() []ENI {
	i.sim.mu.Lock()
	defer i.sim.mu.Unlock()
	return i.snapshots()
}

func (i *Instance) snapshots() []ENI {
	var enis []ENI
	for _, e := range i.sim.enisOf(i) {
		enis = append(enis, e.snapshot())
	}
	return enis
}
