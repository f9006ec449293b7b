// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec/codectest"
)

// TestENISame checks that two ENIs are not the same if one field differs.
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

// TestENIChangedInPlace: a process may change the lists and maps of an ENI in place. The file must then have the
// change.
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

// TestPrefixesReadLate: a long list of IPv4 prefixes has an index. With or without the index, the same list must be
// read.
func TestPrefixesReadLate(t *testing.T) {
	first, when := netip.MustParsePrefix("10.1.0.0/28"), time.Date(2026, 11, 29, 9, 30, 0, 123456789, time.UTC)
	for name, c := range map[string]struct {
		n     int
		last  Prefix
		index bool
	}{
		"few":          {6, Prefix{first, when}, false},
		"many":         {99, Prefix{first, when}, true},
		"unknown time": {9, Prefix{first, time.Time{}}, true},
		"unmasked":     {9, Prefix{netip.MustParsePrefix("10.1.0.5/8"), when}, true},
		"IPv6":         {9, Prefix{netip.MustParsePrefix("2001:db8::/80"), when}, false},
		"no prefix":    {9, Prefix{Since: when}, false},
		"long ago":     {9, Prefix{first, time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC)}, false},
		"1970":         {9, Prefix{first, time.Unix(0, 0).UTC()}, false},
		"after 2242":   {9, Prefix{first, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}, false},
	} {
		e := ENI{}
		for i := range c.n {
			a := netip.AddrFrom4([4]byte{10, 1, byte(i), 16})
			e.Prefixes = append(e.Prefixes, Prefix{netip.PrefixFrom(a, 28), when.Add(time.Duration(i))})
		}
		e.Prefixes = append(e.Prefixes, c.last)
		text, err := codec.Write([]byte{}, e.describe)
		if err != nil || strings.Contains(string(text), `"prefixesIndex"`) != c.index {
			t.Fatalf("%s: %v: %s", name, err, text)
		}
		var late, eager ENI
		err = errors.Join(codec.ReadTrusted(text, late.describe), codec.Read(text, eager.describe))
		if err != nil || !late.same(&e) || !eager.same(&e) {
			t.Errorf("%s: %v: %v and %v, not %v", name, err, late.Prefixes, eager.Prefixes, e.Prefixes)
		}
	}
}
