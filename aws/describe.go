// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// pageSize is the maximum number of objects on a page. Without a page size, EC2 throttles requests earlier, and in
// large accounts refuses them (EC2 developer guide, "Request throttling").
const pageSize = 1000

// A Filter selects objects that EC2 describes. If a call has several Filters, EC2 describes only objects that match all
// of them.
type Filter struct {
	name   string
	values []string
}

// ByInstance selects the ENIs that are attached to one of the instances. At most 200 IDs are allowed (EC2 API
// reference, DescribeNetworkInterfaces).
func ByInstance(ids ...string) Filter { return Filter{"attachment.instance-id", ids} }

// ByTag selects the objects that have a tag with this key and one of the values.
func ByTag(key string, values ...string) Filter { return Filter{"tag:" + key, values} }

// ByStatus selects the ENIs with a status, such as available or in-use.
func ByStatus(status string) Filter { return Filter{"status", []string{status}} }

// ByDescription selects the ENIs with this description.
func ByDescription(text string) Filter { return Filter{"description", []string{text}} }

// BySubnet selects the ENIs in one of the subnets.
func BySubnet(ids ...string) Filter { return Filter{"subnet-id", ids} }

// ByID selects the ENIs that have one of the IDs. If no ENI has a given ID, EC2 ignores this ID and returns no error.
func ByID(ids ...string) Filter { return Filter{"network-interface-id", ids} }

// DescribeENIs returns the ENIs that match all filters (DescribeNetworkInterfaces), in no particular order. Without a
// filter, it returns all ENIs of the account in the region.
func (c *Client) DescribeENIs(ctx context.Context, filters ...Filter) ([]ENI, error) {
	const action = "DescribeNetworkInterfaces"
	var enis []ENI
	in := &ec2.DescribeNetworkInterfacesInput{Filters: sdkFilters(filters), MaxResults: new(int32(pageSize))}
	err := eachPage(action, func(token *string) (next *string, err error) {
		in.NextToken = token
		out, err := call(ctx, c, action, c.ec2.DescribeNetworkInterfaces, in)
		if err != nil {
			return nil, err
		}
		for _, n := range out.NetworkInterfaces {
			e, err := parseENI(n)
			if err := validate(action, err, isAsked(e, filters)); err != nil {
				return nil, err
			}
			enis = append(enis, e)
		}
		return out.NextToken, nil
	})
	if err != nil {
		return nil, err
	}
	return enis, nil
}

// isAsked returns an error if a ByID filter does not contain the ENI's ID. It does not check other filters, because
// other attributes may have changed a moment ago (EC2 API reference, "Eventual consistency").
func isAsked(e ENI, filters []Filter) error {
	for _, f := range filters {
		if f.name == "network-interface-id" && !slices.Contains(f.values, e.ID) {
			return fmt.Errorf("asked for %s, but EC2 answers with %s", strings.Join(f.values, ", "), e.ID)
		}
	}
	return nil
}

// eachPage calls askPage for each page of EC2's answer, with the token of the page. askPage returns the token of the
// next page, or nil or an empty token after the last page. eachPage returns an error if two successive pages have the
// same token, or if there are more than 1000 pages.
func eachPage(action string, askPage func(token *string) (next *string, err error)) error {
	const most = 1000
	var token *string
	for range most {
		next, err := askPage(token)
		if err != nil || next == nil || *next == "" {
			return err
		}
		if token != nil && *token == *next {
			return validate(action, fmt.Errorf("the page with token %.80q has the same token for the next page", *next))
		}
		token = next
	}
	return validate(action, fmt.Errorf("it has more than %d pages", most))
}

func sdkFilters(filters []Filter) []types.Filter {
	var all []types.Filter
	for _, f := range filters {
		all = append(all, types.Filter{Name: new(f.name), Values: f.values})
	}
	return all
}
