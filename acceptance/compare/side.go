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

// A side is the state of a Run in one Place: the objects that the steps have made there, and the answers of the last
// step.
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

	answers map[string]answer // the answers of the last step
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
		s.names.addName(value, name)
	}
	return s
}

// An outcome is the result of a step's call.
type outcome struct {
	value   any
	meaning string // "done", or a text that says which kind of error the call returned
}

// outcomeOf returns the outcome of a call, without the message of an error.
func outcomeOf(value any, err error) outcome {
	if err == nil {
		return outcome{value, "done"}
	}
	e, ok := errors.AsType[*aws.Error](err)
	switch {
	case !ok:
		return outcome{nil, "an error without an answer of EC2"}
	case e.Code == "":
		return outcome{nil, "an invalid answer" + sentinelText(err)}
	}
	return outcome{nil, "refused" + sentinelText(err)}
}

// sentinels are the errors that the suite distinguishes.
var sentinels = []error{aws.ErrThrottled, aws.ErrTransient, aws.ErrENIFull, aws.ErrInstanceFull, aws.ErrSubnetFull,
	aws.ErrQuota, aws.ErrIndexTaken,
	aws.ErrCardFull, aws.ErrInUse, aws.ErrNotFound, aws.ErrNotRunning, aws.ErrTooManyGroups, aws.ErrNoGroup,
	aws.ErrTokenUsed, aws.ErrDenied, aws.ErrNoMetadata}

func sentinelText(err error) string {
	for _, s := range sentinels {
		if errors.Is(err, s) {
			return ": " + s.Error()
		}
	}
	return ""
}

// runStep runs a step, and repeats it until step.isDone returns true. By default, the SDK ends a request for metadata
// after five seconds. The deadline that runStep sets replaces this limit.
func (s *side) runStep(ctx context.Context, step step) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	for end := time.Now().Add(patience); ; {
		s.ec2.takeAnswers()
		s.imds.takeAnswers()
		value, err := step.do(ctx, s, s.client)
		s.answers = s.ec2.takeAnswers()
		for path, a := range s.imds.takeAnswers() {
			if s.answers == nil {
				s.answers = map[string]answer{}
			}
			s.answers[path] = a
		}
		s.outcome = outcomeOf(value, err)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case len(s.answers) == 0 && (step.isDone == nil || time.Now().After(end)):
			return fmt.Errorf("no answer: %w", err)
		case err != nil && !step.refused && (step.isDone == nil || time.Now().After(end)):
			return err
		case step.isDone == nil || err == nil && step.isDone(s, value):
			if step.keepResult != nil && err == nil {
				step.keepResult(s, value)
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

// callsByName returns the calls of the last step. In the keys, names replace known texts such as MAC addresses, so the
// keys are the same on both sides.
func (s *side) callsByName() map[string]string {
	all := map[string]string{}
	for call := range s.answers {
		all[s.names.replaceNames(call)] = call
	}
	return all
}

func (s *side) answerFields(call string) map[string]form {
	a, ok := s.answers[call]
	if !ok {
		return nil
	}
	return fieldsOf(call, a, s.names)
}
