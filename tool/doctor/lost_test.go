// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/repair"
)

// TestLossOfMTU: a route of the service loop should have an MTU. If the node has the route without its MTU, only large
// packets are lost. If the route is gone, calls to Services do not work at all.
func TestLossOfMTU(t *testing.T) {
	node, _ := nltest.NS(t, "node")
	route := nl.Route{Dst: netip.MustParsePrefix("10.0.0.0/16"), Dev: "veth1", Table: 107}
	withMTU := route
	withMTU.MTU = 1500
	var l repair.Loss
	l.Node = nl.Wiring{{NS: node, Object: withMTU}}
	want(t, (nl.Wiring{{NS: node, Object: nl.Veth{Name: "veth1", Peer: "peer1", PeerNS: node}}}).Add())
	nltest.Shell(t, node, "ip link set veth1 up")
	if text := lossConsequence(l); !strings.HasPrefix(text, "Calls to Services fail") {
		t.Errorf("without the route: %s", text)
	}
	want(t, (nl.Wiring{{NS: node, Object: route}}).Add())
	if text := lossConsequence(l); !strings.Contains(text, "large packets") {
		t.Errorf("without the MTU: %s", text)
	}
}
