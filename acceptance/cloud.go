// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
)

// A cloud makes requests to EC2 in a region, with the caller's credentials.
type cloud struct {
	ec2     *ec2.Client
	sts     *sts.Client
	region  string
	account string
	caller  string // the caller's ARN
	session sdk.Credentials
	pause   time.Duration
}

const noCredentials = "there are no AWS credentials: set AWS_PROFILE, after aws sso login if the profile needs a " +
	"login, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"

// openCloud looks for credentials in the same places as the AWS CLI, and asks AWS to whom they belong. It does not use
// the instance role of this machine, because the person who runs the test has not chosen this role.
func openCloud(ctx context.Context, o options) (*cloud, error) {
	c, err := config.LoadDefaultConfig(ctx, config.WithRegion(o.region),
		config.WithEC2IMDSClientEnableState(imds.ClientDisabled))
	if err != nil {
		return nil, fmt.Errorf("read the configuration of AWS: %w", err)
	}
	if c.Region == "" {
		return nil, errors.New(
			"there is no region: set AWS_PROFILE to a profile that has one, or set AWS_REGION, or use -region")
	}
	session, err := c.Credentials.Retrieve(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", noCredentials, err)
	}
	all := &cloud{ec2: ec2.NewFromConfig(c), sts: sts.NewFromConfig(c), region: c.Region, session: session,
		pause: o.pause}
	who, err := all.sts.GetCallerIdentity(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("AWS does not accept the credentials: %w", err)
	}
	all.account, all.caller = sdk.ToString(who.Account), sdk.ToString(who.Arn)
	return all, all.setEnvironment()
}

// setEnvironment puts the credentials and the region into the environment, because the suite's own client (package aws)
// finds them only there.
func (c *cloud) setEnvironment() error {
	// With this variable, the suite's client would make no requests to metadata.
	err := os.Unsetenv("AWS_EC2_METADATA_DISABLED")
	for _, e := range c.envVariables(c.session) {
		err = errors.Join(err, os.Setenv(e[0], e[1]))
	}
	return err
}

func (c *cloud) envVariables(s sdk.Credentials) [][2]string {
	return [][2]string{{"AWS_REGION", c.region}, {"AWS_ACCESS_KEY_ID", s.AccessKeyID},
		{"AWS_SECRET_ACCESS_KEY", s.SecretAccessKey},
		{"AWS_SESSION_TOKEN", s.SessionToken}}
}

// sessionLife is how long the session of the instances is valid.
const sessionLife = time.Hour

// nodeSession returns temporary credentials for the instances: a session. Access keys that never expire must not leave
// this machine. The session goes to the instances over SSH, and is there only in the memory of processes.
//
// The test does not create an instance profile, for three reasons. Many users of EC2 have no permission to create and
// pass roles. EC2 finds a new profile only after some time. And the profile would remain if this process were killed.
func (c *cloud) nodeSession(ctx context.Context) (sdk.Credentials, error) {
	if c.session.SessionToken != "" {
		return c.session, nil
	}
	out, err := c.sts.GetSessionToken(ctx,
		&sts.GetSessionTokenInput{DurationSeconds: new(int32(sessionLife.Seconds()))})
	if err != nil {
		return sdk.Credentials{}, fmt.Errorf("get temporary credentials for the instances: %w", err)
	}
	return sdk.Credentials{AccessKeyID: sdk.ToString(out.Credentials.AccessKeyId),
		SecretAccessKey: sdk.ToString(out.Credentials.SecretAccessKey),
		SessionToken:    sdk.ToString(out.Credentials.SessionToken)}, nil
}

// errorCode returns the error code of an error from AWS, or "" if the error is not from AWS.
func errorCode(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode()
	}
	return ""
}

func (c *cloud) waitPause(ctx context.Context) error {
	select {
	case <-time.After(c.pause):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
