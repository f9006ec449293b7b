// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"reflect"
	"time"
)

// created has the first call with a client token, and its answer.
type created struct {
	in    createNetworkInterfaceInput
	out   createNetworkInterfaceOutput
	until time.Time // when the token expires; zero while the ENI exists
}

// earlierAnswer returns the answer to an earlier call with the same client token, even if the ENI of that call no
// longer exists. It returns nil without an earlier call, and an error if the earlier call had other parameters (API:
// "Ensuring idempotency").
func (s *Sim) earlierAnswer(in *createNetworkInterfaceInput) (*createNetworkInterfaceOutput, error) {
	first, ok := s.tokens[in.ClientToken]
	switch {
	case !ok || !first.until.IsZero() && !time.Now().Before(first.until):
		return nil, nil
	case !reflect.DeepEqual(first.in, *in):
		return nil, tokenUsed()
	}
	return new(first.out), nil
}

func tokenUsed() error {
	return refuse("IdempotentParameterMismatch",
		"The client token you have provided is associated with a resource you are already using with different "+
			"parameters.")
}

func (s *Sim) rememberToken(e *eni, in *createNetworkInterfaceInput, out *createNetworkInterfaceOutput) {
	if in.ClientToken != "" {
		e.token = in.ClientToken
		s.tokens[e.token] = created{in: *in, out: *out}
	}
}

// retireToken makes the client token of a deleted ENI expire after [Config.TokenLife]. The token of an instance is
// valid "for at least 24 hours after the termination of the instance" (API: "Ensuring idempotency", as of 2016-09-15).
// For the token of an ENI, the documentation names no time.
func (s *Sim) retireToken(e *eni) {
	if t, ok := s.tokens[e.token]; ok && s.cfg.TokenLife > 0 {
		t.until = time.Now().Add(s.cfg.TokenLife)
		s.tokens[e.token] = t
	}
}
