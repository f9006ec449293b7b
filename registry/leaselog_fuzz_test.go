// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzLine writes lines of the lease log that encoding/json can read. Whatever the names contain, the result must be
// one line, with the same values.
func FuzzLine(f *testing.F) {
	f.Add([]byte(
		`{"time":"2026-11-21T07:17:24Z","event":"begin","address":"10.0.1.14","network":"n","namespace":"default","pod":"web-0","container":"c","interface":"eth0","eni":"eni-1"}`))
	f.Add([]byte(
		`{"time":"2026-11-21T07:17:24.5+01:00","event":"held","address":"fd00::1","pod":"a\nb\u2028\u0000","nic":1,"since":"2026-11-21T07:17:24Z","booted":"2026-11-20T07:17:24Z"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var line, again Line
		if json.Unmarshal(b, &line) != nil {
			return
		}
		text := appendLines([]byte{}, []Line{line})
		if bytes.Count(text, []byte("\n")) != 1 || !bytes.HasSuffix(text, []byte("\n")) {
			t.Fatalf("not one line: %q", text)
		}
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if d := cmp.Diff(line, again, cmpopts.EquateComparable(netip.Addr{})); d != "" {
			t.Fatalf("%s\n-read +written and read:\n%s", text, d)
		}
	})
}
