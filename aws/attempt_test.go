// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestMaybeDone checks that an error reports whether EC2 may have carried out the call, whatever the answer to the last
// attempt was.
func TestMaybeDone(t *testing.T) {
	throttled := ec2sim.Refused("RequestLimitExceeded")
	type outcomes = []ec2sim.Outcome
	for name, tt := range map[string]struct {
		outcomes outcomes
		is       error
		want     bool
	}{
		"throttled": {outcomes{throttled, throttled}, aws.ErrThrottled, false},
		"refused":   {outcomes{ec2sim.Refused("UnauthorizedOperation")}, aws.ErrDenied, false},
		"not now":   {outcomes{ec2sim.Refused("IncorrectState")}, aws.ErrTransient, false},
		"no addresses": {outcomes{ec2sim.Refused("InsufficientAddressCapacity"),
			ec2sim.Refused("InsufficientAddressCapacity")}, aws.ErrSubnetFull, false},
		"a code that is new":   {outcomes{ec2sim.Refused("Surprise")}, nil, false},
		"lost":                 {outcomes{ec2sim.UndoneLost, ec2sim.UndoneLost}, aws.ErrTransient, true},
		"lost, then throttled": {outcomes{ec2sim.DoneLost, throttled}, aws.ErrThrottled, true},
		"lost, then denied": {outcomes{ec2sim.DoneLost, ec2sim.Refused("UnauthorizedOperation")},
			aws.ErrDenied, true},
		"lost, then not there": {outcomes{ec2sim.DoneLost, ec2sim.Answered}, nil, true},
		"a fault": {outcomes{ec2sim.DoneBut("InternalError"), ec2sim.Refused("InternalError")},
			aws.ErrTransient, true},
		"a fault, then throttled": {outcomes{ec2sim.DoneBut("InternalError"), throttled}, aws.ErrThrottled, true},
		"throttled, then a fault": {outcomes{throttled, ec2sim.DoneBut("ServiceUnavailable")}, aws.ErrTransient, true},
	} {
		inBubble(t, name, func(t *testing.T) {
			sim, node, c := world(t, "m5.large")
			eni := node.ENIs()[0].ID
			addrs := must(c.Assign(t.Context(), eni, 1))(t)
			sim.Script("UnassignPrivateIpAddresses", tt.outcomes...)
			err := c.Unassign(t.Context(), eni, addrs...)
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) || aws.MaybeDone(err) != tt.want {
				t.Errorf("%v, maybe done %v: want %v, maybe done %v", err, aws.MaybeDone(err), tt.is, tt.want)
			}
		})
	}
}

// A doer is a function that serves as an HTTPClient.
type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

// TestNotSent: if the Client has not sent the request, the error must say that EC2 has not carried out the call. If the
// deadline passes after the request was sent, the error must say that EC2 may have carried out the call.
func TestNotSent(t *testing.T) {
	unreachable := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	for name, tt := range map[string]struct {
		do   doer
		want bool // EC2 may have got the request
	}{
		"no connection": {func(*http.Request) (*http.Response, error) { return nil, unreachable }, false},
		"reset": {func(*http.Request) (*http.Response, error) {
			return nil, &net.OpError{Op: "read", Err: errors.New("reset")}
		}, true},
		"no answer": {func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}, true},
	} {
		inBubble(t, name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			c := aws.New(aws.Options{EC2URL: "http://ec2.test", HTTP: tt.do})
			if err := c.DetachENI(ctx, "eni-attach-1"); aws.MaybeDone(err) != tt.want || aws.Unsent(err) == tt.want {
				t.Errorf("%v, maybe done %v, not sent %v", err, aws.MaybeDone(err), aws.Unsent(err))
			}
		})
	}
	inBubble(t, "no credentials", func(t *testing.T) {
		t.Setenv("AWS_ACCESS_KEY_ID", "")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "")
		c := aws.New(aws.Options{EC2URL: "http://ec2.test", MetadataURL: "http://imds.test",
			HTTP: doer(func(*http.Request) (*http.Response, error) { return nil, errors.New("reset") })})
		if err := c.DetachENI(t.Context(), "eni-attach-1"); !aws.Unsent(err) {
			t.Errorf("%v: want an error, and that nothing was sent", err)
		}
	})
	inBubble(t, "the context has ended", func(t *testing.T) {
		c := aws.New(aws.Options{EC2URL: "http://ec2.test", HTTP: doer(func(*http.Request) (*http.Response, error) {
			return nil, errors.New("a request was sent")
		})})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.DetachENI(ctx, "eni-attach-1"); !aws.Unsent(err) || !errors.Is(err, context.Canceled) {
			t.Errorf("%v: want that nothing was sent", err)
		}
	})
}

// TestMaybeDoneOfSeveral: an error about several calls must be MaybeDone if the error of one of these calls is
// MaybeDone.
func TestMaybeDoneOfSeveral(t *testing.T) {
	throttled, lost := &aws.Error{Code: "RequestLimitExceeded"}, &aws.Error{MaybeDone: true, Err: io.ErrUnexpectedEOF}
	late := &aws.Error{Err: context.DeadlineExceeded}
	for _, test := range []struct {
		err                       error
		maybeDone, undone, unsent bool
	}{
		{nil, false, false, false},
		{io.EOF, false, false, false},
		{throttled, false, true, false},
		{lost, true, false, false},
		{late, false, true, true},
		{errors.Join(throttled, lost), true, false, false},
		{errors.Join(throttled, late), false, true, false},
		{errors.Join(late, lost), true, false, false},
		{errors.Join(throttled, fmt.Errorf("then: %w", lost)), true, false, false},
		{errors.Join(throttled, context.Canceled), false, true, false},
		{fmt.Errorf("%w: %w", throttled, errors.Join(throttled, throttled)), false, true, false},
	} {
		m, u, s := aws.MaybeDone(test.err), aws.Undone(test.err), aws.Unsent(test.err)
		if m != test.maybeDone || u != test.undone || s != test.unsent {
			t.Errorf("%v: maybe done %v, not done %v, not sent %v", test.err, m, u, s)
		}
	}
}

// TestNotAllowed: not every refusal by EC2 means that the role lacks the permission.
func TestNotAllowed(t *testing.T) {
	for code, want := range map[string]bool{"UnauthorizedOperation": true, "AccessDenied": true,
		"RequestExpired": false, "AuthFailure": false,
		"OptInRequired": false, "TagPolicyViolation": false, "RequestLimitExceeded": false, "": false} {
		if got := aws.NotAllowed(fmt.Errorf("learn: %w", &aws.Error{Code: code, Err: io.EOF})); got != want {
			t.Errorf("%q: the role may not: %v", code, got)
		}
	}
	noRole := &aws.MetadataError{Path: "/latest/meta-data/iam/security-credentials/", Status: http.StatusNotFound}
	if !aws.NotAllowed(&aws.Error{Err: noRole}) || aws.NotAllowed(nil) {
		t.Error("an instance without a role may ask nothing")
	}
}
