// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"errors"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// The EC2 actions of intents, and of the registry's notes about throttling and refusals.
const (
	CreateAction    = "CreateNetworkInterface"
	AttachAction    = "AttachNetworkInterface"          // also the action of an ENI's intent until it is recorded
	ModifyAction    = "ModifyNetworkInterfaceAttribute" // DeleteOnTermination: it may wait
	UnassignAction  = "UnassignPrivateIpAddresses"
	Unassign6Action = "UnassignIpv6Addresses"
)

// ForgetAttachment removes the attachment of the ENI from the intent, because it may have ended. The next attempt first
// asks EC2 for the attachment.
func ForgetAttachment(s *registry.State, token string) {
	if i, ok := s.Intents[token]; ok {
		i.Attachment = ""
		s.Intents[token] = i
	}
}

// EndIntent removes the intent of a call, unless the outcome is unknown. If the call was a
// repetition, and EC2 refuses it or answers with something invalid, it is not repeated again.
// But resume continues to look for what the call may have created.
func EndIntent(s *registry.State, token string, old bool, err error) {
	switch {
	case err == nil, aws.Undone(err) && !old:
		delete(s.Intents, token)
	case old && !errors.Is(err, aws.ErrThrottled) && !aws.MaybeDone(err):
		LookOnly(s, token)
	}
}

// LookOnly prevents that a call is repeated.
func LookOnly(s *registry.State, token string) {
	if i, ok := s.Intents[token]; ok {
		i.Wanted = registry.Wanted{}
		s.Intents[token] = i
	}
}

// AssignAction returns the action that gives an ENI addresses or prefixes of a family.
func AssignAction(f lease.Family) string {
	if f == lease.IPv6 {
		return "AssignIpv6Addresses"
	}
	return "AssignPrivateIpAddresses"
}

// Begun reports whether this node has begun to attach the ENI, and has not recorded it since. In this case, no pod of
// this node has had an address of the ENI.
func Begun(s *registry.State, id string) bool {
	for _, i := range s.Intents {
		if i.Action == AttachAction && i.ENI == id {
			return true
		}
	}
	return false
}

// Unrecorded reports whether an ENI for which a pod has asked is attached, and not in the registry yet. The pod's ADD
// records it: see Begun. For the growths of other pods, the intent would only cost further describes.
func Unrecorded(s *registry.State, i registry.Intent, e aws.ENI) bool {
	_, known := s.ENIs[e.ID]
	return i.Action == AttachAction && e.Instance == s.Instance.ID && !known
}

// Provisions reports whether an ENI is one that an operator's command has begun to make, and that this
// process has not attached. If the command is repeated, it goes on with this ENI.
func Provisions(s *registry.State, e aws.ENI) bool {
	_, known := s.ENIs[e.ID]
	return e.Status == "available" && e.Tags[TagManaged] != "true" && !known
}

// Unknowns returns the intents whose end only EC2 knows. The other intents have all that is needed to finish the call.
func Unknowns(s *registry.State) (all []registry.Intent) {
	for _, i := range s.Intents {
		if i.Attachment == "" && !lease.ReleasesChosen(i) {
			all = append(all, i)
		}
	}
	return all
}

// LeftAny reports whether an intent says itself what is left to do: see Unknowns.
func LeftAny(s *registry.State) bool {
	for _, i := range s.Intents {
		if i.Attachment != "" {
			return true
		}
	}
	return false
}

// PreventSecond prevents that a creation is repeated whose ENI exists already. An unknown ENI that
// was created for this instance may be the result of that creation.
func PreventSecond(s, before *registry.State, enis []aws.ENI) {
	for _, e := range enis {
		_, detached := before.ENIs[e.ID] // by an operator or another program
		if e.Status != "available" || detached || TokenOf(before, e.ID) != "" {
			continue
		}
		for token := range s.Intents {
			LookOnly(s, token)
		}
	}
}

// TokenOf returns the key of the intent about an ENI, or "".
func TokenOf(s *registry.State, eni string) string {
	for token, i := range s.Intents {
		if i.ENI == eni {
			return token
		}
	}
	return ""
}
