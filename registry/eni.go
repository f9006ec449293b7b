// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry/indexed"
)

// An ENI is the registry's entry of an ENI. It has all that a warm ADD needs to know, so a warm ADD asks neither EC2
// nor metadata.
//
//codec:describe kept
type ENI struct {
	MAC string `json:"mac"`
	// the name of the ENI's link when a process last saw it. The name may change, and is only a hint: the MAC
	// identifies the link
	Link   string       `json:"link,omitempty"`
	Index  int          `json:"index"` // device index on its network card
	Card   int          `json:"card,omitempty"`
	Subnet string       `json:"subnet"`
	CIDR   netip.Prefix `json:"cidr,omitzero"`  // of the subnet; zero if the subnet has no IPv4
	CIDR6  netip.Prefix `json:"cidr6,omitzero"` // of the subnet; zero if the subnet has no IPv6
	VPC    string       `json:"vpc"`

	// Addrs has the addresses of both families. If the ENI has IPv4, the first address is the primary one.
	Addrs    []netip.Addr `json:"addrs" codec:"member indexed.Addrs"`
	Prefixes []Prefix     `json:"prefixes,omitempty" codec:"member describePrefixes"`
	Read     time.Time    `json:"read"`           // when EC2 or metadata last reported the ENI
	Grown    time.Time    `json:"grown,omitzero"` // when EC2 last gave the ENI addresses

	Pool string `json:"pool,omitempty"` // the pool that the ENI serves; empty: the default pool
	Keep bool   `json:"keep,omitempty"` // skipDeallocation: the node never unassigns its addresses
	// an operator has retired the ENI, so new pods get none of its addresses. If Managed is true, a collection deletes
	// the ENI as soon as no pod has an address of the ENI
	Retired bool `json:"retired,omitempty"`
	// a collection has found that the configuration no longer has the pool, and that no pod of the pool runs
	PoolGone bool `json:"poolGone,omitempty"`

	// The method Phase uses the fields from Draining to Serving, except Detaching. Only the methods in phase.go change
	// the fields that Phase uses.
	Draining bool `json:"draining,omitempty"`
	// when a process began to detach the ENI; zero if no process has begun, or if EC2 has refused to detach the ENI
	Detaching time.Time `json:"detaching,omitzero"`
	Foreign   bool      `json:"foreign,omitempty"`
	Detached  bool      `json:"detached,omitempty"`
	// why EC2 has not reported the ENI's tags: NotAsked or NotAllowed; empty if EC2 has reported them. For the boot
	// ENI, NotAsked means that EC2 has not confirmed the ENI's addresses
	TagsUnknown string `json:"tagsUnknown,omitempty"`
	Passed      bool   `json:"passed,omitempty"`
	Serving     bool   `json:"serving,omitempty"`

	// The origin of the ENI follows from Boot, OnRequest and Managed: see Origin. Boot is true if metadata reports this
	// ENI as the boot ENI. Earlier releases did not always set Boot: see IsBoot.
	Boot      bool `json:"boot,omitempty"`
	OnRequest bool `json:"onRequest,omitempty"` // a pod has asked for this ENI
	Managed   bool `json:"managed,omitempty"`   // this node has created this ENI for pods
	// an operator's command has created this ENI, but has not finished yet; if the operator repeats the command, the
	// command continues with this ENI
	Provisioning bool `json:"provisioning,omitempty"`

	// Missed is the time when a process first found that the ENI's link was not on the node. It is zero if no process
	// has found this.
	Missed time.Time `json:"missed,omitzero"`

	// EC2 has reported Groups, Tags and SubnetTags. They are set only if PoolUnknown is true, or if the ENI was not
	// created for pods. SubnetTags are the tags of the ENI's subnet.
	Groups     []string          `json:"groups,omitempty"`
	Tags       map[string]string `json:"tags,omitempty"`
	SubnetTags map[string]string `json:"subnetTags,omitempty"`
	// the ENI's description says that a node created the ENI for pods, but no tag of the ENI names the ENI's pool
	PoolUnknown bool `json:"poolUnknown,omitempty"`

	// Settings has the settings that the ENI's link had before a pod got the whole ENI. The registry keeps these
	// settings until a process has restored them on the link.
	Settings map[string]string `json:"settings,omitempty"`
}

// eniFuncs has the functions that [indexed.KeptTable] needs for the registry's table of ENIs.
var eniFuncs = indexed.ValueFuncs[ENI]{Same: (*ENI).same, Clone: (*ENI).clone}

// IsBoot reports whether the ENI is the boot ENI. If Boot is false, IsBoot looks at the device index, because the boot
// ENI is almost always at device index 0 of card 0. The index alone is not enough: SageMaker HyperPod launches
// instances whose boot ENI is at another index (aws/amazon-vpc-cni-k8s#3753).
func (e ENI) IsBoot() bool { return e.Boot || e.Index == 0 && e.Card == 0 }

// Detachable reports whether the node may detach the ENI. The node never detaches the boot ENI. It also never detaches
// an ENI at device index 0 of any card, because it attaches no ENI at index 0.
func (e ENI) Detachable() bool { return e.Index > 0 && !e.Boot }

// The reasons why the tags of an ENI are unknown. An ENI with unknown tags may belong to another owner, so the node
// releases neither the ENI nor its addresses.
const (
	// the node has not asked EC2 for the tags, or EC2 has not answered. Until EC2 answers, no pod gets an address of
	// the ENI, except with the provision "none" (see Misfit of package lease)
	NotAsked   = "not asked"
	NotAllowed = "not allowed" // no permission to ask; with only one pool, the ENI serves pods as if it had no tags
)

// LinkPatience is how long the link of a new ENI may be missing. The kernel needs some seconds to find a new ENI.
const LinkPatience = 20 * time.Second

// NoLink reports whether the node lacks the ENI's link. Without its link, the ENI cannot serve pods. If the link of a
// new ENI is missing, NoLink returns true only after LinkPatience. If the link was on the node before, or if EC2 says
// that the ENI is not attached, NoLink returns true at once.
func (e ENI) NoLink(now time.Time) bool {
	return !e.Missed.IsZero() && (e.Link != "" || e.Detached || now.Sub(e.Missed) >= LinkPatience)
}

// A Prefix is a block of addresses that EC2 has delegated to an ENI: a /28 of IPv4, or a /80 of IPv6. If an address of
// the block was never leased, State.Free has no entry for this address.
//
//codec:describe
type Prefix struct {
	CIDR netip.Prefix `json:"cidr"`
	// when EC2 delegated the prefix, or the end of the latest lease that State.Free has forgotten; zero if unknown
	Since time.Time `json:"since"`
}

// describePrefixes describes the member with the list of an ENI's prefixes. A long list has an index: see
// [indexed.List].
func describePrefixes(c *codec.Codec, name string, v *[]Prefix) {
	if c.Writes() && len(*v) == 0 {
		return
	}
	r := indexed.Rows{Digits: indexed.BlockDigits, Len: len(*v)}
	for _, p := range *v {
		if !indexed.FitsBlock(p.CIDR, p.Since) {
			r.Len = 0
		}
	}
	r.Write = func(rows []byte) {
		for i, p := range *v {
			indexed.WriteBlock(rows[i*indexed.BlockDigits:], p.CIDR, p.Since)
		}
	}
	r.Read = func(rows string) {
		*v = make([]Prefix, len(rows)/indexed.BlockDigits)
		for i := range *v {
			(*v)[i].CIDR, (*v)[i].Since = indexed.ReadBlock(rows[i*indexed.BlockDigits:])
		}
	}
	indexed.List(c, name, r, func() { codec.List(c, name, v, (*Prefix).describe) })
}

// Primary returns the ENI's primary private IPv4 address. Pods can get the primary address, as they can get any other
// address of the ENI, but EC2 cannot unassign the primary address. For an ENI without IPv4, Primary returns the zero
// Addr.
func (e ENI) Primary() netip.Addr {
	if len(e.Addrs) == 0 || !e.Addrs[0].Is4() {
		return netip.Addr{}
	}
	return e.Addrs[0]
}

// Has reports whether the ENI has the address, as a single address or in a prefix.
func (e ENI) Has(a netip.Addr) bool {
	return slices.Contains(e.Addrs, a) || slices.ContainsFunc(e.Prefixes,
		func(p Prefix) bool { return p.CIDR.Contains(a) })
}

// HasPrefix reports whether the ENI has exactly this prefix.
func (e ENI) HasPrefix(c netip.Prefix) bool {
	return slices.ContainsFunc(e.Prefixes, func(p Prefix) bool { return p.CIDR == c })
}

// Assigned returns how many addresses of a family the ENI has. A prefix counts as one address (EC2 user guide, "Prefix
// delegation"). The function isFamily is netip.Addr.Is4 or netip.Addr.Is6.
func (e ENI) Assigned(isFamily func(netip.Addr) bool) int {
	n := 0
	for _, a := range e.Addrs {
		if isFamily(a) {
			n++
		}
	}
	for _, p := range e.Prefixes {
		if isFamily(p.CIDR.Addr()) {
			n++
		}
	}
	return n
}
