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

// A State is the content of the registry. An address is never both in Free and in Leases.
type State struct {
	Free    indexed.Entries[time.Time] // when the address became free; zero: the address need not cool
	Leases  indexed.Entries[Lease]
	ENIs    map[string]ENI    // by ID
	VPCs    map[string]VPC    // by ID
	Intents map[string]Intent // see IntentWriter of package call
	// the ADDs that wait for an address. The key names the attachment and the interface. In the file, this member has
	// the name "wishes", as in earlier releases
	Waiters map[string]Waiter
	// the ADDs that gave up while EC2 throttled the node. The key names the attachment and the interface. The runtime
	// may repeat such an ADD soon
	GaveUp    map[string]Waiter
	Failures  map[string]Failure   // why the pool's last request to EC2 failed; the key names the network and the pool
	NotBefore map[string]time.Time // the key is an EC2 action: the node does not call it before this time
	Refusals  map[string]Refusal   // the key names the EC2 action and the object: see RefusalKey
	// the key is an address, and the value is the time when this node unassigned it. Metadata may still list the
	// address for some minutes
	Gone map[netip.Addr]time.Time
	// the cooling addresses whose last pod had asked for exactly this address. The key is the address, and the value is
	// the pod. This pod may get the address again before the address has cooled
	Owners    map[netip.Addr]Pod
	Warm      map[string]Warm // how many free addresses the configuration wants; the key is the name of a pool
	OnRequest []OnRequest     // selects ENIs on request: see the type OnRequest
	Rebuilt   Rebuilt
	Instance  Instance
	Log       Logging
	LogLines  []Line // lines of the log; if Log.File has Log.Size bytes, it already has these lines

	// The following fields are about the file from which this process has read the State.
	keptENIs      indexed.Kept[ENI]
	unknownFields map[string]string // top-level fields of a later release, unparsed
	fileSize      int
	isOurs        bool      // a process of this suite has written the file: see isSealed
	bootTime      time.Time // boot time, by the same clock as the other times of the State; zero: not in the file
	readAt        time.Time // when this process read the file; zero if there was no file
	clockSet      bool      // an operator or a program has set the clock since the file was written

	// The following fields are for the lines that this Update appends to the log.
	events   []Line
	oldLog   Logging // the log that this Update has switched off
	checkLog bool
}

// An Attachment identifies one interface of one container, as CNI does.
type Attachment = types.GCAttachment

// A Key identifies an attachment on a node. Two networks may have the same Attachment.
//
//codec:members
type Key struct {
	Network    string `json:"network"`
	Attachment `codec:"describeAttachment"`
}

func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.IfName }

// An OnRequest selects the ENIs that an operator or another program has created, and that have all of Tags. A selected
// ENI serves only pods that ask for this ENI, whichever network the pods belong to.
//
//codec:describe
type OnRequest struct {
	// the network whose configuration has the tags; empty: the tags are from all conflists of the node
	Network string            `json:"network,omitempty"`
	Tags    map[string]string `json:"tags,omitempty"`
}

// Equal reports whether two OnRequests have the same Network and Tags.
func (r OnRequest) Equal(o OnRequest) bool {
	return r.Network == o.Network && maps.Equal(r.Tags, o.Tags)
}

// A VPC has the CIDRs of a VPC and of the VPC's peers. These CIDRs determine the routes in a pod.
//
//codec:describe
type VPC struct {
	CIDRs     []netip.Prefix `json:"cidrs"`            // of IPv4, the primary CIDR first
	CIDRs6    []netip.Prefix `json:"cidrs6,omitempty"` // of IPv6
	Peers     []netip.Prefix `json:"peers,omitempty"`
	PeersRead time.Time      `json:"peersRead,omitzero"` // zero: never asked
}

// A Warm says how many free addresses the configuration wants for a pool: at least Min, and at most Max. In between,
// the node need not call EC2.
//
//codec:describe exported
type Warm struct {
	Min int `json:"min"`
	Max int `json:"max"` // 0: as many as Min
}

// Left returns how many free addresses a collection leaves to the pool.
func (w Warm) Left() int { return max(w.Min, w.Max) }

// An Instance has what growth needs to know about the node's instance.
//
//codec:describe
type Instance struct {
	ID   string `json:"id,omitempty"`
	Type string `json:"type,omitempty"`
	Zone string `json:"zone,omitempty"`
	// the BootID at the time when metadata last confirmed that the node is this instance; "" if not known
	Boot string `json:"boot,omitempty"`
	ENIs int    `json:"enis,omitempty"` // maximum number of ENIs on all cards together; 0 if not known yet
	// maximum number of private IPv4 addresses of an ENI, including its primary one; 0 if not known yet
	IPv4PerENI int `json:"ipv4PerENI,omitempty"`
	// maximum number of IPv6 addresses of an ENI; 0 if the type has no IPv6, or if not known yet
	IPv6PerENI int `json:"ipv6PerENI,omitempty"`
	// the instance is not a Nitro instance, so EC2 delegates no prefixes to its ENIs
	NoPrefixes bool `json:"noPrefixes,omitempty"`
	// for each network card, the maximum number of ENIs that can have addresses. The card's index is the index in this
	// slice. Empty if the instance has only one card
	Cards []int `json:"cards,omitempty"`

	// This node attaches no ENI before FullUntil: EC2 has refused one more ENI, or has shown an ENI at each device
	// index. The registry may show a free slot nevertheless, because it may lack ENIs that others have attached.
	FullUntil time.Time `json:"fullUntil,omitzero"`
	// the number of ENIs that EC2 showed when this node set FullUntil; if EC2 shows fewer ENIs, there is a free slot
	// again
	FullWith int `json:"fullWith,omitempty"`
	// when this node last asked EC2 for the ENIs of the instance
	FullRead time.Time `json:"fullRead,omitzero"`

	// this node creates no ENI before this time, because EC2 has said that the account cannot have more ENIs
	QuotaUntil time.Time `json:"quotaUntil,omitzero"`
}

// An Intent is the record of an EC2 call whose outcome the registry does not have yet. A process writes the intent
// before the call, and removes the intent when it records the outcome of the call.
//
//codec:describe
type Intent struct {
	Action string    `json:"action"`
	ENI    string    `json:"eni,omitempty"`
	Since  time.Time `json:"since"`
	Wanted           // for CreateNetworkInterface

	// for ModifyNetworkInterfaceAttribute: the ID of the ENI's attachment in EC2; empty if not known
	Attachment string `json:"attachment,omitempty"`

	// for AttachNetworkInterface: pods may have had addresses of the ENI before the call
	Served bool `json:"served,omitempty"`

	// Addr is the address that the call assigns or unassigns, if the intent names an address. If a pod has chosen this
	// address, Pod is this pod. The pod may get the address before the address has cooled.
	Addr netip.Addr `json:"addr,omitzero"`
	Pod  Pod        `json:"pod,omitzero"`
}

// Wanted are the parameters of a CreateNetworkInterface call. If a process repeats the call with the same client token
// and parameters, EC2 creates no second ENI.
//
//codec:members
type Wanted struct {
	// empty: processes look for the new ENI, but do not repeat the call (see LookOnly of package book)
	Subnet         string            `json:"subnet,omitempty"`
	SecurityGroups []string          `json:"securityGroups,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
	Tracking       Tracking          `json:"tracking,omitzero"`
	Secondary      int               `json:"secondary,omitempty"` // IPv4 addresses in addition to the primary one
	Prefixes       int               `json:"prefixes,omitempty"`  // IPv4 prefixes
	IPv6           int               `json:"ipv6,omitempty"`      // IPv6 addresses
	IPv6Prefixes   int               `json:"ipv6Prefixes,omitempty"`
}

// A Tracking has timeouts of connection tracking, in seconds: see the type Tracking of package aws.
//
//codec:describe exported
type Tracking struct {
	TCPEstablished int `json:"tcpEstablishedTimeout"`
	UDPStream      int `json:"udpStreamTimeout"`
	UDP            int `json:"udpTimeout"`
}

// Over returns t with the timeouts of base in place of timeouts that are zero.
func (t Tracking) Over(base Tracking) Tracking {
	return Tracking{cmp.Or(t.TCPEstablished, base.TCPEstablished), cmp.Or(t.UDPStream, base.UDPStream),
		cmp.Or(t.UDP, base.UDP)}
}

// A Rebuilt says what the node must still do after it has rebuilt the registry. Metadata and EC2 may lag, so the node
// compares the registry with EC2 twice: at once, and again after some time. The code is in unconfirmed.go of package
// known.
//
//codec:describe
type Rebuilt struct {
	Since       time.Time `json:"since"`                 // when the registry was rebuilt; zero: nothing is left to do
	Compared    bool      `json:"compared,omitempty"`    // the first comparison is done
	Unconfirmed bool      `json:"unconfirmed,omitempty"` // the free addresses are unconfirmed, so no ADD takes them

	// Changes is true if a process of this node may have released addresses before the registry was rebuilt. If Changes
	// is false, an ADD of a network with "provision": "none" takes unconfirmed addresses.
	Changes bool `json:"changes,omitempty"`
}

// Unconfirmed reports whether the free addresses are unconfirmed. The result since is the time when the node rebuilt
// the registry.
func (s *State) Unconfirmed() (since time.Time, ok bool) {
	return s.Rebuilt.Since, s.Rebuilt.Unconfirmed
}

// A Waiter is an ADD that waits for an address, or an ADD that gave up waiting.
//
//codec:describe
type Waiter struct {
	Pool  string    `json:"pool,omitempty"` // the pool from which the ADD wants an address
	Since time.Time `json:"since"`
	Until time.Time `json:"until"` // in Waiters: the ADD's deadline; in GaveUp: when the ADD gave up
}

// A Failure says why EC2 has not assigned the addresses for which the ADDs of a pool wait.
//
//codec:describe
type Failure struct {
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"` // what an operator can do
	// when the failed request to EC2 began. The request was for the ADDs that waited at that time. Zero if the failure
	// must not end other ADDs
	Began time.Time `json:"began,omitzero"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"` // if the subnet is full, no ADD asks EC2 again before this time
}

// A Refusal is EC2's refusal of an action on one object: an ENI, or the subnet of a new ENI. Before the time in the
// field Until, growth tries the action only on other objects. If the role does not allow the action at all, the refusal
// names no object, and growth does not try the action.
//
//codec:describe
type Refusal struct {
	Code    string    `json:"code"`
	Message string    `json:"message,omitempty"` // EC2's message
	Request string    `json:"request,omitempty"` // the ID of the request, for AWS's support
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
}

// RefusalKey returns the key in State.Refusals for an EC2 action and an object. The second argument is the ID of the
// object, which is an ENI or a subnet. If the refusal has no object, this argument is empty.
func RefusalKey(action, about string) string { return strings.TrimSpace(action + " " + about) }

// PruneRefusals removes the refusals whose time Until is in the past.
func (s *State) PruneRefusals(now time.Time) {
	maps.DeleteFunc(s.Refusals, func(_ string, r Refusal) bool { return !now.Before(r.Until) })
}

// Blank reports whether the registry has no ENI and no address yet. Pods may use addresses even if the registry is
// Blank, because another program may have deleted the registry.
func (s *State) Blank() bool { return len(s.ENIs) == 0 && s.Free.Len() == 0 && s.Leases.Len() == 0 }

// Forget removes addresses from State.Free, because the node no longer has them. Forget does not end leases.
func (s *State) Forget(addrs ...netip.Addr) {
	for _, a := range addrs {
		s.Free.Delete(a)
	}
}

// ForgetStray removes an address from State.Free if no ENI of the state has the address. The original plugin leaves
// such addresses in the file: its DEL unassigns an address, and then adds the address to the file.
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

// ENIOf returns the ENI that has the address, and the ID of this ENI. If no ENI has the address, the ID is empty.
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

// checkInvariants returns an error if an address is both free and leased, or if an address is on two ENIs or twice on
// one ENI. It does not check the addresses of prefixes.
func (s *State) checkInvariants() error {
	if a := s.freeAndLeased(); a.IsValid() {
		l, _ := s.Leases.At(a)
		return fmt.Errorf("%s is free, and leased by %s", a, l.Key)
	}
	if s.keptENIs.Unchanged(s.ENIs, eniFuncs) {
		return nil // a process checked these ENIs before it wrote the file
	}
	n := 0
	for _, e := range s.ENIs {
		n += len(e.Addrs)
	}
	all := NewAddrSet(n)
	for _, e := range s.ENIs {
		for _, a := range e.Addrs {
			if all.Add(a) {
				return s.duplicateError()
			}
		}
	}
	return nil
}

// freeAndLeased returns an address that is both free and leased, or the zero Addr. If a process of this suite has
// written the file, it has checked all entries. Then freeAndLeased looks only at entries that have changed since the
// file was read.
func (s *State) freeAndLeased() netip.Addr {
	free, leased := s.Free.Keys(), func(func(netip.Addr) bool) {}
	if s.isOurs {
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

// duplicateError returns an error if an address is on two ENIs, or twice on one ENI.
func (s *State) duplicateError() error {
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
