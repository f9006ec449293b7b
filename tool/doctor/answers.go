// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// checkAnswers checks that the node's answers to pods leave by the pods' veths. The source of an answer is an address
// of a hostInterface. The check asks the kernel for a route from each of these addresses to each pod. On a node with
// several ENIs, programs such as cloud-init and amazon-ec2-net-utils add rules for packets from these addresses. Such a
// rule leads the packets to a table without routes to the pods.
func (p *Node) checkAnswers(context.Context) ([]Finding, error) {
	rules, err := p.kernel.Rules()
	if err != nil {
		return nil, err
	}
	found := p.missingMainRules(rules)
	pods, err := p.podRoutes()
	if err != nil || len(found) > 0 { // a missing rule is the cause of all other findings
		return found, err
	}
	networks, _ := p.conflists.Networks() // checkConfig reports mistakes in networks
	var hosts []string
	for _, n := range networks {
		host := n.Pair.HostInterface
		if slices.Contains(hosts, host) {
			continue
		}
		hosts = append(hosts, host)
		own, err := p.kernel.Addrs(host)
		if err != nil {
			return found, err
		}
		for _, a := range own {
			astray, err := p.firstStray(a.Prefix.Addr(), pods, rules)
			if err != nil {
				return found, err
			}
			found = append(found, astray...)
		}
		astray, err := p.strayArrivals(host, own, pods, rules)
		if err != nil {
			return found, err
		}
		found = append(found, astray...)
	}
	return found, nil
}

// missingMainRules returns a finding for each family that has rules, but no rule that leads all packets to the main
// table. The kernel makes this rule once, and "ip rule flush" deletes it. A family without any rule gets no finding,
// because the kernel may lack this family.
func (p *Node) missingMainRules(rules []nl.Rule) (found []Finding) {
	for _, f := range nl.Families {
		var some, leads bool
		for _, r := range rules {
			some = some || r.Family == f
			r.Pref, r.Protocol = 0, 0
			leads = leads || r == nl.Rule{Family: f, Table: nl.MainTable}
		}
		if main := (nl.Rule{Pref: prefMain, Family: f, Table: nl.MainTable}); some && !leads {
			found = append(found, Finding{Severity: severe, About: f.String(),
				Means: "no rule leads to the main table, because another program or an operator has deleted the " +
					"kernel's rules (ip rule flush). The node reaches no " + f.String() + " address",
				Do:  main.String() + ". Then run " + cli.Name + " repair, which puts back the rules of pods",
				fix: p.objectFix(main), partly: true})
		}
	}
	return found
}

// prefMain is the priority of the kernel's own rule for the main table.
const prefMain = 32766

// podRoutes returns the node's routes to its pods. It leaves out routes to addresses that the node itself has, because
// checkAddresses reports these addresses.
func (p *Node) podRoutes() ([]nl.Route, error) {
	links, err := p.kernel.Links()
	if err != nil {
		return nil, err
	}
	own, err := p.kernel.AllAddrs()
	if err != nil {
		return nil, err
	}
	veths, taken := map[string]bool{}, map[netip.Addr]bool{}
	for _, l := range links {
		veths[l.Name] = nl.IsPair(l.Group) && l.Kind == "veth"
	}
	for _, a := range own {
		taken[a] = true
	}
	routes, err := p.kernel.Routes(nl.RouteFilter{Table: nl.MainTable, Protocol: nl.RouteProtocol})
	return slices.DeleteFunc(routes, func(r nl.Route) bool {
		return !veths[r.Dev] || !r.Dst.IsSingleIP() || taken[r.Dst.Addr()]
	}), err
}

// firstStray looks for the first pod for which packets from nodeAddr leave by a link other than the pod's veth. It
// returns a finding about this pod, or nil if there is no such pod.
func (p *Node) firstStray(nodeAddr netip.Addr, pods []nl.Route, rules []nl.Rule) ([]Finding, error) {
	for _, r := range pods {
		if pod := r.Dst.Addr(); pod.Is6() == nodeAddr.Is6() && !nodeAddr.IsLinkLocalUnicast() {
			dev, err := p.kernel.Leaves(nodeAddr, pod)
			if err != nil {
				return nil, err
			}
			if dev != r.Dev {
				return []Finding{p.strayFinding(nodeAddr, dev, r, rules)}, nil
			}
		}
	}
	return nil, nil
}

// strayFinding returns the finding that packets from nodeAddr to a pod leave by the link dev. r is the node's route to
// the pod.
func (p *Node) strayFinding(nodeAddr netip.Addr, dev string, r nl.Route, rules []nl.Rule) Finding {
	ip, bits := "ip", 31
	if nodeAddr.Is6() {
		ip, bits = "ip -6", 127
	}
	way := "leave by " + dev + " instead of the pod's veth. "
	if dev == "" {
		way = "have no route. "
	}
	a := Finding{Severity: warning, About: nodeAddr.String(),
		Means: fmt.Sprintf("the node's packets from this address to the pod %s %s", r.Dst.Addr(), way),
		Do:    fmt.Sprintf("to find the cause, run: %s rule; %[1]s route get %s from %s", ip, r.Dst.Addr(), nodeAddr)}
	if by, is := p.catchingRule("lo", nodeAddr, r.Dst.Addr(), rules); is {
		a.Means = fmt.Sprintf("because of the rule %q, ", by) + a.Means
		a.Do = fmt.Sprintf("run now and after each boot: %s rule add pref %d iif lo lookup main "+
			"suppress_prefixlength %d (docs/operations.md)", ip, prefBeforeAll(rules), bits)
	}
	switch {
	case dev == "":
		a.Severity = severe
		a.Means += "Node and pod do not reach each other"
	case nodeAddr.Is4() && p.checksSource(r.Dev):
		a.Severity = severe
		a.Means += "Node and pod do not reach each other, because rp_filter drops the pod's packets"
	default:
		a.Means += "The packets go through the VPC, where security groups may drop them"
	}
	return a
}

// strayArrivals looks for packets that arrive by the link host for a pod, and that the node does not forward to the
// pod's veth. Answers from the internet and calls of NodePorts arrive like this. It asks about a packet from the VPC's
// router, which has the first address of the subnet. own has the addresses of the link. It returns one finding per
// family at most.
func (p *Node) strayArrivals(host string, own []nl.Addr, pods []nl.Route, rules []nl.Rule) (found []Finding, _ error) {
	for _, f := range nl.Families {
		i := slices.IndexFunc(own, func(a nl.Addr) bool {
			return nl.FamilyOf(a.Prefix.Addr()) == f && !a.Prefix.Addr().IsLinkLocalUnicast()
		})
		if i < 0 {
			continue
		}
		from := own[i].Prefix.Masked().Addr().Next()
		for _, r := range pods {
			if nl.FamilyOf(r.Dst.Addr()) != f {
				continue
			}
			dev, err := p.kernel.Forwards(host, from, r.Dst.Addr())
			if err != nil {
				return found, err
			}
			if dev != "" && dev != r.Dev { // "": checkSysctls reports that the node does not forward
				found = append(found, p.arrivalFinding(host, from, dev, r, rules))
				break
			}
		}
	}
	return found, nil
}

// arrivalFinding returns the finding that packets from an address, which arrive by the link host for a pod, leave by
// the link dev. r is the node's route to the pod.
func (p *Node) arrivalFinding(host string, from netip.Addr, dev string, r nl.Route, rules []nl.Rule) Finding {
	ip, bits, to := "ip", 31, r.Dst.Addr()
	if to.Is6() {
		ip, bits = "ip -6", 127
	}
	a := Finding{Severity: severe, About: host,
		Means: fmt.Sprintf("packets that arrive by this link for the pod %s leave by %s instead of the pod's veth. "+
			"The pod gets neither answers from the internet nor calls of NodePorts", to, dev),
		Do: fmt.Sprintf("to find the cause, run: %s rule; %[1]s route get %s from %s iif %s", ip, to, from, host)}
	if by, is := p.catchingRule(host, from, to, rules); is {
		a.Means = fmt.Sprintf("because of the rule %q, ", by) + a.Means
		a.Do = fmt.Sprintf("run now and after each boot: %s rule add pref %d iif %s lookup main "+
			"suppress_prefixlength %d (docs/operations.md)", ip, prefBeforeAll(rules), host, bits)
	}
	return a
}

// catchingRule returns the first rule of another program that leads a packet without a mark to a route. It looks only
// at rules before the rule for the main table. iif is the link by which the packet arrives. It is lo for the node's own
// packets.
func (p *Node) catchingRule(iif string, from, to netip.Addr, rules []nl.Rule) (nl.Rule, bool) {
	for _, r := range rules {
		if r.Family != nl.FamilyOf(to) || r.Pref == 0 || r.Pref >= prefMain ||
			r.Protocol == nl.RouteProtocol || r.Table == nl.MainTable {
			continue
		}
		matches := (r.IIF == "" || r.IIF == iif) && r.OIF == "" && r.Mark == 0 &&
			(!r.From.IsValid() || r.From.Contains(from)) && (!r.To.IsValid() || r.To.Contains(to))
		if matches != r.Not && (r.Drop || p.hasRoute(r, to)) {
			return r, true
		}
	}
	return nl.Rule{}, false
}

// hasRoute reports whether the table of a rule has a route to an address.
func (p *Node) hasRoute(r nl.Rule, to netip.Addr) bool {
	routes, err := p.kernel.Routes(nl.RouteFilter{Table: r.Table, Family: r.Family})
	return r.Table != 0 && err == nil && slices.ContainsFunc(routes, func(o nl.Route) bool {
		return o.Dst.Contains(to) && o.Dst.Bits() >= r.MinLen && o.Type != "throw"
	})
}

// checksSource reports whether the kernel checks the source of packets that arrive by the link dev, which is a pod's
// veth. The higher value of two sysctls counts: the sysctl for all links, and the sysctl of the link (ip-sysctl,
// rp_filter). "loose" counts like "strict", because the kernel makes no difference at a link without an address, such
// as the veth.
func (p *Node) checksSource(dev string) bool {
	return slices.ContainsFunc([]string{"all", dev}, func(link string) bool {
		v, err := p.kernel.Sysctl("net/ipv4/conf/" + link + "/rp_filter")
		return err == nil && v != "0"
	})
}

// prefBeforeAll returns a preference for a rule that comes before all other rules, except the rule for the table local.
func prefBeforeAll(rules []nl.Rule) int {
	pref := 511 // our rule for NodePorts has 512
	for _, r := range rules {
		if r.Pref > 0 { // the rule for the table local has 0
			pref = min(pref, r.Pref-1)
		}
	}
	return pref
}
