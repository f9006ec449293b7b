// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// pageSize is the most that EC2 puts on a page. A describe without it is an
// "unpaginated" one: EC2 gives those a bucket of half the size, and refuses them in
// large accounts (EC2 developer guide, "Request throttling").
const pageSize = 1000

// A Filter is a condition on what EC2 describes. Several must all be met.
type Filter struct {
	name   string
	values []string
}

// ByInstance selects the ENIs that are attached to the instance.
func ByInstance(id string) Filter { return Filter{"attachment.instance-id", []string{id}} }

// ByTag selects what has the tag with one of the values.
func ByTag(key string, values ...string) Filter { return Filter{"tag:" + key, values} }

// ByStatus selects the ENIs of a status: available or in-use.
func ByStatus(status string) Filter { return Filter{"status", []string{status}} }

// ByDescription selects ENIs by their description.
func ByDescription(text string) Filter { return Filter{"description", []string{text}} }

// ByID selects ENIs by their IDs. Those that do not exist are left out of the answer,
// and are no error.
func ByID(ids ...string) Filter { return Filter{"network-interface-id", ids} }

// DescribeENIs asks EC2 (DescribeNetworkInterfaces) for the ENIs that meet all of the
// filters, in no order. Without a filter it is every ENI of the account in the region.
func (c *Client) DescribeENIs(ctx context.Context, filters ...Filter) ([]ENI, error) {
	const action = "DescribeNetworkInterfaces"
	var enis []ENI
	in := &ec2.DescribeNetworkInterfacesInput{Filters: sdkFilters(filters), MaxResults: new(int32(pageSize))}
	for {
		out, err := call(ctx, c, action, c.ec2.DescribeNetworkInterfaces, in)
		if err != nil {
			return nil, err
		}
		for _, n := range out.NetworkInterfaces {
			e, err := parseENI(n)
			if err != nil {
				return nil, &Error{Action: action, Err: err}
			}
			enis = append(enis, e)
		}
		if in.NextToken = out.NextToken; isLast(in.NextToken) {
			return enis, nil
		}
	}
}

// isLast says whether a page is the last one. EC2 ends with no token or an empty one.
func isLast(next *string) bool { return next == nil || *next == "" }

func sdkFilters(filters []Filter) []types.Filter {
	var all []types.Filter
	for _, f := range filters {
		all = append(all, types.Filter{Name: new(f.name), Values: f.values})
	}
	return all
}
