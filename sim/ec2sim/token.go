// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"reflect"
	"time"
)

// created has the parameters of the first call with a client token, and the answer to this call.
type created struct {
	in    createNetworkInterfaceInput
	out   createNetworkInterfaceOutput
	until time.Time // when the token expires; zero while the ENI exists
}

// earlierAnswer returns the answer to an earlier call with the same client token and the same parameters. If there was
// such a call, the present call must create nothing, even if the ENI of the earlier call no longer exists. If an
// earlier call had the same token and other parameters, earlierAnswer returns an error (API: "Ensuring idempotency").
// If no earlier call had the token, earlierAnswer returns nil.
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

// retireToken makes the client token of a deleted ENI expire after [Config.TokenLife]. If TokenLife is 0, the token
// never expires. The documentation does not say when EC2 forgets the token of an ENI. The token of an instance is valid
// "for at least 24 hours after the termination of the instance" (API: "Ensuring idempotency", as of 2016-09-15).
func (s *Sim) retireToken(e *eni) {
	if t, ok := s.tokens[e.token]; ok && s.cfg.TokenLife > 0 {
		t.until = time.Now().Add(s.cfg.TokenLife)
		s.tokens[e.token] = t
	}
}
