// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package book

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestGrownByPrefix: EC2 may not show a new ENI yet, so the registry records when an ENI grew. AddPrefixes records this
// time also for an ENI that has only a /80. AddPrefixes keeps a time that is already recorded.
func TestGrownByPrefix(t *testing.T) {
	s := &registry.State{ENIs: map[string]registry.ENI{}}
	cidrs := []netip.Prefix{netip.MustParsePrefix("2001:db8:77:1:2::/80")}
	old := time.Now().Add(-time.Hour)
	s.ENIs["eni-1"], s.ENIs["eni-2"] = registry.ENI{}, registry.ENI{Grown: old}
	AddPrefixes(s, "eni-1", cidrs, time.Now())
	AddPrefixes(s, "eni-2", cidrs, time.Now())
	if s.ENIs["eni-1"].Grown.IsZero() || !s.ENIs["eni-2"].Grown.Equal(old) {
		t.Errorf("%v, %v", s.ENIs["eni-1"].Grown, s.ENIs["eni-2"].Grown)
	}
}
