// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"errors"
	"fmt"
)

// An Instance is the instance on which the program runs.
type Instance struct {
	ID      string // i-0123456789abcdef0
	Type    string // m5.large
	Zone    string // availability zone, us-east-1a
	Region  string // us-east-1
	Account string // ID of the account that owns the instance
	MAC     string // of the instance's boot ENI
}

// Instance asks metadata for the identity of this instance. If the error matches [ErrNoMetadata], this machine is
// probably not an EC2 instance.
func (c *Client) Instance(ctx context.Context) (Instance, error) {
	i, err := c.identityDocument(ctx)
	if err != nil {
		return Instance{}, err
	}
	i.MAC, err = c.metadata.readPath(ctx, "mac")
	return i, err
}

// identityDocument returns the instance identity document. The document never changes, so a Client reads it only once.
func (c *Client) identityDocument(ctx context.Context) (Instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.identity != nil {
		return *c.identity, nil
	}
	const path = "/latest/dynamic/instance-identity/document"
	err := c.metadata.doRequest(ctx, path, func(ctx context.Context) error {
		d, err := c.metadata.sdk.GetInstanceIdentityDocument(ctx, nil)
		if err != nil {
			return err
		}
		i := Instance{ID: d.InstanceID, Type: d.InstanceType, Zone: d.AvailabilityZone, Region: d.Region,
			Account: d.AccountID}
		if err := i.checkFields(); err != nil {
			return fmt.Errorf("this is no identity document of an instance: %w", err)
		}
		c.identity = &i
		return nil
	})
	if err != nil {
		return Instance{}, err
	}
	return *c.identity, nil
}

// checkFields returns an error if the identity document lacks a field that the suite needs.
func (i Instance) checkFields() error {
	switch {
	case i.ID == "":
		return errors.New("it has no instanceId")
	case i.Type == "":
		return errors.New("it has no instanceType")
	case i.Zone == "":
		return errors.New("it has no availabilityZone")
	case i.Region == "":
		return errors.New("it has no region")
	}
	return checkID("i-", i.ID)
}
