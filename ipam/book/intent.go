// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"errors"
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// The names of EC2 actions in the registry: in intents, and in the entries about throttling and refusals.
const (
	CreateAction    = "CreateNetworkInterface"
	AttachAction    = "AttachNetworkInterface"          // an intent for a new ENI stays until the registry has the ENI
	ModifyAction    = "ModifyNetworkInterfaceAttribute" // sets DeleteOnTermination; pods work without this call
	UnassignAction  = "UnassignPrivateIpAddresses"
	Unassign6Action = "UnassignIpv6Addresses"
)

// UnassignActionOf returns the EC2 action that unassigns the address.
func UnassignActionOf(a netip.Addr) string {
	if a.Is6() {
		return Unassign6Action
	}
	return UnassignAction
}

// ForgetAttachment removes the ID of the ENI's attachment from an intent, because that attachment may have ended. The
// next process that works on the intent asks EC2 for the ID.
func ForgetAttachment(s *registry.State, token string) {
	if i, ok := s.Intents[token]; ok {
		i.Attachment = ""
		s.Intents[token] = i
	}
}

// EndIntent removes the intent of a call that has returned err. If the outcome of the call is unknown, the intent
// stays.
//
// If isRepeat is true, the call repeated an earlier call. The earlier call may have created an ENI, even if EC2 refuses
// the repetition, or gives an invalid answer. So in these two cases, EndIntent calls LookOnly. If the repetition did
// not reach EC2, the next process repeats the call.
func EndIntent(s *registry.State, token string, isRepeat bool, err error) {
	switch {
	case err == nil, aws.Undone(err) && !isRepeat:
		delete(s.Intents, token)
	case isRepeat && !errors.Is(err, aws.ErrThrottled) && !aws.MaybeDone(err) && !aws.Unsent(err):
		LookOnly(s, token)
	}
}

// LookOnly changes an intent, so that processes look for the result of its call, but do not repeat the call.
func LookOnly(s *registry.State, token string) {
	if i, ok := s.Intents[token]; ok {
		i.Wanted = registry.Wanted{}
		s.Intents[token] = i
	}
}

// AssignAction returns the EC2 action that assigns addresses or prefixes of a family to an ENI.
func AssignAction(f lease.Family) string {
	if f == lease.IPv6 {
		return "AssignIpv6Addresses"
	}
	return "AssignPrivateIpAddresses"
}

// Begun reports whether this node has begun to attach the ENI, but has not recorded the ENI yet.
func Begun(s *registry.State, id string) bool {
	for _, i := range s.Intents {
		if i.Action == AttachAction && i.ENI == id {
			return true
		}
	}
	return false
}

// BegunUnused returns true if this node has begun to attach the ENI, and if no pod has had an address of the ENI.
func BegunUnused(s *registry.State, id string) bool { return Begun(s, id) && !BegunServed(s, id) }

// BegunServed returns true if this node has begun to attach an ENI of which pods may have had addresses before.
func BegunServed(s *registry.State, id string) bool {
	for _, i := range s.Intents {
		if i.Action == AttachAction && i.ENI == id && i.Served {
			return true
		}
	}
	return false
}

// BegunAssign returns true if this node has asked EC2 for any addresses or prefixes of the ENI, and does not know the
// outcome.
func BegunAssign(s *registry.State, id string) bool {
	for _, i := range s.Intents {
		if i.ENI == id && !i.Addr.IsValid() && (i.Action == AssignAction(lease.IPv4) ||
			i.Action == AssignAction(lease.IPv6)) {
			return true
		}
	}
	return false
}

// Unrecorded returns true if i is an intent to attach an ENI, and if e is attached to this instance, but not recorded
// yet. The intent i shows whether a pod may have had an address of e: see BegunUnused. So a growth for a pod that asks
// for e keeps i. Any other growth deletes i. If i stayed, each later growth would ask EC2 about e again.
func Unrecorded(s *registry.State, i registry.Intent, e aws.ENI) bool {
	_, known := s.ENIs[e.ID]
	return i.Action == AttachAction && e.Instance == s.Instance.ID && !known
}

// Provisions returns true if an operator's command has begun to make the ENI e, but has not attached e yet. If the
// operator repeats the command, the command continues with e.
func Provisions(s *registry.State, e aws.ENI) bool {
	_, known := s.ENIs[e.ID]
	return e.Status == "available" && e.Tags[TagManaged] != "true" && !known
}

// Unknowns returns the intents of calls with an unknown outcome. A process must ask EC2 what such a call has done,
// before it can finish the call.
func Unknowns(s *registry.State) (all []registry.Intent) {
	for _, i := range s.Intents {
		if i.Attachment == "" && !lease.ReleasesChosen(i) {
			all = append(all, i)
		}
	}
	return all
}

// LeftAny reports whether a process must still set DeleteOnTermination of an ENI. The intent for this call has the ID
// of the ENI's attachment in EC2.
func LeftAny(s *registry.State) bool {
	for _, i := range s.Intents {
		if i.Attachment != "" {
			return true
		}
	}
	return false
}

// PreventSecond calls LookOnly for all intents if an unfinished creation may already have made its ENI. The argument
// earlier is the state before this process finished the calls of other processes. The argument enis is EC2's list of
// the ENIs of this instance. An unattached ENI in enis may come from an unfinished creation, if the earlier state has
// no entry and no intent for this ENI.
func PreventSecond(s, earlier *registry.State, enis []aws.ENI) {
	for _, e := range enis {
		_, detached := earlier.ENIs[e.ID] // an operator or another program has detached the ENI
		if e.Status != "available" || detached || TokenOf(earlier, e.ID) != "" {
			continue
		}
		for token := range s.Intents {
			LookOnly(s, token)
		}
	}
}

// TokenOf returns the key of an intent about the ENI, or "" if there is none. TokenOf ignores intents to release an
// address of the ENI.
func TokenOf(s *registry.State, eni string) string {
	for token, i := range s.Intents {
		if i.ENI == eni && !lease.ReleasesChosen(i) {
			return token
		}
	}
	return ""
}
