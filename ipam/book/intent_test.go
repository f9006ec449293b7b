// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

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

// TestTokenOf: a node may be releasing an address of an ENI while another call about the ENI is not finished. TokenOf
// returns the token of this other call.
func TestTokenOf(t *testing.T) {
	const eni = "eni-1"
	a := netip.MustParseAddr("10.0.0.5")
	s := &registry.State{Intents: map[string]registry.Intent{}, Owners: map[netip.Addr]registry.Pod{}}
	NoteNamed(s, eni, Releasable{Addrs: map[netip.Addr]time.Time{a: {}}})
	if token := TokenOf(s, eni); token != "" {
		t.Errorf("the release of %s counts as %q", a, token)
	}
	s.Intents["token"] = registry.Intent{Action: ModifyAction, ENI: eni}
	for range 20 { // the order of a map is random
		if token := TokenOf(s, eni); token != "token" {
			t.Fatalf("got %q", token)
		}
	}
}
