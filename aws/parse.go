// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"fmt"
	"slices"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

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

// fieldTexts returns one string field of each struct in the list.
func fieldTexts[S any](list []S, field func(S) *string) []string {
	var all []string
	for _, s := range list {
		all = append(all, sdk.ToString(field(s)))
	}
	return all
}

// tagMap converts the SDK's tags to a map. If there are no tags, the map is nil.
func tagMap(list []types.Tag) map[string]string {
	var m map[string]string
	for _, t := range list {
		if m == nil {
			m = make(map[string]string, len(list))
		}
		m[sdk.ToString(t.Key)] = sdk.ToString(t.Value)
	}
	return m
}

func formatAll[T fmt.Stringer](values []T) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = v.String()
	}
	return all
}

// uniqueValues returns the values without repetitions, in the same order.
func uniqueValues[T comparable](list []T) []T {
	var all []T
	for _, v := range list {
		if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}
