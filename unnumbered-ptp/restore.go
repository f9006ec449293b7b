// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Other programs remove objects of pods: for example, systemd-networkd removes rules and routes that it did not add. If
// a program sets a link down, the kernel removes the link's routes. If a program disables IPv6 on the node, the kernel
// removes the IPv6 routes of all links. A CHECK would find such faults, but few runtimes call CHECK. So [Missing]
// compares a running pod with the objects of its ADD, and [Restore] adds those that are missing on the node.
//
// Missing and Restore change nothing in the pod's namespace, where the pod's own processes may have removed an object
// on purpose.

// A Loss lists the objects that the ADD of an attachment made, and that are missing now.
type Loss struct {
	Veth     string     // name of the node's end of the attachment's pair
	Unpaired bool       // the pair is gone, with all objects that belong to it
	Node     nl.Wiring  // the objects that are missing on the node: Restore adds them
	Pod      []nl.Fault // the objects that are missing or wrong in the pod
	Changed  error      // a fault on the node that Restore cannot repair

	index int // index of the node's end
}

// Serious reports whether the node lacks an object without which the pod does not work. For example, the second route
// to a pod is not such an object.
func (l Loss) Serious() bool {
	return slices.ContainsFunc(l.Node, func(s nl.Step) bool { return !isMinor(s) })
}

// None reports whether nothing is missing.
func (l Loss) None() bool {
	return !l.Unpaired && len(l.Node) == 0 && len(l.Pod) == 0 && l.Changed == nil
}

// Missing returns the objects that a running attachment lacks. The request must be like that of a CHECK, with a
// validated configuration. A caller that makes prevResult itself must not take the addresses from the pod's namespace:
// a pod can give another pod's addresses to its own links.
func Missing(node *nl.NS, r *plugin.Request[Config]) (l Loss, err error) {
	s, err := openScene(newRequest(node, r))
	if err != nil {
		return l, err
	}
	defer s.close()
	if s.further {
		l.Pod = s.furtherFaults()
		return l, nil
	}
	p, there := s.runningPair()
	if l.Veth = p.veth.Name; !there {
		l.Unpaired = true
		return l, nil
	}
	if there, err := s.comparePair(p, &l); err != nil || !there {
		return l, err
	}
	forget, err := s.podNS.List("") // the caller calls List for the node, once for all pods
	if err != nil {
		return l, err
	}
	defer forget()
	return l, s.compareObjects(p, &l)
}

// comparePair adds the differences of the pair to the Loss, and reports whether the pod has its end of the pair.
func (s *scene) comparePair(p pair, l *Loss) (there bool, err error) {
	near, err := s.nodeNS.LinkByName(p.veth.Name)
	if err != nil {
		return false, err
	}
	l.index = near.Index
	far, err := s.podNS.LinkByName(p.veth.Peer)
	if errors.Is(err, fs.ErrNotExist) {
		l.Pod = append(l.Pod, nl.Fault{Step: nl.Step{NS: s.podNS, Object: nl.Up{Dev: p.veth.Peer}}, Wrong: err})
		return false, nil
	}
	if err != nil || !s.nodeNS.IsPeer(near, s.podNS, far.Index) {
		return false, fmt.Errorf("the other end of %s is not in the namespace %s: %w", p.veth.Name, s.NetNS,
			errors.Join(err, fs.ErrInvalid))
	}
	if !near.Up {
		l.Node = append(l.Node, nl.Step{NS: s.nodeNS, Object: nl.Up{Dev: near.Name}})
	}
	if p.unnamed {
		l.Node = append(l.Node, nl.Step{NS: s.nodeNS, Object: p.veth.Alternative()})
		p.veth.AltName = ""
	}
	l.Pod = append(l.Pod, (nl.Wiring{{NS: s.podNS, Object: nl.Up{Dev: far.Name}}}).Faults()...)
	if near.Up && far.Up {
		l.Changed = (nl.Wiring{{NS: s.nodeNS, Object: p.veth}}).Check()
	}
	return true, nil
}

// compareObjects compares the objects that belong to the pair, and adds the differences to the Loss. A pod may have
// several forms (see possiblePairs): compareObjects assumes the form of which the fewest objects are missing in the
// pod. Of equal forms, it assumes the form of which the fewest objects are missing on the node.
func (s *scene) compareObjects(p pair, l *Loss) error {
	n, err := s.nodeWhenMade(p)
	if err != nil {
		return err
	}
	var least []nl.Fault
	found := false
	s.repairs = true
	for _, form := range s.Config.possiblePairs(p) {
		needs, e := s.neededObjects(form, n)
		if e != nil {
			err = cmp.Or(err, e)
			continue
		}
		faults := needs.Faults()
		if !found || s.lacksLess(faults, least) {
			found, least = true, faults
		}
	}
	if !found {
		return err
	}
	without := s.node.checkFamilies(s.request)
	for _, f := range least {
		if r, is := f.Object.(nl.Route); is && r.MTU != 0 {
			r.Replace = true // the node may have the route with another MTU
			f.Object = r
		}
		switch {
		case f.NS == s.podNS && !isMinor(f.Step):
			l.Pod = append(l.Pod, f)
		case f.NS == s.nodeNS && (without == nil || s.node.hasFamily(familyOf(f.Object))):
			l.Node = append(l.Node, f.Step)
		}
	}
	if without != nil {
		l.Changed = errors.Join(l.Changed, without)
	}
	return nil
}

// lacksLess reports whether the list "these" has fewer faults in the pod than the list "others". If the two numbers are
// equal, lacksLess compares the numbers of faults on the node.
func (s *scene) lacksLess(these, others []nl.Fault) bool {
	count := func(faults []nl.Fault, ns *nl.NS) (n int) {
		for _, f := range faults {
			if f.NS == ns {
				n++
			}
		}
		return n
	}
	if a, b := count(these, s.podNS), count(others, s.podNS); a != b {
		return a < b
	}
	return count(these, s.nodeNS) < count(others, s.nodeNS)
}

func familyOf(o nl.Object) nl.Family {
	switch o := o.(type) {
	case nl.Route:
		return nl.FamilyOf(o.Dst.Addr())
	case nl.Neigh:
		return nl.FamilyOf(o.Addr)
	case nl.Rule:
		if o.To.IsValid() {
			return nl.FamilyOf(o.To.Addr())
		}
		return o.Family
	case nl.Sysctl:
		if strings.HasPrefix(o.Key, "net/ipv6/") {
			return nl.IPv6
		}
	}
	return nl.IPv4
}

// Restore adds the objects that [Missing] has found missing on the node, and returns the objects that it has added. It
// may run at the same time as commands for the pod. If the pair is gone meanwhile, Restore returns no error.
func Restore(node *nl.NS, l Loss) (done nl.Wiring, failed error) {
	if l.isGone(node) {
		return nil, nil
	}
	done, failed = installEach(l.Node)
	if l.isGone(node) {
		return done, nil
	}
	return done, failed
}

// isGone reports whether the pair is gone. A pair of this name with another index belongs to another sandbox of the
// pod, see engine.go.
func (l Loss) isGone(node *nl.NS) bool {
	near, err := node.LinkByName(l.Veth)
	return errors.Is(err, fs.ErrNotExist) || err == nil && l.index != 0 && near.Index != l.index
}

// Bare finds the veth pairs of a network that have lost the routes to their pods, and returns the node's ends. Either
// the node has no route through such an end. Or the node has a routing rule for the end, but no route through the end
// in the family of the rule. Bare is for pods whose attachments neither the registry nor the runtime knows.
func Bare(node *nl.NS, network string) (bare []nl.Link, err error) {
	links, err1 := node.Links()
	rules, err2 := node.Rules()
	routes, err3 := node.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	has := map[string]map[nl.Family]bool{}
	for _, r := range routes {
		if has[r.Dev] == nil {
			has[r.Dev] = map[nl.Family]bool{}
		}
		has[r.Dev][nl.FamilyOf(r.Dst.Addr())] = true
	}
	lost := map[string]bool{}
	for _, r := range rules {
		lost[r.IIF] = lost[r.IIF] || isPodRule(r) && !has[r.IIF][r.Family]
	}
	for _, l := range links {
		if isVeth(l, network) && (len(has[l.Name]) == 0 || lost[l.Name]) {
			if _, err := node.LinkByName(l.Name); err == nil { // otherwise the pair has ended meanwhile
				bare = append(bare, l)
			}
		}
	}
	return bare, nil
}

func isPodRule(r nl.Rule) bool { return r.Pref == prefPod && r.Protocol == nl.RouteProtocol }
