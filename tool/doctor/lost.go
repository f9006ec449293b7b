// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/repair"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// lostObjects looks for lost objects that all pods of the node share, and for lost objects of each running pod. It
// leaves out the sysctls that checkSysctls checks.
func (p *Node) lostObjects() ([]Finding, error) {
	networks, _ := p.conflists.Networks()
	var found []Finding
	var failed error
	for _, n := range networks {
		pods, unknown, err := repair.LostBy(p.pool.Host, n, p.state)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("network %s: %w", n.Name, err))
		}
		named := map[string]bool{}
		for _, l := range pods {
			named[l.Veth] = len(l.Node) > 0
			found = append(found, p.lostByPod(l)...)
		}
		for _, l := range unknown {
			named[l.Name] = true
			found = append(found, unknownPod(l))
		}
		w, err := ptp.Lost(p.pool.Host, n.Name, n.Pair)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("network %s: %w", n.Name, err))
		}
		for _, s := range w {
			route, is := s.Object.(nl.Route)
			if !(is && named[route.Dev] || p.isPodSysctl(n, s)) {
				found = append(found, p.lostFinding(n, s))
			}
		}
	}
	return found, failed
}

// isPodSysctl reports whether a step is a sysctl that checkSysctls checks.
func (p *Node) isPodSysctl(n conf.Network, s nl.Step) bool {
	k, is := s.Object.(nl.Sysctl)
	return is && slices.ContainsFunc(p.podSysctls(n.Pair), func(p podSysctl) bool { return p.Key == k.Key })
}

// lostByPod returns the findings about one running pod.
func (p *Node) lostByPod(l repair.Loss) (found []Finding) {
	about := l.Veth + " of " + l.Owner()
	put := Finding{Severity: severe, About: about, Do: runRepair + ". If this fails, delete the pod",
		fix: p.podFix(l), partly: true}
	switch {
	case l.Unpaired:
		put.Means = "the veth pair of a running pod is gone. The pod reaches the VPC, but neither its node, nor " +
			"Services, nor the internet"
		found = append(found, put)
	case len(l.Node) > 0:
		put.Means = "the node has lost a part of the pod's network: " + wiringText(l.Node) + ". " + lossConsequence(l)
		if !l.Serious() {
			put.Severity = note
		}
		if p.acceptsRouters(l.Veth) {
			put.Severity = severe
			put.Means += ". The node accepts router advertisements of the pod, so a process with CAP_NET_RAW in the " +
				"pod can become the node's IPv6 router"
		}
		found = append(found, put)
	}
	if l.Changed != nil {
		found = append(found, Finding{Severity: severe, About: about,
			Means: "the pod's network on the node has a fault that repair cannot correct: " + oneLine(l.Changed),
			Do:    replacePod})
	}
	if len(l.Pod) > 0 {
		var lost []string
		for _, f := range l.Pod {
			lost = append(lost, repair.Brief(f.Object)+" ("+oneLine(f.Wrong)+")")
		}
		found = append(found, Finding{Severity: severe, About: l.Owner(),
			Means: "in the pod's own namespace, these objects are missing or wrong: " + strings.Join(lost, "; "),
			Do: replacePod + ". The command repair changes nothing in a pod's namespace, because the pod's own " +
				"programs may have removed or changed the objects"})
	}
	return found
}

// replacePod is what an operator must do if repair cannot correct the network of a pod.
const replacePod = "delete the pod. Its controller makes a new pod"

// acceptsRouters reports whether the node accepts router advertisements that arrive by a link (ipv6_accept_ra).
func (p *Node) acceptsRouters(link string) bool {
	accepts, _ := p.kernel.Sysctl("net/ipv6/conf/" + link + "/accept_ra")
	forwards, _ := p.kernel.Sysctl("net/ipv6/conf/" + link + "/forwarding")
	return accepts == "2" || accepts == "1" && forwards == "0"
}

// unknownPod returns the finding that the node has lost its routes to a pod that neither the registry nor the runtime
// knows. l is the node's end of the pod's pair.
func unknownPod(l nl.Link) Finding {
	return Finding{Severity: severe, About: l.Name + " (" + l.Alias + ")",
		Means: repair.UnknownPod + ". " + cutOff, Do: replacePod}
}

// wiringText returns the objects of a wiring as one line for people.
func wiringText(w nl.Wiring) string {
	var all []string
	for _, s := range w {
		all = append(all, repair.Brief(s.Object))
	}
	return strings.Join(all, "; ")
}

// oneLine returns the text of an error as one line. It drops the text of fs.ErrNotExist after a colon.
func oneLine(err error) string {
	text := strings.ReplaceAll(err.Error(), ": "+fs.ErrNotExist.Error(), "")
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "\n", "; ")), " ")
}

// cutOff is the consequence if the node has lost both routes to a pod. onSpare is the consequence if only the spare
// route is left.
const (
	cutOff  = "Node and pod do not reach each other, so probes fail. The pod reaches neither Services nor the internet"
	onSpare = "The spare route is still there, but by this route the node may send from a wrong address"
)

// lossConsequence says what a pod cannot do because the node has lost a part of the pod's wiring.
func lossConsequence(l repair.Loss) string {
	var services, source, cut, unnamed, still, large bool
	main := map[netip.Prefix]int{}
	for _, s := range l.Node {
		switch o := s.Object.(type) {
		case nl.Up:
			cut = true
		case nl.AltName:
			unnamed = true
		case nl.Route:
			switch {
			case o.Table == 0:
				main[o.Dst]++
			case o.MTU != 0 && isThereWithoutMTU(o, s.NS):
				large = true
			default:
				services = true
			}
			source = source || o.Src.IsValid()
			cut = cut || main[o.Dst] > 1 || o.Table == 0 && o.Dst.Addr().Is6() // a pod has no second route for IPv6
		case nl.Rule:
			services = true
		case nl.Sysctl:
			still = still || strings.HasSuffix(o.Key, "/forwarding")
		case nl.Neigh:
			services = services || o.Addr.IsLinkLocalUnicast()
			cut = cut || !o.Addr.IsLinkLocalUnicast()
		}
	}
	switch {
	case cut:
		return cutOff
	case still:
		return "The node drops packets that it should forward for the pod, so the pod may not reach Services or " +
			"the internet. A routed pod may also not reach the VPC"
	case services:
		return "Calls to Services fail. Or the node sends the calls from its own address, so the calls bypass the " +
			"pod's security groups"
	case large:
		return "Calls to Services hang as soon as the pod sends large packets. The pod's link to the VPC has a " +
			"smaller MTU than the pod's pair, and the node's routes do not have the smaller MTU"
	case source:
		return onSpare
	case unnamed:
		return "The pod works, but its CHECK fails, and some runtimes then start the pod again"
	}
	return "The pod still works, but further losses may cut it off"
}

// isThereWithoutMTU reports whether the kernel has the route r. It ignores the MTU of the route.
func isThereWithoutMTU(r nl.Route, n *nl.NS) bool {
	r.MTU = 0
	return r.Check(n) == nil
}

// podFix returns a fix that puts a pod's lost objects back on the node.
func (p *Node) podFix(l repair.Loss) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		did, err := l.Repair(ctx, p.pool.Host)
		return "put back " + strings.Join(did, "; "), err
	}
}

func (p *Node) lostFinding(n conf.Network, s nl.Step) Finding {
	a := Finding{Severity: severe, About: repair.Brief(s.Object),
		Means: "another program has removed or changed this object, so pods reach only a part of the cluster",
		Do:    runRepair + ". The next ADD also puts the object back",
		fix:   p.networkFix(n, s)}
	switch route := s.Object.(type) {
	case nl.Route:
		a.Means = p.routeConsequence(route)
		a.Do = runRepair
		return a
	case nl.Table:
	default:
		return a
	}
	switch err := s.Check(s.NS); {
	case errors.Is(err, fs.ErrNotExist):
		a.Means = "another program has flushed the ruleset, and our table with all masquerading is gone. Pods reach " +
			"neither Services nor the internet"
		a.Do += ". Configure firewalld or nftables.service to flush only their own tables"
		a.partly = true
	case err == nil || errors.Is(err, nl.ErrOtherRules):
		a.Severity = warning
		a.Means = "the table differs from the configuration. The configuration or the release has changed since the " +
			"last ADD, or another program has changed the table"
	default:
		a.Means = fmt.Sprintf("the rules of the table are there, but a program has changed other parts of the table "+
			"(%v). Pods may reach neither Services nor the internet", err)
	}
	return a
}

// routeConsequence returns what happens because the node has lost the route r to a pod. Doctor shows this text only if
// no other finding is about lost objects of the pod.
func (p *Node) routeConsequence(r nl.Route) string {
	spare := nl.Route{Dst: r.Dst, Dev: r.Dev, Metric: ptp.SpareMetric}
	if r.Dst.Addr().Is4() && spare.Check(p.pool.Host) == nil {
		return "the node has lost its route to a pod, for example because the node's address was removed and added " +
			"again. " + onSpare
	}
	return "the node has lost its routes to a pod. " + cutOff
}

// networkFix returns the fix for the object of the step s, which the network n has lost. The fix puts back all lost
// objects of the network. It fails only if the object of s stays lost, because the other objects have findings of their
// own.
func (p *Node) networkFix(n conf.Network, s nl.Step) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		_, err := ptp.Repair(p.pool.Host, n.Name, n.Pair)
		if s.Check(s.NS) == nil {
			err = nil
		}
		return "put back " + repair.Brief(s.Object), err
	}
}
