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
	// pending, running, shutting-down, terminated, stopping or stopped; empty: EC2 does not show the instance
	Name string
	// if true, EC2 may keep the instance's memory when it stops the instance. The processes then continue when the
	// instance starts again
	Hibernates bool
}

// Ended reports whether all processes of the instance have ended and cannot continue. For a State without a Name, it
// returns true, because EC2 shows a terminated instance only for about an hour (EC2 user guide, "Terminate Amazon EC2
// instances"). This result is wrong for a new instance that EC2 does not show yet.
func (s State) Ended() bool {
	switch s.Name {
	case "", string(types.InstanceStateNameTerminated):
		return true
	}
	return s.Name == string(types.InstanceStateNameStopped) && !s.Hibernates
}

// StateOf returns the state of an instance (DescribeInstances). If EC2 does not show the instance, StateOf returns a
// State without a Name, and no error.
func (c *Client) StateOf(ctx context.Context, instance string) (s State, err error) {
	const action = "DescribeInstances"
	// with the field InstanceIds instead of a filter, EC2 would return an error for an instance that does not exist
	in := &ec2.DescribeInstancesInput{Filters: sdkFilters([]Filter{{"instance-id", []string{instance}}}),
		MaxResults: new(int32(pageSize))}
	err = eachPage(action, func(token *string) (next *string, err error) {
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

// parseState converts the state of an instance from the SDK's type. An answer without a state is an error, because
// Ended returns true for a State without a Name.
func parseState(i types.Instance) (State, error) {
	if i.State == nil || i.State.Name == "" {
		return State{}, fmt.Errorf("%.80q has no state", sdk.ToString(i.InstanceId))
	}
	s := State{Name: string(i.State.Name)}
	s.Hibernates = i.HibernationOptions != nil && sdk.ToBool(i.HibernationOptions.Configured)
	return s, nil
}
