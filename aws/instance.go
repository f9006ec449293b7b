// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import "context"

// An Instance is the machine that the program runs on.
type Instance struct {
	ID      string // i-0123456789abcdef0
	Type    string // m5.large
	Zone    string // availability zone, us-east-1a
	Region  string // us-east-1
	Account string // of its owner
	MAC     string // of its boot ENI
}

// Instance asks metadata what this machine is. An error that matches
// [ErrNoMetadata] means that it is none of EC2's.
func (c *Client) Instance(ctx context.Context) (Instance, error) {
	i, err := c.document(ctx)
	if err != nil {
		return Instance{}, err
	}
	i.MAC, err = c.metadata.read(ctx, "mac")
	return i, err
}

// document reads the instance identity document, once: nothing in it ever changes.
func (c *Client) document(ctx context.Context) (Instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.identity != nil {
		return *c.identity, nil
	}
	const path = "/latest/dynamic/instance-identity/document"
	err := c.metadata.try(ctx, path, func(ctx context.Context) error {
		d, err := c.metadata.sdk.GetInstanceIdentityDocument(ctx, nil)
		if err != nil {
			return err
		}
		c.identity = &Instance{ID: d.InstanceID, Type: d.InstanceType, Zone: d.AvailabilityZone, Region: d.Region, Account: d.AccountID}
		return nil
	})
	if err != nil {
		return Instance{}, err
	}
	return *c.identity, nil
}
