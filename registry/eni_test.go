// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec/codectest"
)

// A change of any field of an ENI makes it another one.
func TestENISame(t *testing.T) {
	fields := reflect.TypeFor[ENI]()
	for i := range fields.NumField() {
		var e ENI
		for field := reflect.ValueOf(&e).Elem().Field(i); field.IsZero() || field.Kind() == reflect.Map &&
			field.Len() == 0 || field.Kind() == reflect.Slice && field.Len() == 0; {
			codectest.Random(field)
		}
		if !e.same(e.clone()) {
			t.Errorf("%s: an ENI is not the same as its clone", fields.Field(i).Name)
		}
		if e.same(&ENI{}) || (&ENI{}).same(&e) {
			t.Errorf("%s makes no difference", fields.Field(i).Name)
		}
	}
}

// A process may change what an ENI refers to, in place. Then the file has the change.
func TestENIChangedInPlace(t *testing.T) {
	a, b := addr("10.0.0.10"), addr("10.0.0.11")
	whole := ENI{MAC: "06:00:00:00:00:01", Addrs: []netip.Addr{a}, Prefixes: []Prefix{{CIDR: netip.PrefixFrom(a, 28)}},
		Groups: []string{"sg-1"}, Tags: map[string]string{"k": "v"}, SubnetTags: map[string]string{"k": "v"}}
	for name, change := range map[string]func(ENI){
		"addrs":      func(e ENI) { e.Addrs[0] = b },
		"prefixes":   func(e ENI) { e.Prefixes[0].Since = time.Unix(1790000000, 0).UTC() },
		"groups":     func(e ENI) { e.Groups[0] = "sg-2" },
		"tags":       func(e ENI) { e.Tags["k"] = "w" },
		"subnetTags": func(e ENI) { delete(e.SubnetTags, "k") },
	} {
		s := newState()
		s.ENIs["eni-1"], s.ENIs["eni-2"] = whole, ENI{MAC: "06:00:00:00:00:02"}
		before := encoded(t, s)
		s = parsed(t, before)
		if again := encoded(t, s); !bytes.Equal(again, before) {
			t.Errorf("without a change: %s, and not %s", again, before)
		}
		change(s.ENIs["eni-1"])
		if diff := cmp.Diff(s.ENIs, parsed(t, encoded(t, s)).ENIs, likeState); diff != "" {
			t.Errorf("%s: -changed +read:\n%s", name, diff)
		}
	}
}
