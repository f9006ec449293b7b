// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

func TestStrange(t *testing.T) {
	cidr, addr := netip.MustParsePrefix, netip.MustParseAddr
	s := &registry.State{ENIs: map[string]registry.ENI{
		"eni-1": {CIDR: cidr("10.0.0.0/24"), CIDR6: cidr("2001:db8::/64"), Addrs: []netip.Addr{addr("10.0.0.9")}},
		"eni-2": {CIDR: cidr("10.0.0.0/24"), Addrs: []netip.Addr{addr("10.0.0.10")}, Prefixes: []registry.Prefix{{CIDR: cidr("10.0.0.32/28")}}},
		"eni-3": {},
	}}
	for _, test := range []struct{ eni, block, want string }{
		{"eni-1", "10.0.0.4/32", ""},
		{"eni-1", "10.0.0.9/32", ""}, // it has it already
		{"eni-1", "10.0.0.254/32", ""},
		{"eni-1", "10.0.0.48/28", ""},
		{"eni-1", "2001:db8::4/128", ""},
		{"eni-1", "2001:db8:0:0:1::/80", ""},
		{"eni-3", "192.168.0.1/32", ""}, // its subnet is not known
		{"eni-1", "10.0.1.4/32", "its subnet is 10.0.0.0/24"},
		{"eni-1", "10.0.0.0/16", "its subnet is 10.0.0.0/24"},
		{"eni-1", "2001:db8:1::4/128", "its subnet is 2001:db8::/64"},
		{"eni-1", "10.0.0.0/32", "AWS reserves"},
		{"eni-1", "10.0.0.1/32", "AWS reserves"},
		{"eni-1", "10.0.0.3/32", "AWS reserves"},
		{"eni-1", "10.0.0.255/32", "AWS reserves"},
		{"eni-1", "10.0.0.0/28", "AWS reserves"},
		{"eni-1", "10.0.0.240/28", "AWS reserves"},
		{"eni-1", "2001:db8::1/128", "AWS reserves"},
		{"eni-1", "2001:db8::/80", "AWS reserves"},
		{"eni-1", "2001:db8:0:0:ffff::/80", "AWS reserves"},
		{"eni-1", "10.0.0.10/32", "eni-2 has it"},
		{"eni-1", "10.0.0.33/32", "eni-2 has it"},
		{"eni-1", "10.0.0.32/28", "eni-2 has it"},
		{"eni-3", "10.0.0.10/32", "eni-2 has it"},
	} {
		b := cidr(test.block)
		err := strange(s, test.eni, s.ENIs[test.eni], nil, []netip.Prefix{b})
		if b.IsSingleIP() {
			err = strange(s, test.eni, s.ENIs[test.eni], []netip.Addr{b.Addr()}, nil)
		}
		if got := errText(err); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s on %s: got %q, want %q", test.block, test.eni, got, test.want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// What EC2 says that it has assigned, and cannot be, goes to no pod, now or later.
func TestStrangeAnswers(t *testing.T) {
	for _, test := range []struct{ name, action, from, to string }{
		{"an address of another subnet", "AssignPrivateIpAddresses", "100.77.", "100.78."},
		{"the router's address", "AssignPrivateIpAddresses", ">100.77.0.5<", ">100.77.0.1<"},
		{"a new ENI in another subnet", "CreateNetworkInterface", "100.77.", "100.78."},
		{"a new ENI with the address of another", "CreateNetworkInterface", ">100.77.0.4<", ">10.177.0.4<"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			w.policy.Timeout = time.Second
			if test.action != "CreateNetworkInterface" {
				w.mustAcquire(0)
			}
			w.lying(test.action, test.from, test.to)
			_, err := w.acquire(1)
			if e, ok := errors.AsType[*plugin.Error](err); !ok || e.Code != plugin.CodeTryAgain || !strings.Contains(err.Error(), "is not used, because it cannot be on") {
				t.Errorf("got %v", err)
			}
			s := w.state()
			for a := range s.Free.Keys() {
				if test.action == "CreateNetworkInterface" || strings.HasPrefix(a.String(), "100.78.") {
					t.Errorf("%s is free", a)
				}
			}
			w.consistent()
		})
	}
}

// lying has EC2 say something else in its answers to an action.
func (w *world) lying(action, from, to string) {
	ec2 := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		w.sim.ServeHTTP(answer, r)
		text := answer.Body.String()
		if r.FormValue("Action") == action {
			text = strings.ReplaceAll(text, from, to)
		}
		rw.WriteHeader(answer.Code)
		io.WriteString(rw, text)
	}))
	w.Cleanup(ec2.Close)
	w.cloud.EC2URL = ec2.URL
}
