// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"context"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// An Observation has the answers of the four sources: registry, kernel, metadata and EC2. A program can compare the
// answers later, and on another machine.
type Observation struct {
	Now      time.Time                 `json:"now"`
	State    *registry.State           `json:"-"`
	Used     []UsedAddr                `json:"used"`    // addresses of pods in the kernel
	Partial  bool                      `json:"partial"` // at least one namespace could not be read
	InPods   []string                  `json:"in_pods"` // ENIs whose link is, or may be, in a pod
	Routed   map[netip.Addr]string     `json:"routed"`  // addresses to which the node has a host route
	Own      []netip.Addr              `json:"own"`     // the node's own addresses
	Links    map[string]string         `json:"links"`   // names by MAC address
	Metadata Said                      `json:"metadata"`
	EC2      Said                      `json:"ec2"`
	Lacking  map[string][]netip.Prefix `json:"lacking"`  // by VPC: CIDRs that EC2 shows and metadata does not
	Moving   []netip.Addr              `json:"moving"`   // addresses that other processes changed during Observe
	Changing []string                  `json:"changing"` // ENIs that came or went during Observe

	KeepsENIs bool `json:"keeps_enis"` // the configuration forbids the deletion of ENIs
}

// A UsedAddr is an address in use. The field Where names the place that has the address, for example a namespace.
type UsedAddr struct {
	MAC   string     `json:"mac"` // of the ENI; "": not known
	Addr  netip.Addr `json:"ip"`
	Where string     `json:"where"`
}

// Said is the answer of the metadata service or of EC2.
type Said struct {
	Answered bool      `json:"answered"`
	ENIs     []aws.ENI `json:"enis"`
}

// Observe asks all four sources. It reads the registry before the other sources, and again after them. A difference
// about an entry that other processes have meanwhile changed is not a finding.
func Observe(ctx context.Context, p *ipam.Pool, conflists *conf.Conflists) (*Observation, error) {
	before, err := p.Registry.View()
	if err != nil {
		return nil, err
	}
	o := &Observation{Now: time.Now(), Metadata: metadataSays(ctx, p.Cloud),
		EC2: ec2Says(ctx, p.Cloud, before)}
	if err := o.addKernel(p.Host, before); err != nil {
		return nil, err
	}
	if o.State, err = p.Registry.View(); err != nil {
		return nil, err
	}
	o.Lacking = lackingOf(ctx, p.Cloud, o.Metadata, conflists.Routed())
	o.recordChanges(before, conflists.ReuseWait)
	policy, _ := conflists.Common() // if the configuration cannot be read, validate and doctor report it
	o.KeepsENIs = policy.Provision == lease.ProvisionAssign || policy.Provision == lease.ProvisionNone
	return o, nil
}

// addKernel adds what the kernel shows about the node and its pods.
func (o *Observation) addKernel(host *nl.NS, before *registry.State) error {
	used := lease.UsedAddrs(host, lease.MACs(before)...)
	o.Partial = used.Partial
	for at, where := range used.By {
		o.Used = append(o.Used, UsedAddr{at.MAC, at.Addr, where})
	}
	for id, e := range before.ENIs {
		if used.InPod(e.MAC) {
			o.InPods = append(o.InPods, id)
		}
	}
	own, err := host.Addrs("")
	if err != nil {
		return err
	}
	for _, a := range own {
		o.Own = append(o.Own, a.Prefix.Addr())
	}
	if o.Routed, err = hostRoutes(host); err != nil {
		return err
	}
	o.Links, err = LinkNames()
	return err
}

// hostRoutes returns the addresses to which the node has a host route. A host route shows the address of a pod even if
// this process cannot see the pod's namespace.
func hostRoutes(host *nl.NS) (map[netip.Addr]string, error) {
	routes, err := host.Routes(nl.RouteFilter{Table: nl.MainTable})
	routed := map[netip.Addr]string{}
	for _, r := range routes {
		if r.Dst.IsSingleIP() {
			routed[r.Dst.Addr()] = "route dev " + r.Dev
		}
	}
	return routed, err
}

// recordChanges records which addresses and ENIs of the registry differ from the earlier state "before".
func (o *Observation) recordChanges(before *registry.State, wait func(string) time.Duration) {
	was, is := map[netip.Addr]Holding{}, map[netip.Addr]Holding{}
	for _, h := range Tally(before, wait, o.Now) {
		was[h.Addr] = h
	}
	for _, h := range Tally(o.State, wait, o.Now) {
		is[h.Addr] = h
		old, known := was[h.Addr]
		if !known || old.State != h.State || old.Container != h.Container || old.ENI != h.ENI {
			o.Moving = append(o.Moving, h.Addr)
		}
	}
	o.Moving = append(o.Moving, missingKeys(was, is)...)
	o.Changing = append(missingKeys(before.ENIs, o.State.ENIs), missingKeys(o.State.ENIs, before.ENIs)...)
}

// missingKeys returns the keys of the first map that the second map does not have.
func missingKeys[K comparable, V any](all, other map[K]V) (keys []K) {
	for k := range all {
		if _, has := other[k]; !has {
			keys = append(keys, k)
		}
	}
	return keys
}

// Compare compares the answers of the four sources. reuseWait returns how long the addresses of a pool cool.
func (o *Observation) Compare(reuseWait func(pool string) time.Duration) *Comparison {
	k := &Comparison{now: o.Now, state: o.State, keepsENIs: o.KeepsENIs, routed: o.Routed, links: o.Links,
		lacking: o.Lacking, Metadata: sourceOf(o.Metadata), EC2: sourceOf(o.EC2), inPods: setOf(o.InPods),
		own: setOf(o.Own), moving: setOf(o.Moving), changing: setOf(o.Changing), holdings: map[netip.Addr]Holding{},
		used: lease.Used{By: map[lease.At]string{}, Partial: o.Partial}}
	for _, u := range o.Used {
		k.used.By[lease.At{MAC: u.MAC, Addr: u.Addr}] = u.Where
	}
	for _, h := range Tally(o.State, reuseWait, o.Now) {
		k.holdings[h.Addr] = h
	}
	return k
}

func setOf[K comparable](values []K) map[K]bool {
	keys := map[K]bool{}
	for _, k := range values {
		keys[k] = true
	}
	return keys
}
