// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"reflect"
	"time"
)

// created is what a client token has made.
type created struct {
	in    createNetworkInterfaceInput
	out   createNetworkInterfaceOutput
	until time.Time // when the token is forgotten; zero while the ENI lives
}

// madeBy returns the first answer to a call with the same client token and the same parameters, which makes nothing
// anew, be the ENI still there or not; with other parameters it is an error (API: "Ensuring idempotency"). It is nil for
// a token that EC2 does not know.
func (s *Sim) madeBy(in *createNetworkInterfaceInput) (*createNetworkInterfaceOutput, error) {
	first, ok := s.tokens[in.ClientToken]
	switch {
	case !ok || !first.until.IsZero() && !time.Now().Before(first.until):
		return nil, nil
	case !reflect.DeepEqual(first.in, *in):
		return nil, refuse("IdempotentParameterMismatch",
			"The client token you have provided is associated with a resource you are already using with different parameters.")
	}
	return new(first.out), nil
}

func (s *Sim) rememberToken(e *eni, in *createNetworkInterfaceInput, out *createNetworkInterfaceOutput) {
	if in.ClientToken != "" {
		e.token = in.ClientToken
		s.tokens[e.token] = created{in: *in, out: *out}
	}
}

// retireToken begins the time for which the token of a deleted ENI is still remembered. A token of RunInstances is valid
// "for at least 24 hours after the termination of the instance" (API: "Ensuring idempotency", as of 2016-09-15); of ENIs
// the page says nothing.
func (s *Sim) retireToken(e *eni) {
	if t, ok := s.tokens[e.token]; ok && s.cfg.TokenLife > 0 {
		t.until = time.Now().Add(s.cfg.TokenLife)
		s.tokens[e.token] = t
	}
}
