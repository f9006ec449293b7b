// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view_test

import (
	"maps"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// TestENILinks checks that the tool finds an ENI's link by the MAC address, even if the link has another name than in
// the registry.
func TestENILinks(t *testing.T) {
	const first, second, gone = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"
	node, _ := nltest.NS(t, "node")
	nltest.Shell(t, node, "ip link add eth1 address "+first+" type veth peer name eth2 address "+second)
	for _, tt := range []struct {
		name  string
		names map[string]string // names of the links in the registry
		want  map[string]string
	}{
		{"as they were", map[string]string{first: "eth1"}, map[string]string{first: "eth1"}},
		{"not seen yet", map[string]string{first: "eth1", gone: ""}, map[string]string{first: "eth1"}},
		{"exchanged", map[string]string{first: "eth2", second: "eth1"},
			map[string]string{first: "eth1", second: "eth2"}},
		{"renamed and gone", map[string]string{first: "ens1", gone: "eth3"}, map[string]string{first: "eth1"}},
	} {
		s := &registry.State{ENIs: map[string]registry.ENI{}}
		for mac, name := range tt.names {
			s.ENIs["eni-"+mac] = registry.ENI{MAC: mac, Link: name}
		}
		var got map[string]string
		err := node.Do(func() (err error) {
			got, err = view.ENILinks(s)
			return err
		})
		if err != nil || !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v, want %v", tt.name, got, err, tt.want)
		}
	}
}
