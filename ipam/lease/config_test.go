// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec/codectest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		want         Policy
		mistakes     []string
	}{
		{
			name:     "empty",
			config:   `{}`,
			mistakes: []string{"secGroupIds must be specified"},
		},
		{
			name:   "the original's example",
			config: `{"interfaceIndex":1,"subnetTags":{"kubernetes_kubelet":"true"},"secGroupIds":["sg-1234","sg-5678"]}`,
			want: Policy{MinIndex: 1, SubnetTags: map[string]string{"kubernetes_kubelet": "true"},
				SecurityGroups: []string{"sg-1234", "sg-5678"},
				Families:       []Family{IPv4}, ReuseWait: time.Minute, Batch: 1, Provision: ProvisionFull,
				Timeout: time.Minute},
		},
		{
			name: "every key, and one of another plugin's",
			config: `{"interfaceIndex":0,"secGroupIds":[],"skipDeallocation":true,"routeToVpcPeers":true,"routeToCidrs":["10.8.1.2/16"],
				"reuseIPWait":0,"ipBatchSize":0,"provision":"assign","maxENIs":2,"eniTags":{"team":"a"},"addTimeout":30,
				"connectionTracking":{"tcpEstablishedTimeout":432000,"udpTimeout":30},"colour":"blue"}`,
			want: Policy{Families: []Family{IPv4}, SecurityGroups: []string{}, Keep: true, Peers: true,
				Routes:    []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16")},
				Provision: ProvisionAssign, MaxENIs: 2, Tags: map[string]string{"team": "a"}, Timeout: 30 * time.Second,
				Tracking: registry.Tracking{TCPEstablished: 432000, UDP: 30}},
		},
		{
			name:   "what no growth could get again is kept",
			config: `{"provision":"none"}`,
			want: Policy{Families: []Family{IPv4}, Keep: true, ReuseWait: time.Minute, Batch: 1,
				Provision: ProvisionNone, Timeout: time.Minute},
		},
		{
			name: "all mistakes at once",
			config: `{"interfaceIndex":-1,"secGroupIds":[],"routeToCidrs":["10.8.0.5","x"],"reuseIPWait":-5,"ipBatchSize":-1,"provision":"some","maxENIs":-1,"addTimeout":600,
				"connectionTracking":{"tcpEstablishedTimeout":59,"udpStreamTimeout":181,"udpTimeout":-1}}`,
			mistakes: []string{
				"interfaceIndex: -1: want 0 or more",
				`routeToCidrs: "x": want a CIDR or an address, for example 10.8.0.0/16 or 10.8.0.5`,
				"reuseIPWait: -5: want 0 to 86400",
				"ipBatchSize: -1: want 0 or more",
				`provision: "some": want full, assign or none`,
				"maxENIs: -1: want 0 or more",
				"addTimeout: 600: want 1 to 90",
				"connectionTracking: tcpEstablishedTimeout: 59: want 60 to 432000 seconds, or 0 for the value of the " +
					"boot ENI",
				"connectionTracking: udpStreamTimeout: 181: want 60 to 180 seconds",
				"connectionTracking: udpTimeout: -1: want 30 to 60 seconds",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Config
			if err := json.Unmarshal([]byte(tt.config), &c); err != nil {
				t.Fatal(err)
			}
			err := c.Validate()
			for _, m := range tt.mistakes {
				if err == nil || !strings.Contains(err.Error(), m) {
					t.Errorf("got %v, want it to say %q", err, m)
				}
			}
			if len(tt.mistakes) > 0 {
				return
			}
			if diff := cmp.Diff(tt.want, c.pools[0], cmpopts.EquateComparable(netip.Prefix{}),
				cmpopts.IgnoreUnexported(Policy{})); diff != "" || err != nil {
				t.Errorf("err %v, policy (-want +got):\n%s", err, diff)
			}
		})
	}
}

// FuzzConfig checks that each configuration gives a valid policy or an error.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(
		`{"interfaceIndex":1,"secGroupIds":["sg-1"],"routeToCidrs":["10.0.0.0/8"],"reuseIPWait":60,"ipBatchSize":3,"addTimeout":9}`))
	f.Add([]byte(`{"secGroupIds":null,"provision":"none","routeToCidrs":[""]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var c Config
		if json.Unmarshal(b, &c) != nil || c.Validate() != nil {
			return
		}
		p := c.pools[0]
		if p.MinIndex < 0 || p.Batch < 0 || p.ReuseWait < 0 || p.MaxENIs < 0 || p.Timeout <= 0 ||
			p.Timeout > registry.MostWait {
			t.Errorf("%s: %+v", b, p)
		}
		for _, r := range p.Routes {
			if !r.IsValid() || r != r.Masked() {
				t.Errorf("%s: route %v", b, r)
			}
		}
	})
}

func TestConfigRead(t *testing.T) { codectest.Reads(t, (*Config).Describe) }

func FuzzConfigRead(f *testing.F) {
	codectest.Fuzz(f, (*Config).Describe, append(codectest.Plugins(f, "../../conflist-examples"),
		`{"skipDeallocation":true,"reuseIPWait":0,"addTimeout":30,"eniTags":{"a":"b"},"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"cni-ipvlan-vpc-k8s/pool":"p"}}}`,
		`{"SecGroupIDs":[],"connectionTracking":{"udpTimeout":40},"warm":{"min":null},"pools":{"a":{"warm":{"min":1},"secGroupIds":[]},"a":{}},"subnetTags":null,"ipBatchSize":1.0}`)...)
}

// TestResult: the result has the form of the original plugin's result.
func TestResult(t *testing.T) {
	prefix := netip.MustParsePrefix
	a := Allocation{
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.1.10")}, ID: "eni-1",
		ENI: registry.ENI{CIDR: prefix("10.0.1.0/24"), VPC: "vpc-1"},
		VPC: registry.VPC{CIDRs: []netip.Prefix{prefix("10.0.0.0/16"), prefix("100.64.0.0/16")},
			Peers: []netip.Prefix{prefix("10.9.0.0/16")}},
	}
	p := Policy{Peers: true, Routes: []netip.Prefix{prefix("192.168.0.0/16"), prefix("10.9.0.0/16")}}
	r, err := a.Result("eth1", p).GetAsVersion("0.4.0")
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"cniVersion":"0.4.0","interfaces":[{"name":"eth1"}],` +
		`"ips":[{"version":"4","interface":0,"address":"10.0.1.10/24","gateway":"10.0.1.1"}],` +
		`"routes":[{"dst":"10.0.0.0/16","gw":"10.0.1.1"},{"dst":"100.64.0.0/16","gw":"10.0.1.1"},` +
		`{"dst":"10.9.0.0/16","gw":"10.0.1.1"},{"dst":"192.168.0.0/16","gw":"10.0.1.1"}],"dns":{"nameservers":["10.0.0.2"]}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
