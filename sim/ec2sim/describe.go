// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"
)

// A set is a list on the wire: an XML element that contains the items. EC2 also sends this element for an empty list.
type set[T any] struct {
	Items []T `xml:"item"`
}

// A page has the parameters that all Describe actions except DescribeKeyPairs share (API: "Filtering", "Pagination").
type page struct {
	Filters    []filter `ec2:"Filter"`
	MaxResults *int     `ec2:"MaxResults"`
	NextToken  string   `ec2:"NextToken"`
}

type filter struct {
	Name   string   `ec2:"Name,required"`
	Values []string `ec2:"Value"`
}

// A catalogue defines how the Describe action for one type of resource works.
type catalogue[T any] struct {
	id       func(T) string
	notFound func(id string) error       // returns the error for an ID that does not exist
	filters  map[string]func(T) []string // for each filter name, a function that returns a resource's values
	tags     func(T) map[string]string   // nil if resources of this type have no tags
	maxPage  int                         // maximum number of resources in a page
	unpaged  bool                        // without MaxResults, a page has all resources; if false: at most maxPage
	idParam  string                      // the parameter for IDs; empty if EC2 accepts IDs with MaxResults
}

// choosePage returns the requested page, and the token of the next page. The token contains the last ID of the page,
// and the next page begins after this ID. So no page omits or repeats a resource that exists all the time.
func (c *catalogue[T]) choosePage(all []T, ids []string, p page) (chosen []T, next string, err error) {
	size, err := c.pageSize(ids, p.MaxResults)
	if err != nil {
		return nil, "", err
	}
	after, err := parsePageToken(p.NextToken)
	if err != nil {
		return nil, "", err
	}
	if err := c.checkIDs(all, ids); err != nil {
		return nil, "", err
	}
	if all, err = c.applyFilters(all, p.Filters); err != nil {
		return nil, "", err
	}
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(c.id(a), c.id(b)) })
	for _, t := range all {
		id := c.id(t)
		switch {
		case id <= after || len(ids) > 0 && !slices.Contains(ids, id):
			continue
		case len(chosen) == size:
			return chosen, pageToken(c.id(chosen[size-1])), nil
		}
		chosen = append(chosen, t)
	}
	return chosen, "", nil
}

// checkIDs refuses IDs that do not exist.
func (c *catalogue[T]) checkIDs(all []T, ids []string) error {
	for _, id := range ids {
		if !slices.ContainsFunc(all, func(t T) bool { return c.id(t) == id }) {
			return c.notFound(id)
		}
	}
	return nil
}

// pageSize returns the size of the requested page, or -1 if the page has all resources (API: the parameter MaxResults
// of each action).
func (c *catalogue[T]) pageSize(ids []string, asked *int) (int, error) {
	switch {
	case asked == nil && c.unpaged:
		return -1, nil
	case asked == nil:
		return c.maxPage, nil
	case c.idParam != "" && len(ids) > 0:
		return 0, refuse("InvalidParameterCombination",
			"The parameter maxResults cannot be used with the parameter %s", c.idParam)
	case *asked < 5:
		return 0, invalidValue(*asked, "maxResults", "Expecting a value greater than or equal to 5.")
	}
	return min(*asked, c.maxPage), nil
}

// applyFilters returns the resources that pass all filters. A resource passes a filter if one of the resource's values
// matches one of the filter's values. In a filter's value, * stands for any characters, and ? stands for one character.
// A backslash makes the next *, ? or \ an ordinary character (API: "Filtering").
func (c *catalogue[T]) applyFilters(things []T, filters []filter) ([]T, error) {
	for _, f := range filters {
		have, err := c.filterValues(f.Name)
		if err != nil {
			return nil, err
		}
		things = slices.DeleteFunc(things, func(t T) bool {
			return !slices.ContainsFunc(have(t), func(value string) bool {
				return slices.ContainsFunc(f.Values, func(p string) bool { return matchesPattern(p, value) })
			})
		})
	}
	return things, nil
}

// filterValues returns the function that returns a resource's values for this filter.
func (c *catalogue[T]) filterValues(name string) (func(T) []string, error) {
	key, isTag := strings.CutPrefix(name, "tag:")
	field, ok := c.filters[name]
	switch {
	case ok:
		return field, nil
	case isTag && c.tags != nil:
		return func(t T) []string {
			if value, ok := c.tags(t)[key]; ok {
				return oneValue(value)
			}
			return nil
		}, nil
	case name == "tag-key" && c.tags != nil:
		return func(t T) []string { return slices.Collect(maps.Keys(c.tags(t))) }, nil
	}
	return nil, refuse("InvalidParameterValue", "The filter '%s' is invalid", name)
}

// matchesPattern reports whether a value matches the pattern of a filter. After a mismatch, it tries again: the last
// star matches one more character.
func matchesPattern(pattern, value string) bool {
	p, v, star, taken := 0, 0, -1, 0
	for v < len(value) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, taken = p, v
			p++
		case p+1 < len(pattern) && pattern[p] == '\\' && pattern[p+1] == value[v]:
			p, v = p+2, v+1
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == value[v]):
			p, v = p+1, v+1
		case star >= 0:
			taken++
			p, v = star+1, taken
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// pageToken returns the NextToken for the page whose first resource comes after the resource with this ID.
func pageToken(id string) string { return base64.URLEncoding.EncodeToString([]byte("after " + id)) }

func parsePageToken(t string) (after string, err error) {
	if t == "" {
		return "", nil
	}
	text, err := base64.URLEncoding.DecodeString(t)
	after, ok := strings.CutPrefix(string(text), "after ")
	if err != nil || !ok {
		return "", refuse("InvalidNextToken", "The specified NextToken is not valid.")
	}
	return after, nil
}

func oneValue(v string) []string { return []string{v} }
