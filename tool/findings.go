// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A finding is something about which two of the four do not say the same.
type finding struct {
	About    string `json:"about"`    // an address or an ENI
	Means    string `json:"means"`    // what it means
	Do       string `json:"do"`       // what to do about it
	Harmless bool   `json:"harmless"` // it passes by itself
}

// lag is for how long EC2, metadata, and an ADD under way may be behind without anything
// being wrong. Metadata was seen to be for minutes.
const lag = 10 * time.Minute

// young is for how long an ADD may take, and a little more.
const young = 2 * time.Minute

// findings lists what disagrees, what is harmless last.
func (k *comparison) findings() []finding {
	var fs []finding
	for _, id := range slices.Sorted(maps.Keys(k.eniIDs())) {
		if !k.changing[id] {
			fs = append(fs, k.judgeENI(id)...)
		}
	}
	for _, a := range k.addrs() {
		if !k.moving[a] {
			fs = append(fs, k.judge(a)...)
		}
	}
	slices.SortStableFunc(fs, func(a, b finding) int {
		switch {
		case a.Harmless == b.Harmless:
			return 0
		case a.Harmless:
			return 1
		}
		return -1
	})
	return fs
}

func (k *comparison) eniIDs() map[string]bool {
	ids := map[string]bool{}
	for id := range k.state.ENIs {
		ids[id] = true
	}
	for id := range k.ec2.enis {
		ids[id] = true
	}
	return ids
}

// judgeENI compares the four about an ENI.
func (k *comparison) judgeENI(id string) []finding {
	known, inRegistry := k.state.ENIs[id]
	e, inEC2 := k.ec2.enis[id]
	attached := inEC2 && e.Status != "available"
	switch {
	case known.Foreign:
		return nil // it is nobody's here
	case known.Draining:
		return []finding{{id, "a collection is about to delete it, or was interrupted", "the next " + Name + " registry-gc ends that", true}}
	case inRegistry && k.ec2.heard && !attached:
		return []finding{{id, "the registry has it, but EC2 says that it is not attached: pods on it have lost their network",
			"somebody has detached it (CloudTrail, DetachNetworkInterface): delete the pods on it; the next growth forgets it", false}}
	case inRegistry && k.links[known.MAC] == "":
		return []finding{{id, "the node has no link with its MAC address, " + known.MAC + ": no pod on it can start",
			"look into dmesg for the driver, and whether somebody has moved the link to another namespace", false}}
	case !inRegistry && attached:
		return []finding{{id, "it is attached, but the registry does not know it: no pod gets its addresses",
			"wait until metadata shows it, then run " + Name + " registry-gc, which learns it", !k.metadata.heard || k.metadata.enis[id].ID == ""}}
	case !inRegistry:
		return k.judgeStray(id)
	case k.ec2.heard:
		return k.judgePrefixes(id)
	}
	return nil
}

// judgePrefixes compares the registry with EC2 about the prefixes of an ENI.
func (k *comparison) judgePrefixes(id string) (fs []finding) {
	theirs := slices.Concat(k.ec2.enis[id].Prefixes, k.ec2.enis[id].IPv6Prefixes)
	var ours []netip.Prefix
	for _, p := range k.state.ENIs[id].Prefixes {
		ours = append(ours, p.CIDR)
	}
	for _, p := range theirs {
		if !slices.Contains(ours, p) {
			gone, unassigned := k.state.Gone[p.Addr()]
			fs = append(fs, finding{p.String(), "EC2 has it on " + id + ", but the registry does not know it: no pod gets its addresses",
				"run " + Name + " registry-gc, which learns it as soon as metadata shows it", unassigned && k.now.Sub(gone) < lag})
		}
	}
	for _, p := range ours {
		if !slices.Contains(theirs, p) {
			fs = append(fs, finding{p.String(), "the registry has it on " + id + ", but EC2 has not: pods with its addresses have lost their network, and the next ones would have none",
				"delete these pods, and then " + filepath.Join(registry.Dir(), "registry.json") + ", which is begun again", false})
		}
	}
	return fs
}

// inPrefix tells whether an address is in a prefix that the registry knows, of which a
// finding about the prefix says all.
func (k *comparison) inPrefix(h holding) bool {
	return slices.ContainsFunc(k.state.ENIs[h.ENI].Prefixes, func(p registry.Prefix) bool { return p.CIDR.Contains(h.Addr) })
}

// judgeStray judges an ENI that is meant for this node and not attached.
func (k *comparison) judgeStray(id string) []finding {
	if len(k.state.Intents) > 0 {
		return []finding{{id, "it was made for this node and is not attached: somebody is at it, or was interrupted",
			"the next ADD that needs an ENI attaches it, or the next " + Name + " registry-gc deletes it", true}}
	}
	return []finding{{id, fmt.Sprintf("it was made for this node (tag %s), is not attached, and nobody remembers why: it leaks", ipam.TagInstance),
		"run " + Name + " eni-gc twice, an hour apart", false}}
}

// judge compares the four about an address.
func (k *comparison) judge(a netip.Addr) []finding {
	h, known := k.holdings[a]
	at := a.String()
	switch {
	case known && h.leased():
		return k.judgeLeased(at, h)
	case k.own[a]:
		return nil // the node's
	case k.used.By[a] != "":
		return k.judgeUsed(at, a)
	case known && h.State != stateNode:
		return k.judgeFree(at, h)
	case known:
		return nil
	}
	return k.judgeUnknown(at, a)
}

// judgeLeased is about an address that the registry says a pod has.
func (k *comparison) judgeLeased(at string, h holding) (fs []finding) {
	on := k.ec2.on(h.Addr)
	if k.ec2.heard && on == "" {
		fs = append(fs, finding{at, h.owner() + " has it, but in EC2 it is on no ENI of this node: the pod has lost its network",
			"delete the pod; CloudTrail says who called UnassignPrivateIpAddresses", false})
	}
	if on != "" && h.ENI != on {
		fs = append(fs, finding{at, fmt.Sprintf("%s has it on %s, but in EC2 it is on %s: the pod has lost its network", h.owner(), orNone(h.ENI), on),
			"delete the pod; CloudTrail says who called AssignPrivateIpAddresses with AllowReassignment", false})
	}
	adding := h.State == stateReserved && h.Since != nil && k.now.Sub(*h.Since) < young
	if k.used.By[h.Addr] == "" && !k.used.Partial && !adding {
		fs = append(fs, finding{at, "it is leased to " + h.owner() + ", but no namespace has it: the pod ended without a DEL, or its ADD failed",
			"look whether cni-gc.timer is active: " + Name + " registry-gc ends the lease, when it has seen so twice", false})
	}
	return fs
}

// judgeUsed is about an address that is in a pod, of which the registry knows no lease.
func (k *comparison) judgeUsed(at string, a netip.Addr) []finding {
	where := k.used.By[a]
	if k.ec2.heard && k.ec2.on(a) == "" {
		return []finding{{at, where + " has it, but in EC2 it is on no ENI of this node: what it sends is dropped",
			"find the pod by its namespace (lsns -t net) and delete it", false}}
	}
	return []finding{{at, where + " has it, but the registry has no lease: the next pod might get it, too",
		"run " + Name + " registry-gc, which finds addresses in use and leases them", false}}
}

// judgeFree is about an address that the registry says the next pod can have.
func (k *comparison) judgeFree(at string, h holding) []finding {
	on := k.ec2.on(h.Addr)
	switch {
	case !k.ec2.heard || on == h.ENI && on != "" || k.state.ENIs[h.ENI].Draining || on == "" && k.inPrefix(h):
		return nil
	case on != "":
		return []finding{{at, fmt.Sprintf("the registry has it on %s, EC2 on %s: a pod that gets it would have no network", orNone(h.ENI), on),
			"move it back, or run " + Name + " deallocate " + at, false}}
	}
	return []finding{{at, "it is free in the registry, but in EC2 it is on no ENI of this node: a pod that gets it would have no network",
		"run " + Name + " deallocate " + at + ", which takes it out of the registry; CloudTrail says who unassigned it", false}}
}

// judgeUnknown is about an address that only EC2 or metadata knows.
func (k *comparison) judgeUnknown(at string, a netip.Addr) []finding {
	gone, unassigned := k.state.Gone[a]
	id := k.ec2.on(a)
	switch e := k.ec2.enis[id]; {
	case unassigned && k.now.Sub(gone) < lag:
		return []finding{{at, "this node unassigned it " + brief(k.now.Sub(gone)) + " ago, and some still show it", "wait", true}}
	case k.ec2.heard && id == "":
		return []finding{{at, "metadata shows it, but EC2 says that it is gone: metadata is behind", "wait some minutes", true}}
	case id != "" && e.Status != "available" && k.state.ENIs[id].MAC != "" && !k.state.ENIs[id].Foreign:
		return []finding{{at, "EC2 has it on " + id + ", but the registry does not know it: no pod gets it",
			"somebody else has assigned it: run " + Name + " registry-gc, which learns it as soon as metadata shows it", false}}
	}
	return nil
}

func orNone(eni string) string {
	if eni == "" {
		return "no ENI"
	}
	return eni
}
