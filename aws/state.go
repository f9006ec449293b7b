// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"fmt"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// A State is the state of an instance in EC2.
type State struct {
	// pending, running, shutting-down, terminated, stopping or stopped; empty: EC2 does not know the instance
	Name       string
	Hibernates bool // EC2 may keep the memory of the stopped instance: its processes may go on when it starts again
}

// Ended reports whether all processes of the instance have ended for ever. EC2 shows a terminated instance for about an
// hour (EC2 user guide, "Terminate Amazon EC2 instances"). EC2 may not show a new instance yet: for such an instance,
// Ended wrongly returns true.
func (s State) Ended() bool {
	switch s.Name {
	case "", string(types.InstanceStateNameTerminated):
		return true
	}
	return s.Name == string(types.InstanceStateNameStopped) && !s.Hibernates
}

// StateOf asks EC2 (DescribeInstances) for the state of an instance. If EC2 does not know the instance, StateOf returns
// a State without a name, and no error.
func (c *Client) StateOf(ctx context.Context, instance string) (s State, err error) {
	const action = "DescribeInstances"
	// with an ID instead of the filter, EC2 returns an error if the instance does not exist
	in := &ec2.DescribeInstancesInput{Filters: sdkFilters([]Filter{{"instance-id", []string{instance}}}),
		MaxResults: new(int32(pageSize))}
	err = pages(action, func(token *string) (next *string, err error) {
		in.NextToken = token
		out, err := call(ctx, c, action, c.ec2.DescribeInstances, in)
		if err != nil {
			return nil, err
		}
		for _, r := range out.Reservations {
			for _, i := range r.Instances {
				if s, err = parseState(i); err == nil && sdk.ToString(i.InstanceId) != instance {
					err = fmt.Errorf("asked for %s, but EC2 answers with %.80q", instance, sdk.ToString(i.InstanceId))
				}
				if err := validate(action, err); err != nil {
					return nil, err
				}
			}
		}
		return out.NextToken, nil
	})
	if err != nil {
		return State{}, err
	}
	return s, nil
}

// parseState reads the state of an instance. An answer without a state is invalid: it must not look like an instance
// that is gone.
func parseState(i types.Instance) (State, error) {
	if i.State == nil || i.State.Name == "" {
		return State{}, fmt.Errorf("%.80q has no state", sdk.ToString(i.InstanceId))
	}
	s := State{Name: string(i.State.Name)}
	s.Hibernates = i.HibernationOptions != nil && sdk.ToBool(i.HibernationOptions.Configured)
	return s, nil
}
