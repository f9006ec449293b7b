// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// ErrLeased means that another attachment has the address.
var ErrLeased = errors.New("address is leased")

// A State is the content of the registry. An address is in Free or in Leases,
// never in both.
type State struct {
	Free      codec.Entries[time.Time] // since when; the zero time means that it was never used
	Leases    codec.Entries[Lease]
	ENIs      map[string]ENI           // by ID
	VPCs      map[string]VPC           // by ID
	Intents   map[string]Intent        // by client token
	Waiters   map[string]Waiter        // by attachment: an ADD that waits for an address; "wishes" in the file, which an older release may share
	Failures  map[string]Failure       // by network and pool: why its last request to EC2 failed
	NotBefore map[string]time.Time     // by EC2 action: this node does not call it before this time
	Gone      map[netip.Addr]time.Time // when we unassigned it: metadata may still list it for minutes
	Warm      map[string]Warm          // by pool: what the configuration wants
	Rebuilt   Rebuilt
	Instance  Instance

	// From the file that was read.
	unknown map[string]string // top-level fields of a later release, unparsed
	size    int
	ours    bool      // we have written it
	booted  time.Time // boot time of the machine, by the clock of these times; zero if the file did not have it
}

// An Attachment is CNI's key of one interface of one container.
type Attachment = types.GCAttachment

// A Key identifies an attachment among all networks of a node.
type Key struct {
	Network string `json:"network"`
	Attachment
}

func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.IfName }

// A Lease gives an address to an attachment.
type Lease struct {
	Key
	PodNamespace string    `json:"podNamespace,omitempty"`
	PodName      string    `json:"podName,omitempty"`
	NetNS        string    `json:"netns,omitempty"` // path of the pod's namespace
	ENI          string    `json:"eni"`
	Bound        bool      `json:"bound,omitempty"` // the kernel has the address in the pod; before, it is only reserved
	Since        time.Time `json:"since"`
	MissingSince time.Time `json:"missingSince,omitzero"` // when a collection first saw that NetNS is gone
}

// An ENI is what the warm path needs to know of a network interface, so that it need not
// ask EC2 or metadata.
type ENI struct {
	MAC         string       `json:"mac"`
	Link        string       `json:"link,omitempty"` // its name when it was last seen: a hint, the MAC decides
	Index       int          `json:"index"`          // device index on its network card
	Card        int          `json:"card,omitempty"`
	Subnet      string       `json:"subnet"`
	CIDR        netip.Prefix `json:"cidr,omitzero"`  // the subnet's; zero if it has no IPv4
	CIDR6       netip.Prefix `json:"cidr6,omitzero"` // the subnet's; zero if it has no IPv6
	VPC         string       `json:"vpc"`
	Addrs       []netip.Addr `json:"addrs"` // of both families; the primary first, if it has IPv4
	Prefixes    []Prefix     `json:"prefixes,omitempty"`
	Pool        string       `json:"pool,omitempty"`        // the pool that it serves; empty: the default pool
	Serving     bool         `json:"serving,omitempty"`     // how many addresses to keep is known: an ADD has used its pool, or its tags say so
	Foreign     bool         `json:"foreign,omitempty"`     // others attached it, and it does not fit the pool: no pod gets its addresses
	TagsUnknown string       `json:"tagsUnknown,omitempty"` // why EC2 has not reported its tags, which say whose it is: NotAsked or NotAllowed; empty: it has
	Managed     bool         `json:"managed,omitempty"`     // created by us
	Draining    bool         `json:"draining,omitempty"`    // on the way to its deletion: no new leases
	Keep        bool         `json:"keep,omitempty"`        // skipDeallocation: its addresses are never unassigned
	Read        time.Time    `json:"read"`                  // when EC2 or metadata reported this
	Grown       time.Time    `json:"grown,omitzero"`        // when EC2 last gave it addresses
	Missed      time.Time    `json:"missed,omitzero"`       // since when its link is missing on the node; zero: not missing, as far as is known
	Detached    bool         `json:"detached,omitempty"`    // EC2 reports that it is no longer attached to this instance

	// Groups are the security groups of an ENI that others have attached, and SubnetTags
	// the tags of its subnet, once EC2 has reported them. An ENI that was created for pods
	// has neither.
	Groups     []string          `json:"groups,omitempty"`
	SubnetTags map[string]string `json:"subnetTags,omitempty"`
}

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
	return slices.Contains(e.Addrs, a) || slices.ContainsFunc(e.Prefixes, func(p Prefix) bool { return p.CIDR.Contains(a) })
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

// A VPC is what the routes of a pod are computed from.
type VPC struct {
	CIDRs     []netip.Prefix `json:"cidrs"`            // of IPv4, the VPC's primary CIDR first
	CIDRs6    []netip.Prefix `json:"cidrs6,omitempty"` // of IPv6
	Peers     []netip.Prefix `json:"peers,omitempty"`
	PeersRead time.Time      `json:"peersRead,omitzero"` // zero: never asked
}

// A Warm is the smallest and largest number of free addresses of a pool.
type Warm struct {
	Min int `json:"min"`
	Max int `json:"max"` // 0: as many as Min
}

// Left returns how many free addresses a collection leaves to the pool. Between Min and
// Max, addresses become free and used without EC2 calls.
func (w Warm) Left() int { return max(w.Min, w.Max) }

// An Instance is what growth needs to know of the instance.
type Instance struct {
	ID         string `json:"id,omitempty"`
	Type       string `json:"type,omitempty"`
	Zone       string `json:"zone,omitempty"`
	ENIs       int    `json:"enis,omitempty"`       // maximum number of its ENIs on all cards; 0 if not known yet
	IPv4PerENI int    `json:"ipv4PerENI,omitempty"` // maximum number of private IPv4 addresses of an ENI, including its primary one; 0 if not known yet
	IPv6PerENI int    `json:"ipv6PerENI,omitempty"` // the same for IPv6; 0 if the type has none, or if it is not known yet
	Cards      []int  `json:"cards,omitempty"`      // maximum number of ENIs with addresses on each network card, by the card's index; none if it has one card

	// FullUntil is set when EC2 has refused another ENI for this instance although we
	// counted a free slot: somebody else has attached some.
	FullUntil time.Time `json:"fullUntil,omitzero"`
	FullWith  int       `json:"fullWith,omitempty"` // how many ENIs it had then, as EC2 showed; with fewer there is room again
	FullRead  time.Time `json:"fullRead,omitzero"`  // when EC2 has last shown them, because the instance seemed full

	QuotaUntil time.Time `json:"quotaUntil,omitzero"` // this node creates no ENI before: EC2 has said that the account can have no more
}

// An Intent is an EC2 call that may have been made. It is written before the call, and
// removed when its outcome is recorded.
type Intent struct {
	Action string    `json:"action"`
	ENI    string    `json:"eni,omitempty"`
	Since  time.Time `json:"since"`
	Wanted           // for CreateNetworkInterface
}

// Wanted is the ENI that a creation asks for. EC2 creates one ENI for one client token and
// the same parameters, however often it gets them.
type Wanted struct {
	Subnet         string            `json:"subnet,omitempty"` // empty: do not repeat the call
	SecurityGroups []string          `json:"securityGroups,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
	Tracking       Tracking          `json:"tracking,omitzero"`
	Secondary      int               `json:"secondary,omitempty"` // IPv4 addresses in addition to the primary one
	Prefixes       int               `json:"prefixes,omitempty"`  // of IPv4
	IPv6           int               `json:"ipv6,omitempty"`      // addresses
	IPv6Prefixes   int               `json:"ipv6Prefixes,omitempty"`
}

// A Tracking holds timeouts of connection tracking, in seconds: see Tracking of package aws.
type Tracking struct {
	TCPEstablished int `json:"tcpEstablishedTimeout"`
	UDPStream      int `json:"udpStreamTimeout"`
	UDP            int `json:"udpTimeout"`
}

// Over returns t with the values of base for what t does not set.
func (t Tracking) Over(base Tracking) Tracking {
	return Tracking{cmp.Or(t.TCPEstablished, base.TCPEstablished), cmp.Or(t.UDPStream, base.UDPStream), cmp.Or(t.UDP, base.UDP)}
}

// A Rebuilt is what is left to do after the registry was rebuilt from what metadata and EC2
// reported. Both may lag, so it is compared with EC2 twice: at once, and when EC2 has
// settled. See package ipam, unconfirmed.go.
type Rebuilt struct {
	Since       time.Time `json:"since"`                 // when it was rebuilt; zero: nothing is left to do
	Compared    bool      `json:"compared,omitempty"`    // the first comparison is done
	Unconfirmed bool      `json:"unconfirmed,omitempty"` // free addresses may have left their ENIs: no ADD takes one
}

// Unconfirmed reports since when the free addresses are unconfirmed, if they are.
func (s *State) Unconfirmed() (since time.Time, ok bool) {
	return s.Rebuilt.Since, s.Rebuilt.Unconfirmed
}

// A Waiter is an ADD that waits for an address.
type Waiter struct {
	Pool  string    `json:"pool,omitempty"` // in which pool
	Since time.Time `json:"since"`
	Until time.Time `json:"until"` // its process has given up after this time
}

// A Failure says why a process has not got from EC2 the addresses that ADDs of a pool wait
// for.
type Failure struct {
	Text  string    `json:"text"`
	Hint  string    `json:"hint,omitempty"` // what an operator can do
	Began time.Time `json:"began,omitzero"` // when the request began, with the waiters of that time; zero: a new request is running
	Since time.Time `json:"since"`
}

// Blank reports whether the registry knows nothing yet, not even that no address is in use.
func (s *State) Blank() bool { return len(s.ENIs) == 0 && s.Free.Len() == 0 && s.Leases.Len() == 0 }

// Held lists the addresses of an attachment, in order.
func (s *State) Held(k Key) []netip.Addr {
	var held []netip.Addr
	for a, l := range s.Leases.Naming(k.ContainerID) {
		if l.Key == k {
			held = append(held, a)
		}
	}
	return held
}

// Reserve gives a to the lease's attachment. It fails with ErrLeased if another attachment
// has a.
func (s *State) Reserve(a netip.Addr, l Lease) error {
	if old, ok := s.Leases.At(a); ok && old.Key != l.Key {
		return fmt.Errorf("reserve %s for %s: %w by %s", a, l.Key, ErrLeased, old.Key)
	}
	s.Free.Delete(a)
	s.Leases.Set(a, l)
	return nil
}

// EndWhere ends the leases that match, and returns their addresses.
func (s *State) EndWhere(now time.Time, match func(netip.Addr, Lease) bool) []netip.Addr {
	var ended []netip.Addr
	for a, l := range s.Leases.All() {
		if match(a, l) {
			s.End(a, now)
			ended = append(ended, a)
		}
	}
	return ended
}

// EndOf ends the leases of an attachment. The hints are addresses that it may have: of
// these, leases without a key end, too.
func (s *State) EndOf(k Key, now time.Time, hints ...netip.Addr) {
	for _, a := range s.Held(k) {
		s.End(a, now)
	}
	for _, a := range hints {
		if l, ok := s.Leases.At(a); ok && l.Key == (Key{}) {
			s.End(a, now)
		}
	}
}

// End ends a lease. Its address is free since then, unless it has left its ENI meanwhile.
func (s *State) End(a netip.Addr, since time.Time) {
	s.Leases.Delete(a)
	if id, _ := s.ENIOf(a); id != "" {
		s.Free.Set(a, since)
	}
}

// Forget removes free addresses that the node no longer has. A leased address stays.
func (s *State) Forget(addrs ...netip.Addr) {
	for _, a := range addrs {
		s.Free.Delete(a)
	}
}

// Drop removes an ENI and its free addresses.
func (s *State) Drop(eni string) {
	e := s.ENIs[eni]
	for a := range s.Free.Keys() {
		if e.Has(a) {
			s.Free.Delete(a)
		}
	}
	delete(s.ENIs, eni)
}

// ENIOf returns the ENI that has a, and its ID, which is empty if none has it.
func (s *State) ENIOf(a netip.Addr) (string, ENI) {
	for id, e := range s.ENIs {
		if e.Has(a) {
			return id, e
		}
	}
	return "", ENI{}
}

// Attached returns the number of ENIs that are attached to the instance.
func (s *State) Attached() int {
	n := 0
	for _, e := range s.ENIs {
		if !e.Detached {
			n++
		}
	}
	return n
}

// check returns an error if the state breaks an invariant.
func (s *State) check() error {
	for a := range s.Free.Keys() {
		if l, ok := s.Leases.At(a); ok {
			return fmt.Errorf("%s is free, and leased by %s", a, l.Key)
		}
	}
	var lows []uint64 // half of each address is enough to see that all differ
	for _, e := range s.ENIs {
		for _, a := range e.Addrs {
			b := a.As16()
			lows = append(lows, binary.BigEndian.Uint64(b[8:]))
		}
	}
	slices.Sort(lows)
	for i := range len(lows) - 1 {
		if lows[i] == lows[i+1] {
			return s.twice()
		}
	}
	return nil
}

// twice returns an error if an address is on two ENIs, or twice on one.
func (s *State) twice() error {
	by := map[netip.Addr]string{}
	for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
		for _, a := range s.ENIs[id].Addrs {
			if other, ok := by[a]; ok {
				return fmt.Errorf("%s is on %s and on %s", a, other, id)
			}
			by[a] = id
		}
	}
	return nil
}
