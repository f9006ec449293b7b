// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package asked

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestOnOtherENI: the error has the hint about a missing link only if the link of the ENI is missing.
func TestOnOtherENI(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.5")
	p := &Node{}
	p.Policy.Choice.Addrs = []netip.Addr{a}
	for _, e := range []registry.ENI{{Link: "eth1"}, {Link: "eth1", Missed: time.Now()}} {
		e.Addrs = []netip.Addr{a}
		err, _ := p.onOtherENIError(&registry.State{ENIs: map[string]registry.ENI{"eni-1": e}}).(*plugin.Error)
		noLink := !e.Missed.IsZero()
		if err == nil || (err.Hint == lease.HintNoLink) != noLink ||
			strings.Contains(err.Error(), "is not on the node") != noLink {
			t.Errorf("without link: %v; got %+v", noLink, err)
		}
	}
}
