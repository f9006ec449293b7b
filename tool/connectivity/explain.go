// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// watchTime is how long the test waits for an answer while taps watch the links. It is less than one second, because
// the taps should not see the packet that TCP repeats after one second.
const watchTime = 900 * time.Millisecond

// A finding is what the test observes when it tries a failed path once more.
type finding struct {
	path
	failed    error
	sightings []sighting
	drops     []nl.Dropper
	counted   []string // the changed drop counters of the kernel
	checkErr  error    // the errors of CHECK for the path's pods
}

// A sighting is a packet that a tap has seen, together with the tap's namespace.
type sighting struct {
	nl.Sighting
	ns *nl.NS
}

// explainFailure sends the packets of a failed path again, and records in the path's row where they stop, and why. If
// the packets arrive now, the row says that the path works.
func (s *scene) explainFailure(ctx context.Context, p path, row Row) Row {
	if ctx.Err() != nil {
		row.Stopped = "there was no time to find out where the packet stopped"
		return row
	}
	f, err := s.tryWithTaps(ctx, p)
	if err != nil {
		row.Stopped = "the test could not watch the links: " + err.Error()
		return row
	}
	if f.failed == nil {
		row.State, row.Cause = Works, "only at the third try"
		return row
	}
	row.Stopped = s.placeOf(f)
	row.Cause, row.Do = s.causeOf(f)
	return row
}

// tryWithTaps opens taps at the links, tries the path, and returns what the taps and the kernel have shown.
func (s *scene) tryWithTaps(ctx context.Context, p path) (f finding, err error) {
	f.path = p
	addrs := p.tapAddrs()
	taps, err := s.openTaps(p, addrs)
	defer func() {
		for _, t := range taps {
			err = errors.Join(err, t.Close())
		}
	}()
	if err != nil {
		return f, err
	}
	// If Verdicts returns an error, the test goes on, because older kernels do not report netfilter's verdicts.
	verdicts, unowned := s.node.Verdicts(addrs)
	before, _ := s.node.DropCounts()
	try, cancel := context.WithTimeout(ctx, watchTime)
	f.failed = p.probe(try)
	cancel()
	after, _ := s.node.DropCounts()
	for name, n := range after {
		if n > before[name] {
			f.counted = append(f.counted, fmt.Sprintf("%s +%d", name, n-before[name]))
		}
	}
	slices.Sort(f.counted)
	if unowned == nil {
		f.drops = verdicts.Drops()
		verdicts.Close()
	}
	for n, t := range taps {
		for _, seen := range t.Seen() {
			f.sightings = append(f.sightings, sighting{seen, n})
		}
	}
	slices.SortStableFunc(f.sightings, func(a, b sighting) int { return a.At.Compare(b.At) })
	if f.failed != nil {
		f.checkErr = errors.Join(s.checkOnce(ctx, p.pod), s.checkOnce(ctx, p.target))
	}
	return f, nil
}

// checkOnce calls CHECK for a pod once, and returns its error, or nil if CHECK did not end in time.
func (s *scene) checkOnce(ctx context.Context, p *pod) error {
	if p == nil {
		return nil
	}
	if err, known := s.checked[p]; known {
		return err
	}
	err := s.cni.check(ctx, p)
	if ctx.Err() != nil {
		return nil
	}
	s.checked[p] = err
	return err
}

// tapAddrs returns the addresses of the path's packets. A tap records only packets with one of these addresses.
func (p path) tapAddrs() (all []netip.Addr) {
	if p.pod != nil {
		all = append(all, p.pod.addr(p.family))
	}
	if p.to.IsValid() || p.to.Addr().IsValid() {
		all = append(all, p.to.Addr().WithZone(""))
	}
	return all
}

// openTaps opens taps at all links that the packets of a path can pass, in the pods and on the node. The map has the
// taps by namespace.
func (s *scene) openTaps(p path, addrs []netip.Addr) (all map[*nl.NS]*nl.Tap, err error) {
	all = map[*nl.NS]*nl.Tap{}
	node := []string{s.Network.Pair.HostInterface}
	add := func(n *nl.NS, links []string) {
		t, failed := n.Tap(addrs, links...)
		if err = errors.Join(err, failed); failed == nil {
			all[n] = t
		}
	}
	for _, of := range s.pods {
		for _, link := range []string{of.veth, of.eni} {
			if link != "" && !slices.Contains(node, link) {
				node = append(node, link)
			}
		}
		if of == p.pod || of == p.target {
			add(of.ns, of.links)
		}
	}
	add(s.node, s.presentLinks(node))
	return all, err
}

// presentLinks returns the links that the node still has.
func (s *scene) presentLinks(links []string) []string {
	return slices.DeleteFunc(links, func(l string) bool { _, err := s.node.LinkByName(l); return err != nil })
}

// furthestSighting returns the sighting that is furthest on the path to the receiver and back. A later sighting may be
// less far on the path, because the sender may have repeated a packet just before the taps were closed.
func (s *scene) furthestSighting(f finding) (l sighting, any bool) {
	for _, seen := range f.sightings {
		if !any || s.progressOf(f, seen) >= s.progressOf(f, l) {
			l, any = seen, true
		}
	}
	return l, any
}

// progressOf returns a number that is higher if the sighting is further on the path. A path has four places: out of a
// pod, into the node, out of the node, into a pod. The places of the answer count as further than the places of the
// request. If a pod calls a Service, the node may send the packet back into the pod. Then the arrival in the pod counts
// as "into the node", because the packet is not yet at its destination.
func (s *scene) progressOf(f finding, l sighting) (steps int) {
	switch node := l.ns == s.node; {
	case node && !l.Out, !node && !l.Out && f.isRequest(l) && l.ns == f.from:
		steps = 2
	case node:
		steps = 3
	case l.Out:
		steps = 1
	default:
		steps = 4
	}
	if !f.isRequest(l) {
		steps += 4
	}
	return steps
}

// isRequest reports whether a packet is on its way to the receiver. If not, the packet is an answer.
func (f finding) isRequest(s sighting) bool {
	return s.To == f.to.Addr().WithZone("") || f.pod != nil && s.From == f.pod.addr(f.family)
}

// placeOf describes the furthest place that a packet has reached.
func (s *scene) placeOf(f finding) string {
	l, any := s.furthestSighting(f)
	if errors.Is(f.failed, errLarge) {
		return "small packets arrive, and large ones are lost" + f.largestText()
	}
	if !any {
		if f.pod == nil {
			return "no packet left the node"
		}
		return "no packet left the pod"
	}
	what, then := "the packet", "no answer came"
	if !f.isRequest(l) {
		what, then = "the answer", "did not arrive"
	}
	switch {
	case l.ns == s.node && l.Out && slices.Contains(s.veths(), l.Link):
		return fmt.Sprintf("%s left the node by %s, but did not reach the pod", what, l.Link)
	case l.ns == s.node && l.Out:
		return fmt.Sprintf("%s left the node by %s, and %s", what, l.Link, then)
	case l.ns == s.node:
		return fmt.Sprintf("%s reached the node by %s, and went no further", what, l.Link)
	case l.Out:
		return fmt.Sprintf("%s left the pod by %s, and reached no link of the node", what, l.Link)
	}
	return fmt.Sprintf("%s reached the pod by %s", what, l.Link)
}

func (s *scene) veths() (all []string) {
	for _, p := range s.pods {
		all = append(all, p.veth)
	}
	return all
}

// largestText returns the size of the largest packet that a tap has seen, as the end of a sentence.
func (f finding) largestText() string {
	most := 0
	for _, s := range f.sightings {
		most = max(most, s.Size)
	}
	if most == 0 {
		return ""
	}
	return fmt.Sprintf(". The largest packet that was sent has %d bytes", most)
}
