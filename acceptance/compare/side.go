// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package compare

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// A side is a Place while the script runs. It has the objects that the steps have made, and the last answers.
type side struct {
	place   Place
	options Options
	client  *aws.Client
	ec2     *recorder
	imds    *recorder
	names   names

	eni, boot  aws.ENI // the new ENI and the boot ENI
	attachment string
	assigned   []netip.Addr
	prefixes   []netip.Prefix

	heard   map[string]answer // the answers of the last step
	outcome outcome           // the result of the last step
}

func newSide(p Place, o Options) *side {
	s := &side{place: p, options: o, ec2: &recorder{HTTPClient: p.EC2}, imds: &recorder{HTTPClient: p.Metadata},
		names: names{}}
	s.client = aws.New(aws.Options{EC2URL: p.EC2URL, MetadataURL: p.MetadataURL, HTTP: router{s.ec2, s.imds}})
	for name, value := range map[string]string{"the node": p.Node, "the other node": p.Other, "the subnet": p.Subnet,
		"the VPC":   p.VPC,
		"the group": p.Group, "the account": p.Account, "the node's address": p.NodeAddr.String(),
		"the other node's address": p.OtherAddr.String()} {
		s.names.add(value, name)
	}
	return s
}

// An outcome is the result of a call of the client.
type outcome struct {
	value   any
	meaning string // what the suite learns from the outcome: "done", or the kind of the error
}

// outcomeOf returns the result of a call, without texts that are only for people.
func outcomeOf(value any, err error) outcome {
	if err == nil {
		return outcome{value, "done"}
	}
	e, ok := errors.AsType[*aws.Error](err)
	switch {
	case !ok:
		return outcome{nil, "an error without an answer of EC2"}
	case e.Code == "":
		return outcome{nil, "an invalid answer" + sentinel(err)}
	}
	return outcome{nil, "refused" + sentinel(err)}
}

// sentinels are the errors that the suite distinguishes.
var sentinels = []error{aws.ErrThrottled, aws.ErrTransient, aws.ErrENIFull, aws.ErrInstanceFull, aws.ErrSubnetFull,
	aws.ErrQuota, aws.ErrIndexTaken,
	aws.ErrCardFull, aws.ErrInUse, aws.ErrNotFound, aws.ErrNotRunning, aws.ErrTooManyGroups, aws.ErrNoGroup,
	aws.ErrTokenUsed, aws.ErrDenied, aws.ErrNoMetadata}

func sentinel(err error) string {
	for _, s := range sentinels {
		if errors.Is(err, s) {
			return ": " + s.Error()
		}
	}
	return ""
}

// take makes a step, and repeats it until its condition until is true. The context has a deadline, because without a
// deadline, the SDK ends a request for metadata after five seconds.
func (s *side) take(ctx context.Context, step step) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	for end := time.Now().Add(patience); ; {
		s.ec2.take()
		s.imds.take()
		value, err := step.do(ctx, s, s.client)
		s.heard = s.ec2.take()
		for path, a := range s.imds.take() {
			if s.heard == nil {
				s.heard = map[string]answer{}
			}
			s.heard[path] = a
		}
		s.outcome = outcomeOf(value, err)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case len(s.heard) == 0 && (step.until == nil || time.Now().After(end)):
			return fmt.Errorf("no answer: %w", err)
		case err != nil && !step.refused && (step.until == nil || time.Now().After(end)):
			return err
		case step.until == nil || err == nil && step.until(s, value):
			if step.keep != nil && err == nil {
				step.keep(s, value)
			}
			return nil
		case time.Now().After(end):
			return fmt.Errorf("EC2 has not shown the change for %v", patience)
		}
		select {
		case <-time.After(s.options.Pause):
		case <-ctx.Done():
		}
	}
}

// calls returns the calls of the last step, by names that are the same on both sides. The calls themselves can differ,
// because paths of metadata contain MAC addresses.
func (s *side) calls() map[string]string {
	all := map[string]string{}
	for call := range s.heard {
		all[s.names.replace(call)] = call
	}
	return all
}

// fields returns the fields of the last answer to a call.
func (s *side) fields(call string) map[string]form {
	a, ok := s.heard[call]
	if !ok {
		return nil
	}
	return fieldsOf(call, a, s.names)
}
