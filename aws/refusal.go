// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"errors"
	"time"
)

// A Scope says what a refusal of EC2 is about, for example one ENI. The same action outside the scope may succeed.
type Scope string

// The scopes, from the smallest to the largest.
const (
	ScopeCall     Scope = "call"     // the values in the call: the same call with other values may succeed
	ScopeENI      Scope = "ENI"      // the same change may succeed for other ENIs
	ScopeSubnet   Scope = "subnet"   // the creation or attachment of an ENI may succeed in another subnet
	ScopeAction   Scope = "action"   // other actions may succeed
	ScopeInstance Scope = "instance" // the action fails for all ENIs and subnets of this instance
	ScopeAccount  Scope = "account"  // the action fails for all instances of the account
	ScopeUnknown  Scope = "unknown"  // the error is no refusal: EC2 may have carried out the call
)

// scopes are the scopes of a code, one for each kind of action.
type scopes struct {
	change Scope // of actions that change an ENI: assign, unassign, modify, detach or delete
	create Scope
	attach Scope
}

// ofAll returns the scopes of a code that has the same scope for all actions.
func ofAll(s Scope) scopes { return scopes{s, s, s} }

var (
	ofENI = scopes{ScopeENI, ScopeSubnet, ScopeENI} // the ENI of the call; the subnet if the call creates an ENI
	// the ENI of the call; the subnet if the call creates or attaches an ENI, because EC2 would also refuse another ENI
	// of this subnet
	ofPlace = scopes{ScopeENI, ScopeSubnet, ScopeSubnet}
	// the action that the role may not do; the subnet if the call creates an ENI, because a policy may name the subnets
	// for new ENIs
	ofRole = scopes{ScopeAction, ScopeSubnet, ScopeAction}
)

// of returns the scope for an action.
func (s scopes) of(action string) Scope {
	switch action {
	case "CreateNetworkInterface":
		return s.create
	case "AttachNetworkInterface":
		return s.attach
	}
	return s.change
}

// A Refusal is EC2's error for a call that EC2 has not carried out.
type Refusal struct {
	Scope Scope
	Lasts time.Duration // how long the node remembers the refusal, at most; 0: not at all
	*Error
}

// RefusalOf returns the refusal in an error. There is none if EC2 has not answered, or if EC2 may have carried out the
// call.
func RefusalOf(err error) (Refusal, bool) {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code == "" || MaybeDone(err) {
		return Refusal{}, false
	}
	m := e.meaning()
	scope := m.about.of(e.Action)
	return Refusal{scope, m.lasts, e}, scope != ScopeUnknown && scope != ""
}
