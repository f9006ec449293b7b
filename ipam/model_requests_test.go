// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// In some histories, pods ask for up to four interfaces. A pod can ask for security groups, for an address, for an ENI
// that an operator has created, or for a whole ENI. The pods get what they ask for, and no other pod has an address of
// a whole ENI. Pods get addresses of the operator's ENI only if they ask for it. The node only attaches and detaches
// this ENI, and in the end, it is detached.

// requests makes ENIs for such pods, and a configuration that allows all of these requests.
func (m *model) requests() {
	m.changes = m.chance(50)
	m.configure()
	for range 1 + m.rng.IntN(2) {
		id := m.make("", "", m.rng.IntN(2), "for", "request")
		m.given[id] = *m.find(id)
	}
	m.logf("pods may ask for %v", slices.Sorted(maps.Keys(m.given)))
}

// configure makes a configuration from the policies. interfaceIndex and the families are those of the first policy.
func (m *model) configure() {
	c := map[string]any{"interfaceIndex": m.policies[0].MinIndex, "addTimeout": 10,
		"reuseIPWait": m.policies[0].ReuseWait / time.Second, "requests": []lease.Permission{{
			Namespaces: []string{"*"}, SecurityGroups: []string{"sg-2"}, ENIs: map[string]string{"for": "request"},
			IPs: true, Exclusive: true, Max: 4}}}
	var families []string
	for _, f := range m.policies[0].Families {
		families = append(families, f.String())
	}
	c["ipFamilies"] = families
	pools := map[string]any{}
	for _, p := range m.policies {
		keys := map[string]any{"subnetTags": p.SubnetTags, "secGroupIds": []string{}, "ipBatchSize": p.Batch,
			"prefixDelegation": p.Prefixes,
			"skipDeallocation": p.Keep, "warm": p.Warm}
		if p.Pool == "" {
			maps.Copy(c, keys)
			continue
		}
		keys["namespaces"] = []string{p.Pool}
		pools[p.Pool] = keys
	}
	c["pools"] = pools
	text, err := json.Marshal(c)
	must(m, err)
	m.conf = &lease.Config{}
	must(m, json.Unmarshal(text, m.conf))
	must(m, m.conf.Validate())
	m.policies, m.common = m.conf.Policies(), lease.Common(m.conf.Policies()[0])
}

// ask lets a new pod ask for its interfaces, in some cases. In some of these, the pod is an earlier pod that is created
// again, with the same request.
func (m *model) ask(p *modelPod) {
	if m.conf == nil || !m.chance(40) {
		return
	}
	was := m.choose(func(o *modelPod) bool { return o.asks && !o.alive && !o.valid })
	if was != nil && m.chance(50) {
		p.Pod, p.policy, p.asked, p.asks = was.Pod, was.policy, was.asked, true
		m.logf("%s is %s again", p.name(), p.Pod)
		return
	}
	address := fmt.Sprintf(`"ip": "100.78.0.%d"`, 4+m.rng.IntN(24))
	if !slices.Contains(m.policies[0].Families, lease.IPv4) {
		address = `"ip": ""`
	}
	eni := pick(m.rng, slices.Sorted(maps.Keys(m.given))...)
	asks := []string{`"securityGroups": ["sg-2"]`, address, `"securityGroups": ["sg-2"], ` + address,
		fmt.Sprintf(`"eni": %q`, eni), `"exclusive": true`, `"exclusive": true, "securityGroups": ["sg-2"]`}
	text := "[{" + pick(m.rng, asks...) + "}]"
	// no two interfaces of the pod ask for the same address, or for the same ENI
	for m.chance(40) && strings.Count(text, "{") < 3 {
		text = text[:len(text)-1] + ", {" + pick(m.rng, "", asks[0], asks[4]) + "}]"
		if m.chance(20) {
			text = "[{}, " + text[1:]
		}
	}
	if p.Pod.Namespace = m.policies[p.policy].Pool; p.Pod.Namespace == "" {
		p.Pod.Namespace = "default"
	}
	c := *m.conf
	c.RuntimeConfig.Annotations = map[string]string{nic.Annotation: text}
	policies, err := c.Interfaces("net", "eth0", p.Pod)
	must(m, err)
	p.asked, p.asks = policies, true
	m.logf("%s asks for %s", p.name(), text)
}

// verifyAsked checks that an interface of a pod is what the pod has asked for, and nothing that other pods ask for.
func (m *model) verifyAsked(p *modelPod, policy lease.Policy, got lease.Allocation) {
	choice := policy.Choice
	if e := m.find(got.ID); e != nil && strings.Contains(policy.Pool, "/sg-") &&
		!slices.Equal(e.SecurityGroups, policy.SecurityGroups) {
		m.wrong("%s has asked for %v, and %s has %v", p.name(), policy.SecurityGroups, got.ID, e.SecurityGroups)
	}
	for _, a := range choice.Addrs {
		if !slices.Contains(got.Addrs, a) {
			m.wrong("%s has asked for %s, and has %v", p.name(), a, got.Addrs)
		}
	}
	if _, given := m.given[got.ID]; given && got.ID != choice.ENI || !given && choice.ENI != "" {
		m.wrong("%s has asked for %q, and has %v of %s", p.name(), choice.ENI, got.Addrs, got.ID)
	}
}

// verifyApart checks the ENI of one interface of a pod. The check fails if another interface has an address of this
// ENI, and one of the two interfaces asked for a whole ENI.
func (m *model) verifyApart(p *modelPod, nic int, all []lease.Allocation) {
	id := all[nic].ID
	own := p.asked
	for i, other := range all {
		if i != nic && other.ID == id && own[nic].Choice.Exclusive {
			m.wrong("interfaces %d and %d of %s are on %s, and it has asked for the whole ENI", nic+1, i+1,
				p.name(), id)
		}
	}
	e := m.find(id)
	if e == nil {
		return
	}
	for _, o := range m.pods {
		if o == p || !o.alive {
			continue
		}
		for _, a := range o.addrs {
			whole := own[nic].Choice.Exclusive || m.policyOf(o, a).Choice.Exclusive
			if carriesAddr(*e, a) && whole {
				m.wrong("%s and %s have addresses of %s, and one of them has asked for the whole ENI", p.name(),
					o.name(), id)
			}
		}
	}
}

// policyOf returns the policy of the pod's interface that has the address a.
func (m *model) policyOf(p *modelPod, a netip.Addr) lease.Policy {
	of := p.asked
	return of[slices.Index(p.addrs, a)/len(of[0].Families)%len(of)]
}

// carriesAddr reports whether an ENI of EC2 has an address, by itself or in a prefix.
func carriesAddr(e ec2sim.ENI, a netip.Addr) bool {
	return slices.Contains(e.Addrs, a) || slices.Contains(e.IPv6Addrs, a) ||
		slices.ContainsFunc(slices.Concat(e.Prefixes, e.IPv6Prefixes),
			func(c netip.Prefix) bool { return c.Contains(a) })
}

// verifyGiven checks that the ENIs for which pods ask are as an operator has made them.
func (m *model) verifyGiven() {
	for id, was := range m.given {
		is := m.find(id)
		switch {
		case is == nil:
			m.wrong("%s, for which pods ask, is deleted", id)
			delete(m.given, id)
		case is.Instance != "" && is.Instance != m.ID || is.DeleteOnTermination ||
			!maps.Equal(is.Tags, was.Tags) ||
			!slices.Equal(is.Addrs, was.Addrs) || !slices.Equal(is.Prefixes, was.Prefixes) ||
			!slices.Equal(is.SecurityGroups, was.SecurityGroups):
			m.wrong("%s, for which pods ask, was %+v and is %+v", id, was, *is)
			delete(m.given, id)
		}
	}
}

// verifyDetached checks that none of the ENIs for which pods ask is attached when all pods have ended.
func (m *model) verifyDetached() {
	for id := range m.given {
		if e := m.find(id); e != nil && e.Instance != "" {
			m.wrong("%s is attached, and no pod uses it", id)
		}
	}
}
