// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// TestNearest: the text names the subnet with the largest number of the wanted tags. A subnet that has a tag with
// another value counts more than a subnet without the tag.
func TestNearest(t *testing.T) {
	subnet := func(id string, tags ...string) aws.Subnet {
		n := aws.Subnet{ID: id, CIDR: netip.MustParsePrefix("10.0.0.0/24"), Tags: map[string]string{}}
		for _, tag := range tags {
			k, v, _ := strings.Cut(tag, "=")
			n.Tags[k] = v
		}
		return n
	}
	all := []aws.Subnet{subnet("subnet-1"), subnet("subnet-2", "a=0"), subnet("subnet-3", "b=2", "c=0"),
		subnet("subnet-4", "b=2")}
	for want, tags := range map[string]map[string]string{
		"subnet-3, which comes nearest, has no tag a, and has c=0": {"a": "1", "b": "2", "c": "3"},
		"subnet-2, which comes nearest, has a=0":                   {"a": "1"},

		"none of the 4 subnets there has one of these tag keys; their tag keys are a, b, c": {"d": "1"},
	} {
		if got := nearestText(all, tags); got != want {
			t.Errorf("%v: %s, want %s", tags, got, want)
		}
	}
	const want = "none of the 1 subnets there has one of these tag keys; they have no tags"
	if got := nearestText(all[:1], map[string]string{"a": "1"}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
