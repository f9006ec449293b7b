// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestOwnTableOf: no two networks have one table, and most have the name that they had before.
func TestOwnTableOf(t *testing.T) {
	for network, want := range map[string]string{
		"cni-ipvlan-vpc-k8s":     "cni_ipvlan_vpc_k8s",
		"net":                    "cni_ipvlan_vpc_k8s_net",
		"a-b":                    "cni_ipvlan_vpc_k8s_a_b",
		"a.b":                    "cni_ipvlan_vpc_k8s.a.b",
		"a_b":                    "cni_ipvlan_vpc_k8s.a_b",
		"cni_ipvlan_vpc_k8s":     "cni_ipvlan_vpc_k8s.cni_ipvlan_vpc_k8s",
		"cni-ipvlan-vpc-k8s-a-b": "cni_ipvlan_vpc_k8s_cni_ipvlan_vpc_k8s_a_b",
	} {
		if got := nl.OwnTableOf(network); got != want {
			t.Errorf("%s: %s, want %s", network, got, want)
		}
	}
	owners := map[string]string{}
	for _, network := range words("ab1-_.", 5) {
		table := nl.OwnTableOf(network)
		if other, taken := owners[table]; taken {
			t.Fatalf("%s and %s have the table %s", other, network, table)
		}
		owners[table] = network
	}
}

// words are all of 1 to n letters.
func words(letters string, n int) (all []string) {
	last := []string{""}
	for range n {
		var longer []string
		for _, w := range last {
			for _, l := range letters {
				longer = append(longer, w+string(l))
			}
		}
		all, last = append(all, longer...), longer
	}
	return all
}
