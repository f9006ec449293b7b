// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry/indexed"
)

// An ENI is what the warm path needs to know of a network interface, so that it need not
// ask EC2 or metadata.
//
//codec:describe kept
type ENI struct {
	MAC   string `json:"mac"`
	Link  string `json:"link,omitempty"` // its name when it was last seen: a hint, the MAC decides
	Index int    `json:"index"`          // device index on its network card
	Card  int    `json:"card,omitempty"`
	// it is the boot ENI, as metadata says; earlier releases set this only if it was not at index 0 of card 0: see
	// IsBoot
	Boot   bool         `json:"boot,omitempty"`
	Subnet string       `json:"subnet"`
	CIDR   netip.Prefix `json:"cidr,omitzero"`  // the subnet's; zero if it has no IPv4
	CIDR6  netip.Prefix `json:"cidr6,omitzero"` // the subnet's; zero if it has no IPv6
	VPC    string       `json:"vpc"`
	// of both families; the primary first, if it has IPv4
	Addrs    []netip.Addr `json:"addrs" codec:"member indexed.Addrs"`
	Prefixes []Prefix     `json:"prefixes,omitempty"`
	Pool     string       `json:"pool,omitempty"` // the pool that it serves; empty: the default pool
	// how many addresses to keep is known: an ADD has used its pool, or its tags say so
	Serving bool `json:"serving,omitempty"`
	// it has served or was created by us, and interfaceIndex is higher now: no pod gets its addresses, and none counts
	// as ready
	Passed bool `json:"passed,omitempty"`
	// others attached it, and it does not fit the pool: no pod gets its addresses
	Foreign bool `json:"foreign,omitempty"`
	// why EC2 has not reported its tags, which say whose it is: NotAsked or NotAllowed; empty: it has. Of the boot ENI,
	// NotAsked: it has not confirmed the addresses that metadata shows
	TagsUnknown string `json:"tagsUnknown,omitempty"`
	Managed     bool   `json:"managed,omitempty"`  // created by us
	Draining    bool   `json:"draining,omitempty"` // on the way to its deletion: no new leases
	// when a process was about to begin that; zero: none was, or EC2 has refused
	Detaching time.Time `json:"detaching,omitzero"`
	Keep      bool      `json:"keep,omitempty"` // skipDeallocation: its addresses are never unassigned
	Read      time.Time `json:"read"`           // when EC2 or metadata reported this
	Grown     time.Time `json:"grown,omitzero"` // when EC2 last gave it addresses
	// since when its link is missing on the node; zero: not missing, as far as is known
	Missed time.Time `json:"missed,omitzero"`
	// EC2 reports that it is no longer attached to this instance
	Detached bool `json:"detached,omitempty"`

	// Provisioning is set while an operator's command makes this ENI and has not answered with it. If the command is
	// repeated, this ENI is its answer.
	Provisioning bool `json:"provisioning,omitempty"`

	// OnRequest is set if a pod has asked for this ENI, which somebody else has created. The
	// node attaches and detaches it, and changes nothing else of it.
	OnRequest bool `json:"onRequest,omitempty"`

	// Groups are the security groups of an ENI that others have attached, and SubnetTags
	// the tags of its subnet, once EC2 has reported them. Tags are those of the ENI. An ENI that
	// was created for pods has none of these.
	Groups     []string          `json:"groups,omitempty"`
	Tags       map[string]string `json:"tags,omitempty"`
	SubnetTags map[string]string `json:"subnetTags,omitempty"`

	// Settings are those that the link had before a pod got the whole ENI. They are here until the link has them again.
	Settings map[string]string `json:"settings,omitempty"`
}

// keepingENI keeps ENIs as they were read.
var keepingENI = indexed.Keeping[ENI]{Same: (*ENI).same, Clone: (*ENI).clone}

// IsBoot reports whether the ENI is the boot ENI, which is the node's own. Almost always it is
// at device index 0 of card 0. SageMaker HyperPod launches instances that have it elsewhere
// (aws/amazon-vpc-cni-k8s#3753).
func (e ENI) IsBoot() bool { return e.Boot || e.Index == 0 && e.Card == 0 }

// Detachable reports whether the node may detach such an ENI. It never detaches the boot ENI,
// nor one at device index 0 of another card, where it attaches nothing.
func (e ENI) Detachable() bool { return e.Index > 0 && !e.Boot }

// Why EC2 has not reported the tags of an ENI. Such an ENI may be somebody else's, so the
// node releases nothing of it.
const (
	NotAsked   = "not asked"   // EC2 could not be asked: no pod gets its addresses until it can
	NotAllowed = "not allowed" // the role may not ask: it serves as an ENI without tags
)

// LinkPatience is how long the link of a new ENI may be missing. The kernel needs some
// seconds to find an ENI that was just attached. The original plugin waited equally long.
const LinkPatience = 20 * time.Second

// NoLink reports whether an ENI can serve no pods because its link is not on the node: the
// link has vanished, did not appear in time, or EC2 says that the ENI is not attached. A new
// ENI still has time.
func (e ENI) NoLink(now time.Time) bool {
	return !e.Missed.IsZero() && (e.Link != "" || e.Detached || now.Sub(e.Missed) >= LinkPatience)
}

// A Prefix is a block of addresses that is delegated to an ENI: a /28, or a /80 of IPv6.
// Its addresses are leased one by one. An address that was never leased has no entry in
// Free.
//
//codec:describe
type Prefix struct {
	CIDR  netip.Prefix `json:"cidr"`
	Since time.Time    `json:"since"` // when it was delegated; the zero time if unknown
}

// Primary is the address with which the ENI was created. It serves pods, and is never
// unassigned. It is not valid for an ENI without IPv4.
func (e ENI) Primary() netip.Addr {
	if len(e.Addrs) == 0 || !e.Addrs[0].Is4() {
		return netip.Addr{}
	}
	return e.Addrs[0]
}

// Has reports whether the ENI has the address, by itself or in a prefix.
func (e ENI) Has(a netip.Addr) bool {
	return slices.Contains(e.Addrs, a) || slices.ContainsFunc(e.Prefixes,
		func(p Prefix) bool { return p.CIDR.Contains(a) })
}

// Assigned returns how many of an ENI's places for addresses of a family are taken. The
// family is that of which is reports true, netip.Addr.Is4 or netip.Addr.Is6. A prefix counts as
// one (EC2 user guide, "Prefix delegation").
func (e ENI) Assigned(is func(netip.Addr) bool) int {
	n := 0
	for _, a := range e.Addrs {
		if is(a) {
			n++
		}
	}
	for _, p := range e.Prefixes {
		if is(p.CIDR.Addr()) {
			n++
		}
	}
	return n
}
