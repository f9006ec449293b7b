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

// pageSize is the number of objects on EC2's largest page. EC2 calls a describe without a page size "unpaginated". The
// token bucket for unpaginated calls has half the size, and EC2 refuses such calls in large accounts (EC2 developer
// guide, "Request throttling").
const pageSize = 1000

// A Filter selects the objects that EC2 describes. With several filters, an object must match all of them.
type Filter struct {
	name   string
	values []string
}

// ByInstance selects the ENIs that are attached to one of the instances. A filter has at
// most 200 values (EC2 API reference, DescribeNetworkInterfaces).
func ByInstance(ids ...string) Filter { return Filter{"attachment.instance-id", ids} }

// ByTag selects objects whose tag with this key has one of the values.
func ByTag(key string, values ...string) Filter { return Filter{"tag:" + key, values} }

// ByStatus selects the ENIs of a status: available or in-use.
func ByStatus(status string) Filter { return Filter{"status", []string{status}} }

// ByDescription selects ENIs by their description.
func ByDescription(text string) Filter { return Filter{"description", []string{text}} }

// BySubnet selects the ENIs of subnets.
func BySubnet(ids ...string) Filter { return Filter{"subnet-id", ids} }

// ByID selects ENIs by their IDs. If an ID does not exist, the answer omits it without an
// error.
func ByID(ids ...string) Filter { return Filter{"network-interface-id", ids} }

// DescribeENIs asks EC2 (DescribeNetworkInterfaces) for the ENIs that match all filters, in
// no order. Without a filter, it returns all ENIs of the account in the region.
func (c *Client) DescribeENIs(ctx context.Context, filters ...Filter) ([]ENI, error) {
	const action = "DescribeNetworkInterfaces"
	var enis []ENI
	in := &ec2.DescribeNetworkInterfacesInput{Filters: sdkFilters(filters), MaxResults: new(int32(pageSize))}
	err := pages(action, func(token *string) (next *string, err error) {
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

// isAsked returns an error if the call asks for ENIs by ID, and not for the ID of this ENI. isAsked does not check
// other filters, because the attributes may have changed meanwhile (EC2 API reference, "Eventual consistency").
func isAsked(e ENI, filters []Filter) error {
	for _, f := range filters {
		if f.name == "network-interface-id" && !slices.Contains(f.values, e.ID) {
			return fmt.Errorf("asked for %s, but EC2 answers with %s", strings.Join(f.values, ", "), e.ID)
		}
	}
	return nil
}

// pages calls ask for each page; ask returns the token of the next page. The last page has no token or an empty one.
// pages returns an error if a page has its own token as the next token, or if there are more than 1000 pages.
func pages(action string, ask func(token *string) (next *string, err error)) error {
	const most = 1000
	var token *string
	for range most {
		next, err := ask(token)
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
