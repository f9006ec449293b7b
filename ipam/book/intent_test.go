// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestEndIntent: the outcome of a creation decides whether its intent stays, and whether a process repeats the call.
func TestEndIntent(t *testing.T) {
	const token = "token"
	const removed, looks, repeats = "removed", "looks for the ENI", "repeats the call"
	for name, tt := range map[string]struct {
		err        error
		first, old string
	}{
		"done":      {nil, removed, removed},
		"refused":   {&aws.Error{Code: "InvalidParameterValue"}, removed, looks},
		"throttled": {&aws.Error{Code: "RequestLimitExceeded"}, removed, repeats},
		"lost":      {&aws.Error{MaybeDone: true, Err: io.ErrUnexpectedEOF}, repeats, repeats},
		"not sent":  {&aws.Error{Err: context.DeadlineExceeded}, removed, repeats},
		"invalid":   {errors.New("EC2 answers with another ENI"), repeats, looks},
	} {
		for old, want := range map[bool]string{false: tt.first, true: tt.old} {
			s := &registry.State{Intents: map[string]registry.Intent{
				token: {Action: CreateAction, Wanted: registry.Wanted{Subnet: "subnet-1"}},
			}}
			EndIntent(s, token, old, tt.err)
			got := repeats
			if i, stays := s.Intents[token]; !stays {
				got = removed
			} else if i.Subnet == "" {
				got = looks
			}
			if got != want {
				t.Errorf("%s, a repetition %v: %s, want %s", name, old, got, want)
			}
		}
	}
}
