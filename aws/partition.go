// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import "strings"

// partitions lists all AWS partitions except "aws". The field "region" is the beginning of the names of the partition's
// regions (the SDK's partitions.json).
var partitions = []struct{ region, partition string }{
	{"cn-", "aws-cn"},
	{"us-gov-", "aws-us-gov"},
	{"eusc-", "aws-eusc"},
	{"us-iso-", "aws-iso"},
	{"us-isob-", "aws-iso-b"},
	{"eu-isoe-", "aws-iso-e"},
	{"us-isof-", "aws-iso-f"},
}

// Partition returns the AWS partition of a region, which is the second part of an ARN. For the region "", Partition
// returns "aws".
func Partition(region string) string {
	for _, p := range partitions {
		if strings.HasPrefix(region, p.region) {
			return p.partition
		}
	}
	return "aws"
}

// Partitions returns the names of all AWS partitions.
func Partitions() []string {
	all := []string{"aws"}
	for _, p := range partitions {
		all = append(all, p.partition)
	}
	return all
}

// Region returns the AWS region that the environment names, or "".
func (env Environment) Region() string { return env.regionVariable().value }
