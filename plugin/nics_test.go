// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// TestNICs: in the table, a + marks an interface in the container. An address may have an @, followed by the index of
// its interface.
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
		{"ens6 eth0+", "10.0.0.1@1 fd00::1@1 10.0.0.9@0", "eth0: 10.0.0.1 fd00::1"}, // the result of a routed pod
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
		at := map[string]bool{}
		for _, text := range strings.Fields(c.ips) {
			_, index, _ := strings.Cut(text, "@")
			at[cmp.Or(index, "0")] = true
		}
		if several := len(at) > 1; Several(r) != several {
			t.Errorf("interfaces %q, addresses %q: Several is %v", c.interfaces, c.ips, Several(r))
		}
	}
}

// TestRouted: Routed accepts only results of a routed pod.
func TestRouted(t *testing.T) {
	for interfaces, want := range map[string]string{
		"": "", "ens6": "", "ens6 ens7": "", "eth0+ veth1 eth1+": "", "ens6 net1+": "", "ens6 eth0": "",
		"ens6 eth0+": "ens6", "ens6 eth0+ veth1": "ens6",
	} {
		r := &types100.Result{}
		for _, name := range strings.Fields(interfaces) {
			name, inside := strings.CutSuffix(name, "+")
			i := &types100.Interface{Name: name}
			if inside {
				i.Sandbox = "/run/netns/pod"
			}
			r.Interfaces = append(r.Interfaces, i)
		}
		if eni, is := Routed(r, "eth0"); is != (want != "") || is && eni != want {
			t.Errorf("%q: got %q %v, want %q", interfaces, eni, is, want)
		}
	}
	if _, is := Routed(nil, "eth0"); is {
		t.Error("without a result a pod is routed")
	}
}
