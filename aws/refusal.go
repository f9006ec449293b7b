// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"errors"
	"time"
)

// A Scope is what a refusal of EC2 is about. The same action outside the scope may succeed.
type Scope string

// The scopes, from the smallest to the largest.
const (
	ScopeCall     Scope = "call"     // what was asked for: the same call with other values may succeed
	ScopeENI      Scope = "ENI"      // other ENIs may take the change
	ScopeSubnet   Scope = "subnet"   // an ENI of another subnet may be created, or attached
	ScopeAction   Scope = "action"   // other actions may be called
	ScopeInstance Scope = "instance" // no other ENI and no other subnet helps this instance
	ScopeAccount  Scope = "account"  // nor does another instance
	ScopeUnknown  Scope = "unknown"  // it is no refusal: EC2 may have carried out the call
)

// scopes are the scopes of a code, by the kind of the action.
type scopes struct {
	change Scope // of an ENI: to assign, unassign, modify, detach or delete
	create Scope
	attach Scope
}

// ofAll is the scope of a code that means the same for all actions.
func ofAll(s Scope) scopes { return scopes{s, s, s} }

var (
	ofENI = scopes{ScopeENI, ScopeSubnet, ScopeENI} // the ENI of the call; a new ENI has only its subnet
	// the ENI, and for a new one where it is: another one there is refused, too
	ofPlace = scopes{ScopeENI, ScopeSubnet, ScopeSubnet}
	// what the role may not do; a policy may name the subnets for new ENIs
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

// A Refusal is an error of EC2 for a call that it has not carried out.
type Refusal struct {
	Scope Scope
	Lasts time.Duration // how long to pass over what it is about, at most; 0: until the next growth
	*Error
}

// RefusalOf returns the refusal in an error. There is none if EC2 has not answered, or if it may have carried out the
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
