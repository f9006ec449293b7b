// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry/indexed"
)

// ErrLeased means that another attachment has the address.
var ErrLeased = errors.New("address is leased")

// A State is the content of the registry. An address is in Free or in Leases,
// never in both.
type State struct {
	Free    indexed.Entries[time.Time] // since when an address is free; the zero time: it need not cool
	Leases  indexed.Entries[Lease]
	ENIs    map[string]ENI    // by ID
	VPCs    map[string]VPC    // by ID
	Intents map[string]Intent // by client token
	// by attachment and interface: an ADD that waits for an address; the file has them as "wishes", for older releases
	Waiters map[string]Waiter
	// by attachment and interface: an ADD that has given up while EC2 throttled, and that the runtime may repeat soon
	GaveUp    map[string]Waiter
	Failures  map[string]Failure       // by network and pool: why the pool's last request to EC2 failed
	NotBefore map[string]time.Time     // by EC2 action: this node does not call it before this time
	Refusals  map[string]Refusal       // by EC2 action and object: see RefusalKey
	Gone      map[netip.Addr]time.Time // when this node unassigned the address: metadata may still list it for minutes
	Owners    map[netip.Addr]Pod       // by cooling address: its last pod, which had asked for it and need not wait
	Warm      map[string]Warm          // by pool: what the configuration wants
	OnRequest []OnRequest              // ENIs that serve only pods that ask for them
	Rebuilt   Rebuilt
	Instance  Instance
	Log       Logging
	LogLines  []Line // of the last change: the log has these lines if its size is Log.Size

	// These fields are about the registry's file that this process has read.
	keptENIs indexed.Kept[ENI]
	unknown  map[string]string // top-level fields of a later release, unparsed
	size     int
	ours     bool      // a process of this suite has written the file: see sealed
	booted   time.Time // boot time of the machine, by the same clock as all times; zero if the file did not have it
	read     time.Time // when this process has read the file; zero if there was none
	stepped  bool      // an operator or a program has set the clock since the file was written

	// These fields are for the lines that this change writes to the log.
	events   []Line
	left     Logging // the log that the change has switched off
	checkLog bool
}

// An Attachment is CNI's key of one interface of one container.
type Attachment = types.GCAttachment

// A Key identifies an attachment among all networks of a node.
//
//codec:members
type Key struct {
	Network    string `json:"network"`
	Attachment `codec:"attachment"`
}

func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.IfName }

// An OnRequest selects ENIs by their tags. If an operator or another program has attached an ENI that has all these
// tags, the ENI serves only pods that ask for it. This rule is for the pods of all networks.
//
//codec:describe
type OnRequest struct {
	Network string            `json:"network,omitempty"` // pods of this network may ask; empty: the node's conflists
	Tags    map[string]string `json:"tags,omitempty"`
}

// Equal reports whether r and o are the same.
func (r OnRequest) Equal(o OnRequest) bool {
	return r.Network == o.Network && maps.Equal(r.Tags, o.Tags)
}

// A VPC has the CIDRs from which the routes of a pod are computed.
//
//codec:describe
type VPC struct {
	CIDRs     []netip.Prefix `json:"cidrs"`            // of IPv4, the VPC's primary CIDR first
	CIDRs6    []netip.Prefix `json:"cidrs6,omitempty"` // of IPv6
	Peers     []netip.Prefix `json:"peers,omitempty"`
	PeersRead time.Time      `json:"peersRead,omitzero"` // zero: never asked
}

// A Warm is the smallest and the largest number of free addresses that a pool is to have.
//
//codec:describe exported
type Warm struct {
	Min int `json:"min"`
	Max int `json:"max"` // 0: as many as Min
}

// Left returns how many free addresses a collection leaves to the pool. As long as the number of free addresses is
// between Min and Max, no EC2 calls are needed.
func (w Warm) Left() int { return max(w.Min, w.Max) }

// An Instance has what growth needs to know about the instance.
//
//codec:describe
type Instance struct {
	ID   string `json:"id,omitempty"`
	Type string `json:"type,omitempty"`
	Zone string `json:"zone,omitempty"`
	// the ID of the boot after which metadata last confirmed that this is the instance; "" if not known
	Boot string `json:"boot,omitempty"`
	ENIs int    `json:"enis,omitempty"` // maximum number of the instance's ENIs on all cards; 0 if not known yet
	// maximum number of private IPv4 addresses of an ENI, including its primary one; 0 if not known yet
	IPv4PerENI int `json:"ipv4PerENI,omitempty"`
	// the same for IPv6; 0 if the type has none, or if it is not known yet
	IPv6PerENI int  `json:"ipv6PerENI,omitempty"`
	NoPrefixes bool `json:"noPrefixes,omitempty"` // EC2 delegates no prefixes to its ENIs: it is not a Nitro instance
	// maximum number of ENIs with addresses on each network card, by the card's index; empty if the instance has one
	// card
	Cards []int `json:"cards,omitempty"`

	// Until FullUntil, this node attaches no ENI: EC2 has refused another ENI for this instance, although the registry
	// showed a free slot. An operator or another program may have attached ENIs.
	FullUntil time.Time `json:"fullUntil,omitzero"`
	// how many ENIs EC2 showed at the refusal of FullUntil; if EC2 shows fewer ENIs, there is room again
	FullWith int       `json:"fullWith,omitempty"`
	FullRead time.Time `json:"fullRead,omitzero"` // when EC2 last showed the ENIs, because the instance seemed full

	// this node creates no ENI before this time: EC2 has said that the account can have no more ENIs
	QuotaUntil time.Time `json:"quotaUntil,omitzero"`
}

// An Intent is an EC2 call that may have been made. A process writes the intent before the call, and removes it when it
// records the outcome of the call.
//
//codec:describe
type Intent struct {
	Action string    `json:"action"`
	ENI    string    `json:"eni,omitempty"`
	Since  time.Time `json:"since"`
	Wanted           // for CreateNetworkInterface

	Attachment string `json:"attachment,omitempty"` // ID for ModifyNetworkInterfaceAttribute; empty if not known

	// Addr is an address that a pod has chosen, and Pod is this pod. If EC2 has assigned the address, the pod need not
	// wait for it.
	Addr netip.Addr `json:"addr,omitzero"`
	Pod  Pod        `json:"pod,omitzero"`
}

// Wanted is the ENI that a creation asks for. If a caller repeats the call with the same client token and the same
// parameters, EC2 does not create a second ENI.
//
//codec:members
type Wanted struct {
	Subnet         string            `json:"subnet,omitempty"` // empty: do not repeat the call
	SecurityGroups []string          `json:"securityGroups,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
	Tracking       Tracking          `json:"tracking,omitzero"`
	Secondary      int               `json:"secondary,omitempty"` // IPv4 addresses in addition to the primary one
	Prefixes       int               `json:"prefixes,omitempty"`  // IPv4 prefixes
	IPv6           int               `json:"ipv6,omitempty"`      // IPv6 addresses
	IPv6Prefixes   int               `json:"ipv6Prefixes,omitempty"`
}

// A Tracking holds timeouts of connection tracking, in seconds: see Tracking of package aws.
//
//codec:describe exported
type Tracking struct {
	TCPEstablished int `json:"tcpEstablishedTimeout"`
	UDPStream      int `json:"udpStreamTimeout"`
	UDP            int `json:"udpTimeout"`
}

// Over returns t. A value that t does not set comes from base.
func (t Tracking) Over(base Tracking) Tracking {
	return Tracking{cmp.Or(t.TCPEstablished, base.TCPEstablished), cmp.Or(t.UDPStream, base.UDPStream),
		cmp.Or(t.UDP, base.UDP)}
}

// A Rebuilt is the work that is left after the registry was rebuilt from what metadata and EC2 reported. Metadata and
// EC2 may lag, so the node compares the registry with EC2 twice: at once, and again after some time. See package known,
// unconfirmed.go.
//
//codec:describe
type Rebuilt struct {
	Since       time.Time `json:"since"`                 // when the registry was rebuilt; zero: nothing is left to do
	Compared    bool      `json:"compared,omitempty"`    // the first comparison is done
	Unconfirmed bool      `json:"unconfirmed,omitempty"` // free addresses may have left their ENIs: no ADD takes them

	// Changes reports whether a process of this node may have released addresses before. If not, an ADD that may change
	// nothing in EC2 takes addresses that are unconfirmed.
	Changes bool `json:"changes,omitempty"`
}

// Unconfirmed reports whether the free addresses are unconfirmed, and since when.
func (s *State) Unconfirmed() (since time.Time, ok bool) {
	return s.Rebuilt.Since, s.Rebuilt.Unconfirmed
}

// A Waiter is an ADD that waits for an address, or that has given up.
//
//codec:describe
type Waiter struct {
	Pool  string    `json:"pool,omitempty"` // the pool of the address
	Since time.Time `json:"since"`
	Until time.Time `json:"until"` // in Waiters: the latest time when the ADD gives up; in GaveUp: when it gave up
}

// A Failure says why EC2 has not given the addresses for which ADDs of a pool wait.
//
//codec:describe
type Failure struct {
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"` // what an operator can do
	// when the failed request began: the request was for the ADDs that waited then; zero: a new request is running
	Began time.Time `json:"began,omitzero"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"` // no ADD asks EC2 again before this time: the subnet is full
}

// A Refusal is EC2's refusal of an action on one object: an ENI, or the subnet of a new ENI. If the role may not do the
// action at all, the refusal has no object. Before Until, growth does not use this object, and tries other objects.
//
//codec:describe
type Refusal struct {
	Code    string    `json:"code"`
	Message string    `json:"message,omitempty"` // EC2's message
	Request string    `json:"request,omitempty"` // the ID of the request, for AWS's support
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
}

// RefusalKey is the key of a refusal: the EC2 action, and the ID of an ENI or a subnet. The ID is
// empty if the refusal is about the action.
func RefusalKey(action, about string) string { return strings.TrimSpace(action + " " + about) }

// PruneRefusals removes the refusals whose time is over.
func (s *State) PruneRefusals(now time.Time) {
	maps.DeleteFunc(s.Refusals, func(_ string, r Refusal) bool { return !now.Before(r.Until) })
}

// Blank reports whether the registry has no ENI and no address yet. A Blank registry does not mean that no address is
// in use.
func (s *State) Blank() bool { return len(s.ENIs) == 0 && s.Free.Len() == 0 && s.Leases.Len() == 0 }

// Forget removes free addresses that the node no longer has. A leased address stays.
func (s *State) Forget(addrs ...netip.Addr) {
	for _, a := range addrs {
		s.Free.Delete(a)
	}
}

// ForgetStray removes free addresses that are on no ENI. The original plugin's file has such addresses: its DEL records
// an address that it has just unassigned, and its registry-gc never removes this record.
func (s *State) ForgetStray() {
	for a := range s.Free.Keys() {
		if id, _ := s.ENIOf(a); id == "" {
			s.Free.Delete(a)
		}
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

// ENIOf returns the ENI that has the address a, and the ENI's ID. If no ENI has the address, the ID is empty.
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
	if a := s.both(); a.IsValid() {
		l, _ := s.Leases.At(a)
		return fmt.Errorf("%s is free, and leased by %s", a, l.Key)
	}
	if s.keptENIs.Same(s.ENIs, keepingENI) {
		return nil // the ENIs were checked before the file was written
	}
	n := 0
	for _, e := range s.ENIs {
		n += len(e.Addrs)
	}
	all := NewAddrSet(n)
	for _, e := range s.ENIs {
		for _, a := range e.Addrs {
			if all.Add(a) {
				return s.twice()
			}
		}
	}
	return nil
}

// both returns an address that is free and leased, if there is one. If a process of this suite has written the file,
// only an entry that has changed since then can be both.
func (s *State) both() netip.Addr {
	free, leased := s.Free.Keys(), func(func(netip.Addr) bool) {}
	if s.ours {
		free, leased = s.Free.Changed(), s.Leases.Changed()
	}
	for a := range free {
		if s.Leases.Has(a) {
			return a
		}
	}
	for a := range leased {
		if s.Free.Has(a) {
			return a
		}
	}
	return netip.Addr{}
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
