// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// A Finding is a difference between two of the four sources: registry, kernel, metadata and EC2.
type Finding struct {
	About    string `json:"about"` // an address or an ENI
	Means    string `json:"means"`
	Do       string `json:"do"`
	Harmless bool   `json:"harmless"` // the difference ends by itself
}

// longestLag limits how long EC2 or metadata may still show an address or a prefix after this node has unassigned it.
// Metadata was sometimes several minutes behind EC2.
const longestLag = 10 * time.Minute

// longestADD is a little more than the time that an ADD may take.
const longestADD = 2 * time.Minute

// waitForEC2 is what an operator must do if EC2's answers do not show EC2's latest change yet.
const waitForEC2 = "wait half a minute"

// mayLack reports whether EC2's answer may still lack a change that EC2 made at the time changedAt.
func (k *Comparison) mayLack(changedAt time.Time) bool { return known.MayLack(changedAt, k.now) }

// mayLackAddr reports whether EC2's answer may still lack an address of the registry.
func (k *Comparison) mayLackAddr(h Holding) bool {
	return known.MayLackAddr(k.state, k.state.ENIs[h.ENI], h.Addr, k.now)
}

// emptyRegistry is the text about a registry without ENIs.
const emptyRegistry = "the registry is empty. No pod has asked for an address since the boot, or the registry was " +
	"deleted"

// Findings lists all differences, the harmless ones last.
func (k *Comparison) Findings() []Finding {
	var fs []Finding
	if k.isEmpty() {
		fs = append(fs,
			Finding{"registry", emptyRegistry, "nothing: the next ADD builds the registry from the kernel, metadata " +
				"and EC2. To build it now, run: " + cli.Name + " registry-gc --free-after=15m", true})
	}
	for _, vpc := range slices.Sorted(maps.Keys(k.lacking)) {
		for _, c := range k.lacking[vpc] {
			fs = append(fs, Finding{c.String(), "EC2 has this CIDR of " + vpc +
				", but the metadata service does not show it, so new pods have no route to it by their ENI",
				"if the CIDR is new, wait some minutes until metadata shows it. Otherwise add the CIDR to routeToCidrs",
				false})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(k.eniIDs())) {
		if !k.changing[id] {
			fs = append(fs, k.judgeENI(id)...)
		}
	}
	for _, a := range k.allAddrs() {
		if !k.moving[a] {
			fs = append(fs, k.judgeAddr(a)...)
		}
	}
	slices.SortStableFunc(fs, func(a, b Finding) int {
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

// isEmpty reports whether the registry knows nothing yet. If the registry is empty, a missing entry is no finding.
func (k *Comparison) isEmpty() bool { return len(k.state.ENIs) == 0 }

func (k *Comparison) eniIDs() map[string]bool {
	ids := map[string]bool{}
	for id := range k.state.ENIs {
		ids[id] = true
	}
	for id := range k.EC2.enis {
		ids[id] = true
	}
	return ids
}

// judgeENI compares what the four sources say about an ENI.
func (k *Comparison) judgeENI(id string) []Finding {
	known, inRegistry := k.state.ENIs[id]
	e, inEC2 := k.EC2.enis[id]
	attached := inEC2 && e.Status != "available"
	switch phase := known.Phase(); {
	case phase == registry.Foreign:
		return nil // no finding, because pods get no addresses of this ENI
	case phase == registry.Draining && known.OnRequest:
		return []Finding{{id, "a collection is detaching this ENI, because no pod uses the ENI any more. " +
			"The node does not delete the ENI",
			"the next " + cli.Name + " registry-gc detaches the ENI. If the ENI must stay, pods can ask for it again",
			true}}
	case phase == registry.Draining && k.keepsENIs && e.Status == "available" && !k.mayLack(known.Detaching):
		return []Finding{{id, `a process has detached this ENI, but has not deleted it. The key "provision" of the ` +
			"configuration forbids the deletion of ENIs. So the ENI stays, and counts against the account's quota of " +
			"ENIs",
			"run " + cli.Name + " remove-interface " + id, false}}
	case phase == registry.Draining && k.keepsENIs:
		return []Finding{{id, `a process has begun to delete this ENI, but the key "provision" of the configuration ` +
			"forbids the deletion of ENIs",
			"if the ENI stays attached, pods can have its addresses again after the next " + cli.Name + " registry-gc",
			true}}
	case phase == registry.Draining:
		return []Finding{{id, "a collection is about to delete this ENI, or was interrupted",
			"the next " + cli.Name + " registry-gc finishes the deletion", true}}
	case inRegistry && k.EC2.Answered && !attached && k.mayLack(known.Grown):
		return []Finding{{id, "this ENI is new, and EC2 does not show it as attached yet", waitForEC2, true}}
	case inRegistry && k.EC2.Answered && !attached:
		return []Finding{{id,
			"the registry has this ENI, but in EC2 it is not attached, so pods on it have lost their network",
			"another program or an operator has detached the ENI (CloudTrail shows DetachNetworkInterface). Delete " +
				"the pods of this ENI, or attach the ENI again. When all addresses of the ENI have been free for the " +
				"time of --free-after, " + cli.Name + " registry-gc removes the ENI from the registry. It also " +
				`deletes the ENI, if this node has created the ENI, and "provision" is "full"`, false}}
	case inRegistry && k.links[known.MAC] == "" && !k.isInPod(id):
		if known.Link == "" && !known.NoLink(k.now) {
			return []Finding{{id, "the node does not have the link of this ENI yet (MAC address " + known.MAC +
				"). New pods on this ENI wait for the link", "wait half a minute", true}}
		}
		return []Finding{{id, "the node does not have the link of this ENI (MAC address " + known.MAC +
			"). Pods on this ENI have lost their network, and new pods do not use the ENI",
			"look in dmesg for errors of the network driver. Find out whether another program has moved the link to " +
				"another namespace. The ENI serves pods again when the link is back", false}}
	case attached && k.isEmpty():
		return nil
	case !inRegistry && attached:
		return []Finding{{id, "this ENI is attached, but the registry does not have it, so no pod gets its addresses",
			"wait until metadata shows the ENI, then run " +
				cli.Name + " registry-gc --free-after=15m, which adds it to the registry",
			!k.Metadata.Answered || k.Metadata.enis[id].ID == ""}}
	case !inRegistry:
		return k.judgeStray(id)
	case k.EC2.Answered:
		return k.judgePrefixes(id)
	}
	return nil
}

// isInPod reports whether the link of an ENI is in a pod that has the whole ENI.
func (k *Comparison) isInPod(id string) bool {
	return k.inPods[id] && k.state.Exclusive()[id]
}

// judgePrefixes compares the prefixes that the registry and EC2 have on an ENI.
func (k *Comparison) judgePrefixes(id string) (fs []Finding) {
	theirs := slices.Concat(k.EC2.enis[id].Prefixes, k.EC2.enis[id].IPv6Prefixes)
	ours := k.state.ENIs[id].Prefixes
	for _, p := range theirs {
		if !slices.ContainsFunc(ours, func(o registry.Prefix) bool { return o.CIDR == p }) {
			gone, unassigned := k.state.Gone[p.Addr()]
			fs = append(fs, Finding{p.String(), "EC2 has this prefix on " + id +
				", but the registry does not, so no pod gets its addresses",
				"wait until metadata shows the prefix, then run " + cli.Name +
					" registry-gc --free-after=15m, which adds the prefix to the registry",
				unassigned && k.now.Sub(gone) < longestLag})
		}
	}
	for _, p := range ours {
		switch {
		case slices.Contains(theirs, p.CIDR):
		case k.mayLack(p.Since):
			fs = append(fs, Finding{p.CIDR.String(), "this prefix of " + id + " is new, and EC2 does not show it yet",
				waitForEC2, true})
		default:
			fs = append(fs, Finding{p.CIDR.String(), "the registry has this prefix on " + id +
				", but EC2 does not. Pods with addresses of the prefix have lost their network, and a new pod with " +
				"such an address would have no network",
				"delete the pods with addresses of the prefix, then run " + cli.Name +
					" registry-gc --free-after=15m, which asks EC2 and removes the prefix from the registry", false})
		}
	}
	return fs
}

// inPrefix reports whether an address is in one of the prefixes that the registry has on the ENI of the address. If EC2
// lacks the prefix, judgePrefixes reports this, so the address needs no finding of its own.
func (k *Comparison) inPrefix(h Holding) bool {
	return slices.ContainsFunc(k.state.ENIs[h.ENI].Prefixes, func(p registry.Prefix) bool {
		return p.CIDR.Contains(h.Addr)
	})
}

// judgeStray returns the finding about an ENI that was created for this node, but is not attached.
func (k *Comparison) judgeStray(id string) []Finding {
	if len(k.state.Intents) > 0 || k.isEmpty() || !k.state.Rebuilt.Since.IsZero() {
		next := "the next ADD that needs a new ENI attaches this ENI, or the next " + cli.Name +
			" registry-gc deletes this ENI"
		switch {
		case k.EC2.enis[id].Tags[book.TagManaged] == "false":
			next = "within 15 minutes after the interruption, repeat " + cli.Name + " new-interface, which continues " +
				"with this ENI. Later, or after a loss of the registry, new-interface may create another ENI: then " +
				"delete this ENI by " + cli.Name + " eni-gc"
		case k.keepsENIs:
			next = `an ADD of a network with "provision": "full" may attach the ENI. If the ENI is still ` +
				"not attached 15 minutes after the interruption, run " + cli.Name + " registry-gc, and then " +
				cli.Name + " remove-interface " + id
		}
		return []Finding{{id, "this ENI was created for this node and is not attached. A process is about to attach " +
			"the ENI, or was interrupted", next, true}}
	}
	return []Finding{{id, fmt.Sprintf("this ENI was created for this node (tag %s), but is not attached, and no "+
		"process works on it. It is left over, and counts against the account's quota of ENIs", book.TagInstance),
		"run " + cli.Name + " eni-gc twice, an hour apart", false}}
}

func (k *Comparison) judgeAddr(a netip.Addr) []Finding {
	h, known := k.holdings[a]
	at := a.String()
	switch {
	case known && h.Leased():
		return k.judgeLeased(at, h)
	case k.own[a]:
		return nil // an address of the node itself
	case k.usePlace(a) != "":
		return k.judgeUsed(at, a)
	case known && h.State != StateNode:
		return k.judgeFree(at, h)
	case known:
		return nil
	}
	return k.judgeUnknown(at, a)
}

// unassignedBy is how an operator finds out why EC2 lacks an address.
const unassignedBy = "CloudTrail shows the caller that unassigned the address"

// judgeLeased returns the findings about an address with a lease.
func (k *Comparison) judgeLeased(at string, h Holding) (fs []Finding) {
	on := k.EC2.eniOf(h.Addr)
	// The pod's link stays on the ENI of its lease, even if the address moves to another ENI.
	l, _ := k.state.Leases.At(h.Addr)
	its := cmp.Or(l.ENI, h.ENI)
	switch {
	case !k.EC2.Answered || on != "" && on == its:
	case k.mayLackAddr(h):
		fs = append(fs, Finding{at, h.Owner() + " has this address. The address is new on " + its +
			", and EC2 does not show it there yet", waitForEC2, true})
	case on == "":
		fs = append(fs,
			Finding{at, h.Owner() + " has this address, but in EC2 the address is on no ENI of this node, so the pod " +
				"has lost its network",
				"delete the pod. " + unassignedBy, false})
	default:
		fs = append(fs, Finding{at, fmt.Sprintf("%s has this address on %s, but in EC2 the address is on %s, so the "+
			"pod has lost its network", h.Owner(), orNone(its), on),
			"delete the pod. CloudTrail shows the caller that assigned the address to the other ENI", false})
	}
	adding := h.State == StateReserved && h.Since != nil && k.now.Sub(*h.Since) < longestADD
	if k.usePlace(h.Addr) == "" && !k.used.Partial && !adding {
		fs = append(fs, Finding{at, "this address is leased to " + h.Owner() +
			", but no namespace has the address. The pod ended without a DEL, or its ADD failed",
			"check that cni-gc.timer is active. " + cli.Name +
				" registry-gc ends the lease when two of its runs have found the address in no namespace", false})
	}
	return fs
}

// judgeUsed returns the findings about an address that is in use in a namespace, but has no lease.
func (k *Comparison) judgeUsed(at string, a netip.Addr) []Finding {
	where := k.usePlace(a)
	if k.state.ENIs[cmp.Or(k.EC2.eniOf(a), k.Metadata.eniOf(a))].Foreign {
		return nil // no pod gets the address
	}
	if k.EC2.Answered && k.EC2.eniOf(a) == "" && !k.mayLackAddr(k.holdings[a]) {
		return []Finding{{at, "this address is in use (" + where + "), but in EC2 it is on no ENI of this node, so " +
			"EC2 drops packets from this address",
			"find the pod with this address, and delete the pod (lsns -t net lists the namespaces)", false}}
	}
	if k.isEmpty() {
		return nil // no finding: the process that fills the empty registry finds this address, and makes a lease for it
	}
	return []Finding{{at, "this address is in use (" + where + "), but the registry has no lease of it. The next pod " +
		"might also get the address",
		"run " + cli.Name + " registry-gc --free-after=15m, which makes leases of addresses that are in use", false}}
}

// judgeFree returns the findings about an address that has no lease, and that the next pod could get.
func (k *Comparison) judgeFree(at string, h Holding) []Finding {
	on := k.EC2.eniOf(h.Addr)
	switch {
	case h.ENI == "" && on == "":
		return nil // a leftover of the original plugin: an address on no ENI, which no pod gets
	case !k.EC2.Answered || on == h.ENI || k.state.ENIs[h.ENI].Draining || on == "" && k.inPrefix(h):
		return nil
	case k.mayLackAddr(h):
		return []Finding{{at, "this free address is new on " + h.ENI + ", and EC2 does not show it there yet",
			waitForEC2, true}}
	case on != "":
		return []Finding{{at,
			fmt.Sprintf("the registry has this address on %s, but EC2 has it on %s. A pod with this address would "+
				"have no network", orNone(h.ENI), on),
			"move the address back, or run " + cli.Name +
				" registry-gc --free-after=15m, which asks EC2 and removes the address from the registry", false}}
	}
	return []Finding{{at, "this address is free in the registry, but in EC2 it is on no ENI of this node. A pod with " +
		"this address would have no network",
		"run " + cli.Name + " registry-gc --free-after=15m, which asks EC2 and removes the address from the " +
			"registry. " + unassignedBy, false}}
}

// judgeUnknown returns the findings about an address that only EC2 or metadata shows.
func (k *Comparison) judgeUnknown(at string, a netip.Addr) []Finding {
	gone, unassigned := k.state.Gone[a]
	id := k.EC2.eniOf(a)
	switch e := k.EC2.enis[id]; {
	case unassigned && k.now.Sub(gone) < longestLag:
		return []Finding{{at, "this node unassigned this address " + Brief(k.now.Sub(gone)) +
			" ago, but EC2 or metadata still shows it", "wait some minutes", true}}
	case k.EC2.Answered && id == "":
		return []Finding{{at, "metadata still shows this address, but EC2 no longer has it: metadata is behind EC2",
			"wait some minutes", true}}
	case id != "" && e.Status != "available" && k.state.ENIs[id].MAC != "" && !k.state.ENIs[id].Foreign:
		return []Finding{{at, "EC2 has this address on " + id + ", but the registry does not, so no pod gets it",
			"an operator or another program has assigned the address. Wait until metadata shows the address, then " +
				"run " + cli.Name + " registry-gc --free-after=15m, which adds the address to the registry", false}}
	}
	return nil
}

func orNone(eni string) string {
	if eni == "" {
		return "no ENI"
	}
	return eni
}
