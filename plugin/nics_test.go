// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// TestNICs: a + behind an interface means that it is in the container. An address is followed by
// the index of its interface, or by none.
func TestNICs(t *testing.T) {
	for _, c := range []struct{ interfaces, ips, want string }{
		{"eth0+", "10.0.0.1@0 fd00::1@0", "eth0: 10.0.0.1 fd00::1"},
		{"eth0+", "10.0.0.1 10.0.0.1", "eth0: 10.0.0.1"},
		{"eth0+ veth1 eth1+", "10.0.0.1@0", "eth0: 10.0.0.1"},
		{"eth0+ eth2+ net1+ veth1 eth1+", "10.0.0.1@0 10.0.1.1@1 10.0.2.1@2 fd00::2@2",
			"eth0: 10.0.0.1, eth2: 10.0.1.1, net1: 10.0.2.1 fd00::2"},
		{"ens6", "10.0.0.1@0", "eth0: 10.0.0.1"},
		{"ens6 ens7", "10.0.0.1@0 10.0.1.1@1", "eth0: 10.0.0.1"},
		{"", "10.0.0.1", "eth0: 10.0.0.1"},
		{"veth1 eth0+ eth1+", "10.0.0.1@1", "eth0: 10.0.0.1"},
		{"eth0+ eth1+ eth2+", "10.0.0.1@0 10.0.2.1@2", "eth0: 10.0.0.1"},
		{"eth0+", "", "eth0:"},
		{"ens6 eth0+", "10.0.0.1@1 fd00::1@1 10.0.0.9@0", "eth0: 10.0.0.1 fd00::1"}, // of a routed pod
		{"ens6 eth0+ veth1", "10.0.0.1@1", "eth0: 10.0.0.1"},
	} {
		r := &types100.Result{}
		for _, name := range strings.Fields(c.interfaces) {
			name, inside := strings.CutSuffix(name, "+")
			i := &types100.Interface{Name: name}
			if inside {
				i.Sandbox = "/run/netns/pod"
			}
			r.Interfaces = append(r.Interfaces, i)
		}
		for _, text := range strings.Fields(c.ips) {
			addr, index, has := strings.Cut(text, "@")
			bits := "/24"
			if strings.Contains(addr, ":") {
				bits = "/64"
			}
			n, err := types.ParseCIDR(addr + bits)
			if err != nil {
				t.Fatal(err)
			}
			ip := &types100.IPConfig{Address: *n}
			if has {
				ip.Interface = new(int(index[0] - '0'))
			}
			r.IPs = append(r.IPs, ip)
		}
		var got []string
		for _, n := range NICs(r, "eth0") {
			got = append(got, strings.TrimSpace(fmt.Sprint(n.Name, ": ", strings.Trim(fmt.Sprint(n.Addrs()), "[]"))))
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("interfaces %q, addresses %q: got %q, want %q", c.interfaces, c.ips, s, c.want)
		}
		further := strings.Contains(c.ips, "@1") || strings.Contains(c.ips, "@2")
		if several := further && strings.Contains(c.ips, "@0"); Several(r) != several {
			t.Errorf("interfaces %q, addresses %q: Several is %v", c.interfaces, c.ips, Several(r))
		}
	}
}
