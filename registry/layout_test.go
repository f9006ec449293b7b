// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec/codectest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry/indexed"
)

// file describes the file's layout for encoding/json. The codec must read and write the same layout.
type file struct {
	SchemaVersion int                      `json:"schema_version"`
	Free          map[netip.Addr]free      `json:"ips"`
	Leases        map[netip.Addr]Lease     `json:"leases"`
	ENIs          map[string]ENI           `json:"enis"`
	VPCs          map[string]VPC           `json:"vpcs"`
	Intents       map[string]Intent        `json:"intents,omitempty"`
	Gone          map[netip.Addr]time.Time `json:"gone,omitempty"`
	Waiters       map[string]Waiter        `json:"wishes,omitempty"`
	GaveUp        map[string]Waiter        `json:"gaveUp,omitempty"`
	Failures      map[string]Failure       `json:"failures,omitempty"`
	Owners        map[netip.Addr]Pod       `json:"owners,omitempty"`
	Warm          map[string]Warm          `json:"warm,omitempty"`
	OnRequest     []OnRequest              `json:"on_request,omitempty"`
	NotBefore     map[string]time.Time     `json:"not_before,omitempty"`
	Refusals      map[string]Refusal       `json:"refusals,omitempty"`
	Rebuilt       Rebuilt                  `json:"rebuilt,omitzero"`
	Instance      Instance                 `json:"instance"`
	Log           Logging                  `json:"leaseLog,omitzero"`
	LogLines      []Line                   `json:"logLines,omitempty"`
}

type free struct {
	ReleasedOn time.Time `json:"released_on"`
}

// fileOf copies the fields of a state by their names.
func fileOf(s *State) (f file) {
	f.SchemaVersion, f.Free, f.Leases = schemaVersion, map[netip.Addr]free{}, maps.Collect(s.Leases.All())
	for a, since := range s.Free.All() {
		f.Free[a] = free{since}
	}
	from, to := reflect.ValueOf(s).Elem(), reflect.ValueOf(&f).Elem()
	for i := range from.NumField() {
		if name := from.Type().Field(i); name.IsExported() && name.Name != "Free" && name.Name != "Leases" {
			to.FieldByName(name.Name).Set(from.Field(i))
		}
	}
	return f
}

func randomState() *State {
	for {
		s := newState()
		for _, field := range reflect.ValueOf(s).Elem().Fields() {
			if field.CanSet() {
				codectest.Random(field)
			}
		}
		var since map[netip.Addr]time.Time
		codectest.Random(reflect.ValueOf(&since).Elem())
		for a, t := range since {
			s.Free.Set(a, t)
		}
		var leases map[netip.Addr]Lease
		codectest.Random(reflect.ValueOf(&leases).Elem())
		for a, l := range leases {
			s.Leases.Set(a, l)
		}
		if s.checkInvariants() == nil {
			return s
		}
	}
}

var likeState = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.IgnoreUnexported(State{}), cmpopts.EquateEmpty(),
	cmp.Transformer("All", func(e indexed.Entries[time.Time]) map[netip.Addr]time.Time {
		return maps.Collect(e.All())
	}),
	cmp.Transformer("All", func(e indexed.Entries[Lease]) map[netip.Addr]Lease { return maps.Collect(e.All()) }),
}

// TestLayoutWritten checks that the codec writes what the struct tags say, except for the order. So it fails if
// layout.go lacks a field of State.
func TestLayoutWritten(t *testing.T) {
	for range 500 {
		s := randomState()
		b := encoded(t, s)
		truth, err := json.Marshal(fileOf(s))
		if err != nil {
			t.Fatal(err)
		}
		written := codectest.Value(t, b).(map[string]any)
		delete(written, "written")
		dropIndexes(written)
		if diff := cmp.Diff(codectest.Value(t, truth), any(written)); diff != "" {
			t.Fatalf("-by the tags +written:\n%s", diff)
		}
	}
}

// dropIndexes removes the members that only the codec writes and reads.
func dropIndexes(object map[string]any) {
	maps.DeleteFunc(object, func(name string, _ any) bool { return strings.HasSuffix(name, "Index") })
	for _, member := range object {
		if inner, ok := member.(map[string]any); ok {
			dropIndexes(inner)
		}
	}
}

// TestLayoutRead checks that the codec reads what encoding/json writes: in the order of the struct, sorted, and with
// spaces.
func TestLayoutRead(t *testing.T) {
	for range 500 {
		s := randomState()
		ordered, err := json.Marshal(fileOf(s))
		if err != nil {
			t.Fatal(err)
		}
		sorted, _ := json.Marshal(codectest.Value(t, ordered))
		spaced, _ := json.MarshalIndent(codectest.Value(t, ordered), "", "\t")
		for _, b := range [][]byte{ordered, sorted, spaced} {
			got, err := parseState(b, then)
			if err != nil {
				t.Fatalf("%v: %s", err, b)
			}
			if diff := cmp.Diff(s, got, likeState); diff != "" {
				t.Fatalf("-encoded +read:\n%s\n%s", diff, b)
			}
		}
	}
}

// TestLaterFields: an entry has fields of a later release. The codec must ignore these fields, and keep them. A null
// must count as the zero value.
func TestLaterFields(t *testing.T) {
	const b = `{"colour":null,"schema_version":1,"leases":{"10.0.0.1":{"network":"n","containerID":"c","ifname":"eth0","mood":["x]",{"y":"\"}"}],"eni":"eni-1","bound":true,"since":null,"age":1.5e3}},"enis":null,"size":[]}`
	s, err := parseState([]byte(b), then)
	if err != nil {
		t.Fatal(err)
	}
	want := map[netip.Addr]Lease{addr("10.0.0.1"): {Key: Key{"n", Attachment{ContainerID: "c", IfName: "eth0"}},
		ENI: "eni-1", Bound: true}}
	if diff := cmp.Diff(want, maps.Collect(s.Leases.All()), likeState); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	out := encoded(t, s)
	for _, want := range []string{
		`"leases":{"10.0.0.1":{"network":"n","containerID":"c","ifname":"eth0","mood":["x]",{"y":"\"}"}],"eni":"eni-1","bound":true,"since":null,"age":1.5e3}},`,
		`,"colour":null,"size":[],"written":"`,
	} {
		if strings.Count(string(out), want) != 1 {
			t.Errorf("written %s, want %s in it", out, want)
		}
	}
}

func TestSyntax(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{``, "want {"},
		{`[]`, "want {"},
		{`{0schema_version":1}`, "after top-level value"},
		{`{"schema_version":1}}`, "there is text after the value"},
		{`{"schema_version":1,}`, "unexpected end"},
		{`{"schema_version":01}`, "is not how JSON writes an integer"},
		{`{"schema_version":1 "ips":{}}`, `parsing "1 \"ips\""`},
		{`{"schema_version":1,"ips":{"10.0.0.300":{}}}`, "10.0.0.300"},
		{`{"schema_version":1,"ips":{"10.0.0.3":{"released_on":"today"}}}`, "today"},
		{`{"schema_version":1,"leases":{"10.0.0.3":{"bound":1}}}`, "want true or false"},
		{`{"schema_version":1,"leases":{"10.0.0.3":{"eni":"eni` + "\n" + `"}}}`, "invalid character '\\n'"},
		{`{"schema_version":1,"enis":{"eni-1":{"addrs":["10.0.0.1",]}}}`, "unexpected end"},
		{`{"schema_version":1,"enis":{"eni-1":{"addrs":["10.0.0.1"}}}`, "want a comma or ]"},
		{`{"schema_version":1,"x":}`, "x: this is no JSON"},
		{`{"schema_version":1,"x":[1,2}`, "x: this is no JSON"},
	} {
		if _, _, err := decodeState([]byte(tt.in), codec.Read); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.in, err, tt.want)
		}
		if _, err := parseState([]byte(tt.in), then); err == nil {
			t.Errorf("%s: no error", tt.in)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"schema_version":1,"ips":{"10.0.1.13":{"released_on":"2026-11-21T07:17:24Z"}}}`))
	f.Add([]byte(
		`{"schema_version":1,"leases":{"10.0.1.14":{"network":"n","containerID":"c","ifname":"eth0","eni":"eni-1","since":"2026-11-21T07:17:24Z"}}}`))
	f.Add([]byte(
		`{"schema_version":1,"enis":{"eni-1":{"mac":"06:00:00:00:00:01","cidr":"10.0.0.0/20","addrs":["10.0.0.4"]}},"x":null}`))
	for range 20 {
		f.Add(encoded(f, randomState()))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseState(b, then.Add(1)) // as if any program had written the file
		if err != nil {
			return
		}
		if !json.Valid(b) {
			t.Fatalf("read, but it is no JSON: %q", b)
		}
		out := encoded(t, s)
		again, err := parseState(out, then)
		if err != nil {
			t.Fatalf("written, but cannot be read: %v\n%s", err, out)
		}
		// Compare texts: a comparison of the values by reflection takes a hundred times as long.
		text := unsealed(t, out)
		if got := unsealed(t, encoded(t, again)); !bytes.Equal(got, text) {
			t.Fatalf("-written +read:\n%s\n%s", text, got)
		}
		if got := unsealed(t, encoded(t, parsed(t, text))); !bytes.Equal(got, text) {
			t.Fatalf("-read late +read at once:\n%s\n%s", text, got)
		}
	})
}

// BenchmarkUpdate uses registries with different numbers of addresses. Four of five addresses have a lease. For figures
// that repeat, build the test with go test -c, and run it in nl/nltest/vm/icount.
func BenchmarkUpdate(b *testing.B) {
	benchmark(b, func(r *Registry) { update(b, r, func(*State) {}) })
}

func BenchmarkView(b *testing.B) { benchmark(b, func(r *Registry) { view(b, r) }) }

func benchmark(b *testing.B, f func(*Registry)) {
	for _, addresses := range []int{1, 50, 250} {
		b.Run(fmt.Sprint(addresses), func(b *testing.B) {
			dir, err := os.MkdirTemp("/dev/shm", "registry-*")
			if err != nil {
				b.Fatal(err)
			}
			defer os.RemoveAll(dir)
			r, err := Open(dir)
			if err != nil {
				b.Fatal(err)
			}
			update(b, r, func(s *State) { crowd(b, s, addresses) })
			for b.Loop() {
				f(r)
			}
		})
	}
}

// crowd gives realistic leases to four of five addresses.
func crowd(b *testing.B, s *State, addresses int) {
	a := fill(s, addresses)
	for i := range addresses * 4 / 5 {
		l := lease(fmt.Sprintf("%064d", i))
		l.PodNamespace, l.PodName, l.NetNS, l.Bound = "shop", fmt.Sprint("cart-",
			i), fmt.Sprintf("/run/netns/cni-%036d", i), true
		if err := s.Reserve(a, l); err != nil {
			b.Fatal(err)
		}
		a = a.Next()
	}
}
