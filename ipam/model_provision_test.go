// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// In some histories, operators and cloud-init run new-interface. A run may end at any call, or while it waits for the
// link. The same command then runs again, at once, later or never. A command that is repeated until it answers makes
// one ENI. If it runs again after its answer, it makes another ENI. Different commands have different ENIs, except that
// a command may continue with the ENI of another command that differs only in numbers.
//
// In some cases, a command may make a second ENI. Either an ADD has attached the first one at a lower index than the
// command wants, because of interfaceIndex. Or no process could know the first one: the registry was lost, the clock
// was set, or the intent has ended before the attachment. The first ENI is then left for eni-gc. An ENI that an
// operator has detached may be the answer to another command when it is attached again.

// intentLife is how long a node keeps the intent of a call of which EC2 shows no trace.
const intentLife = 15 * time.Minute

// A command is new-interface with some arguments.
type command struct {
	spec  more.ENISpec
	begun bool                // the command has been run, and has not answered since
	made  map[string]sighting // the ENIs that its runs have made since its last answer
}

// A sighting is the time when something about an ENI was known. The node may have lost this knowledge since.
type sighting struct {
	when   time.Time
	losses int // how often the registry was lost by then
}

func (m *model) sighting() sighting { return sighting{time.Now(), m.losses} }

func (c *command) String() string {
	return fmt.Sprintf("new-interface --index=%d --ip_batch_size=%d --subnet_filter=%v %v", c.spec.MinIndex,
		c.spec.Addrs, c.spec.Tags, c.spec.SecurityGroups)
}

// newInterface: an operator types a command, a new one or an earlier one.
func (m *model) newInterface() {
	if m.locked("provision") || m.locked("grow") {
		return // the command would wait for the lock
	}
	const tries = 20
	c := m.typed()
	for range tries {
		f := m.fate()
		if f.at > 0 {
			f.at = 1 + m.rng.IntN(12)
		}
		err := m.order(c, f, pick(m.rng, 2*time.Second, 10*time.Second, time.Hour))
		if err == nil || m.chance(30) {
			return
		}
		// cloud-init runs the script again
		time.Sleep(pick(m.rng, 0, time.Second, time.Minute, 5*time.Minute))
		if m.verify(); len(m.bad) > 0 {
			return
		}
	}
}

// typed returns the next command.
func (m *model) typed() *command {
	var begun []*command
	for _, c := range m.commands {
		if c.begun {
			begun = append(begun, c)
		}
	}
	switch {
	case len(begun) > 0 && m.chance(60):
		return pick(m.rng, begun...)
	case len(m.commands) > 0 && m.chance(40):
		return pick(m.rng, m.commands...)
	}
	c := &command{made: map[string]sighting{}, spec: more.ENISpec{
		SecurityGroups: pick(m.rng, []string{"sg-1"}, []string{"sg-2"}, []string{"sg-2", "sg-1"}),
		Tags:           pick(m.rng, map[string]string{"for": "pods"}, map[string]string{"for": "pods"}, nil),
		MinIndex:       pick(m.rng, 1, 1, 1, 2), Addrs: pick(m.rng, 0, 1, 3, 10)}}
	for _, other := range m.commands {
		if other.String() == c.String() {
			return other
		}
	}
	m.commands = append(m.commands, c)
	return c
}

// order runs a command once.
func (m *model) order(c *command, f fate, timeout time.Duration) error {
	before, began, id := m.EC2.ENIs(), m.sighting(), ""
	c.begun = true
	m.logf("%s %v%v", m.clock(), c, f)
	err := m.run(lease.Policy{MinIndex: c.spec.MinIndex}, f, timeout,
		func(ctx context.Context, pool *Pool) (err error) {
			id, _, err = pool.provisionWith(ctx, c.spec, func(ctx context.Context, id string) (string, error) {
				return m.linkUp(ctx, pool, id)
			})
			return err
		})
	m.made(c, before, began)
	m.logf("  %q, %v", id, err)
	if err == nil {
		m.verifyAnswer(c, id)
	}
	return err
}

// linkUp waits for a link as LinkUp does, but not in the kernel. In some cases, other processes act meanwhile, or the
// process is killed.
func (m *model) linkUp(ctx context.Context, pool *Pool, id string) (string, error) {
	switch n := m.rng.IntN(100); {
	case m.quiet:
	case n < 12:
		m.logf("  killed at %s, before %s has its link", m.clock(), id)
		runtime.Goexit()
	case n < 30 && m.depth < 2:
		m.logf("meanwhile, before %s has its link:", id)
		m.depth++
		m.step(m.depth)
		m.verify()
		m.depth--
	}
	if !m.appears(ctx, pool, id) {
		return "", errors.New("no link")
	}
	return pool.LinkUp(ctx, id)
}

// made records which ENIs a run of a command has made.
func (m *model) made(c *command, before []ec2sim.ENI, began sighting) {
	for _, e := range m.EC2.ENIs() {
		had := slices.ContainsFunc(before, func(b ec2sim.ENI) bool { return b.ID == e.ID })
		if had || e.Tags[book.TagManaged] == "true" {
			continue
		}
		if c.made[e.ID] = began; e.Tags[book.TagManaged] != "false" || e.Tags[book.TagInstance] != m.ID {
			m.wrong("%v has made %s with the tags %v: its owner is unknown", c, e.ID, e.Tags)
		}
	}
}

// verifyAnswer checks that a command has answered with the right ENI, and has made no other.
func (m *model) verifyAnswer(c *command, id string) {
	e := m.find(id)
	if e == nil {
		m.wrong("%v answers with %s, which is deleted", c, id)
		return
	}
	if m.isAnswer(id) && !m.moved[id] {
		m.wrong("%v answers with %s, as a command did before", c, id)
	}
	if !m.moved[id] && (e.Instance != m.ID || !m.kernel.linked(id)) {
		m.wrong("%v answers with %s, which is on %q, and on the node %v", c, id, e.Instance, m.kernel.linked(id))
	}
	groups := slices.Sorted(slices.Values(e.SecurityGroups))
	if !slices.Equal(groups, slices.Sorted(slices.Values(c.spec.SecurityGroups))) || c.spec.Tags != nil &&
		!strings.HasPrefix(e.Subnet, "subnet-pod") {
		m.wrong("%v answers with %s, which has %v and is in %s", c, id, groups, e.Subnet)
	}
	if !m.moved[id] && e.Index < c.spec.MinIndex {
		m.wrong("%v answers with %s, which is at %d.%d", c, id, e.Card, e.Index)
	}
	m.answers[id] = m.sighting()
	made, is := c.made[id]
	for other, when := range c.made {
		// If lost is true, the other ENI was made without knowledge of this one, or the node has found this one only
		// now.
		lost := m.moved[id] || is && made.losses < m.losses
		e := m.find(other)
		below := e != nil && e.Instance == m.ID && e.Index < c.spec.MinIndex // an ADD has attached it, for pods
		if e != nil && !lost && !below && !m.isAnswer(other) && !m.lostSight(*e, when) {
			m.wrong("%v has made %s, and now answers with %s", c, other, id)
		}
	}
	c.begun = false
	clear(c.made)
}

// isAnswer reports whether a command has answered with an ENI, and the node can know this.
func (m *model) isAnswer(id string) bool {
	seen, answered := m.answers[id]
	return answered && seen.losses == m.losses
}

// lostSight reports whether the node cannot know that a command made an ENI at that time.
func (m *model) lostSight(e ec2sim.ENI, made sighting) bool {
	return m.moved[e.ID] || made.losses < m.losses || e.Instance == "" && time.Since(made.when) > intentLife
}

// verifyBegun checks that the registry has an intent or a mark of each unfinished command, and no mark of a finished
// one.
func (m *model) verifyBegun() {
	s, err := m.view()
	if err != nil || m.locked("provision") {
		return
	}
	creating := false
	for _, i := range s.Intents {
		creating = creating || i.Action == "CreateNetworkInterface"
	}
	for _, c := range m.commands {
		for id, made := range c.made {
			e := m.find(id)
			if e == nil || m.isAnswer(id) || m.lostSight(*e, made) {
				continue
			}
			if book.TokenOf(s, id) == "" && !creating && !s.ENIs[id].Provisioning {
				m.wrong("%v has made %s (%s), and the registry has neither an intent nor the mark", c, id, e.Status)
			}
		}
	}
	for id, e := range s.ENIs {
		if e.Provisioning && (e.Managed || m.isAnswer(id) && !m.moved[id]) {
			m.wrong("%s has the mark of a command that has answered, managed %v", id, e.Managed)
		}
	}
}

// retype repeats some of the unanswered commands until they answer. Nothing fails any more.
func (m *model) retype() {
	m.quiet = true
	for _, c := range m.commands {
		if !c.begun || m.chance(40) {
			continue
		}
		const tries = 20
		for n := range tries {
			err := m.order(c, fate{}, time.Minute)
			if err == nil || full(err) {
				break
			}
			if n == tries-1 {
				m.wrong("%v fails: %v", c, err)
			}
			time.Sleep(10 * time.Second)
		}
	}
}

// full reports whether there is no slot or no address for an ENI.
func full(err error) bool {
	return errors.Is(err, aws.ErrInstanceFull) || errors.Is(err, aws.ErrCardFull) || errors.Is(err, aws.ErrSubnetFull)
}

// verifyMade checks at the end that the ENIs of commands are attached and end with the instance, or that eni-gc deletes
// them.
func (m *model) verifyMade() {
	s, err := m.view()
	if err != nil {
		return
	}
	unfinished := len(s.Intents) > 0 || !s.Rebuilt.Since.IsZero()
	for _, e := range m.EC2.ENIs() {
		_, known := s.ENIs[e.ID]
		_, others := m.theirs[e.ID]
		switch {
		case others || e.Tags[book.TagManaged] != "false":
		case e.Instance == m.ID && (!known || !e.DeleteOnTermination && !m.outlives[e.ID] && !m.abandoned[e.ID]):
			m.wrong("%s is attached, known %v, and ends with the instance: %v", e.ID, known, e.DeleteOnTermination)
		case e.Status == "available" && (known || unfinished || e.Tags[book.TagInstance] != m.ID):
			m.wrong("%s is left behind, known %v, intents %v, rebuilt %v", e.ID, known, s.Intents, s.Rebuilt)
		}
	}
}

// noteOutlives records an ENI if EC2 has refused to set its DeleteOnTermination for so long that no process tries
// again.
func (m *model) noteOutlives(c ec2sim.Call) {
	id := c.Params["NetworkInterfaceId"]
	if c.Action != book.ModifyAction || c.Code == "" && !c.Lost {
		return
	}
	if m.stays[id].IsZero() {
		m.stays[id] = time.Now()
	}
	m.outlives[id] = m.outlives[id] || time.Since(m.stays[id]) > intentLife
}

// A rushed is a run of new-interface beside other processes.
type rushed struct {
	*command
	id  string
	err error
}

// rushCommands runs up to two commands at once, perhaps the same command twice.
func (m *model) rushCommands(do func(lease.Policy, func(context.Context, *Pool))) (all []*rushed) {
	for m.chance(40) && len(all) < 2 {
		r := &rushed{command: m.typed()}
		all = append(all, r)
		do(lease.Policy{MinIndex: r.spec.MinIndex}, func(ctx context.Context, pool *Pool) {
			r.id, _, r.err = pool.Provision(ctx, r.spec)
		})
	}
	return all
}

// verifyRushed checks that each command that ran at once with others has its own ENI, or has failed because there is no
// room.
func (m *model) verifyRushed(all []*rushed) {
	for _, r := range all {
		m.logf("%v answers with %q, %v", r, r.id, r.err)
		switch {
		case r.err == nil:
			m.verifyAnswer(r.command, r.id)
		case !full(r.err):
			m.wrong("%v: %v", r, r.err)
		}
	}
	for _, e := range m.attached() {
		if e.Tags[book.TagManaged] == "false" && !m.isAnswer(e.ID) {
			m.wrong("%s is the answer to no command", e.ID)
		}
	}
}
