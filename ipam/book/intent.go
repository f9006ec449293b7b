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
// next process that works on the intent first asks EC2 for the ID.
func ForgetAttachment(s *registry.State, token string) {
	if i, ok := s.Intents[token]; ok {
		i.Attachment = ""
		s.Intents[token] = i
	}
}

// EndIntent removes the intent of a call that has returned err. If the outcome of the call is unknown, the intent
// stays. The argument isRepeat is true if this call was the repetition of an earlier call with an unknown outcome. Even
// if EC2 refuses the repetition or gives an invalid answer, the earlier call may have created an ENI. So in these two
// cases, EndIntent calls LookOnly: later processes look for the ENI, but do not repeat the call. If the repetition did
// not reach EC2, for example because the time of the ADD was over, the next process repeats the call again.
func EndIntent(s *registry.State, token string, isRepeat bool, err error) {
	switch {
	case err == nil, aws.Undone(err) && !isRepeat:
		delete(s.Intents, token)
	case isRepeat && !errors.Is(err, aws.ErrThrottled) && !aws.MaybeDone(err) && !aws.Unsent(err):
		LookOnly(s, token)
	}
}

// LookOnly changes an intent so that no process repeats the intent's call. Processes then only look for the result of
// this call.
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

// Begun reports whether the registry has an intent to attach the ENI. Such an intent means that this node has begun to
// attach the ENI, but has not recorded the ENI yet. So no pod of this node has had an address of the ENI.
func Begun(s *registry.State, id string) bool {
	for _, i := range s.Intents {
		if i.Action == AttachAction && i.ENI == id {
			return true
		}
	}
	return false
}

// Unrecorded reports whether the ENI e, for which a pod has asked, is attached to this instance but not in the registry
// yet. The pod's ADD records the ENI. This ADD needs the intent i, because the intent shows that no pod has had an
// address of the ENI: see Begun. So a growth for this pod keeps the intent. A growth for other pods deletes the intent.
// Otherwise, each later growth would find the intent, and would ask EC2 about the ENI again.
func Unrecorded(s *registry.State, i registry.Intent, e aws.ENI) bool {
	_, known := s.ENIs[e.ID]
	return i.Action == AttachAction && e.Instance == s.Instance.ID && !known
}

// Provisions reports whether an operator's command has begun to make the ENI e, and no process has attached it yet. If
// the operator repeats the command, the command continues with this ENI.
func Provisions(s *registry.State, e aws.ENI) bool {
	_, known := s.ENIs[e.ID]
	return e.Status == "available" && e.Tags[TagManaged] != "true" && !known
}

// Unknowns returns the intents of calls with an unknown outcome. Before a process can finish such a call, the process
// has to ask EC2 what the call has done. For any other intent, a process need not ask EC2 first.
func Unknowns(s *registry.State) (all []registry.Intent) {
	for _, i := range s.Intents {
		if i.Attachment == "" && !lease.ReleasesChosen(i) {
			all = append(all, i)
		}
	}
	return all
}

// LeftAny reports whether an intent has the ID of an ENI's attachment. For such an attachment, DeleteOnTermination is
// not set yet. A process can set it, and need not ask EC2 first: see Unknowns.
func LeftAny(s *registry.State) bool {
	for _, i := range s.Intents {
		if i.Attachment != "" {
			return true
		}
	}
	return false
}

// PreventSecond makes sure that no process repeats a creation if the ENI of the creation exists already. The argument
// enis has the ENIs that EC2 shows as attached to this instance, or as created for this instance. The argument earlier
// is an older state of the registry, from the time before this process began to finish the calls of other processes.
// Suppose that EC2 shows an unattached ENI, and that the earlier state has neither this ENI nor an intent about it. An
// unfinished creation may have made this ENI, so PreventSecond calls LookOnly for all intents.
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
