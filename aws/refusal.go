// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"errors"
	"time"
)

// A Scope says which other calls EC2 would also refuse after it has refused one call, for example all calls about the
// same ENI.
type Scope string

// The scopes, from the smallest to the largest.
const (
	ScopeCall     Scope = "call"     // the same call with other values may succeed
	ScopeENI      Scope = "ENI"      // the same change may succeed for other ENIs
	ScopeSubnet   Scope = "subnet"   // the creation or attachment of an ENI may succeed in another subnet
	ScopeAction   Scope = "action"   // other actions may succeed
	ScopeInstance Scope = "instance" // the action may succeed for other instances
	ScopeAccount  Scope = "account"  // the action may succeed in other accounts
	ScopeUnknown  Scope = "unknown"  // the error is no refusal, because EC2 may have carried out the call
)

// scopes are the Scopes of one error code: a Scope for each kind of action.
type scopes struct {
	change Scope // for actions that neither create nor attach an ENI, such as assign, modify, delete and describe
	create Scope
	attach Scope
}

func ofAll(s Scope) scopes { return scopes{s, s, s} }

var (
	// ofENI is ScopeSubnet for the creation of an ENI, and ScopeENI for all other actions
	ofENI = scopes{ScopeENI, ScopeSubnet, ScopeENI}
	// ofPlace is like ofENI, but EC2 would also refuse to attach other ENIs of the subnet
	ofPlace = scopes{ScopeENI, ScopeSubnet, ScopeSubnet}
	// ofRole is ScopeSubnet for the creation of an ENI, because a policy may allow new ENIs only in certain subnets. It
	// is ScopeAction for all other actions
	ofRole = scopes{ScopeAction, ScopeSubnet, ScopeAction}
)

func (s scopes) scopeFor(action string) Scope {
	switch action {
	case "CreateNetworkInterface":
		return s.create
	case "AttachNetworkInterface":
		return s.attach
	}
	return s.change
}

// A Refusal is the error of a call that EC2 has refused: EC2 has not carried out the call.
type Refusal struct {
	Scope Scope
	Lasts time.Duration // maximum time for which the node remembers the refusal; 0: not at all
	*Error
}

// RefusalOf returns the Refusal in err. If EC2 has not answered, or if EC2 may have carried out the call, RefusalOf
// returns false.
func RefusalOf(err error) (Refusal, bool) {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code == "" || MaybeDone(err) {
		return Refusal{}, false
	}
	m := e.meaning()
	scope := m.scopes.scopeFor(e.Action)
	return Refusal{scope, m.remembered, e}, scope != ScopeUnknown && scope != ""
}
