// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"fmt"
	"slices"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// parseAll parses all texts, or returns an error with the text that it cannot parse. Without texts, parseAll returns
// nil.
func parseAll[T any](parse func(string) (T, error), texts []string) ([]T, error) {
	var all []T
	for _, s := range texts {
		v, err := parse(s)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// texts returns one field of each of the SDK's structs.
func texts[S any](list []S, field func(S) *string) []string {
	var all []string
	for _, s := range list {
		all = append(all, sdk.ToString(field(s)))
	}
	return all
}

// tags converts the SDK's tags to a map. If there are no tags, the map is nil.
func tags(list []types.Tag) map[string]string {
	var m map[string]string
	for _, t := range list {
		if m == nil {
			m = make(map[string]string, len(list))
		}
		m[sdk.ToString(t.Key)] = sdk.ToString(t.Value)
	}
	return m
}

// strs formats values for EC2.
func strs[T fmt.Stringer](values []T) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = v.String()
	}
	return all
}

// unique removes repeated values.
func unique[T comparable](list []T) []T {
	var all []T
	for _, v := range list {
		if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}
