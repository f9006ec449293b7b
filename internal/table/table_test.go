// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package table

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTable checks that Parse reads a printed table unchanged, because later runs compare their tables with printed
// tables.
func TestTable(t *testing.T) {
	want := Table{{"chain", "c", "ADD p50"}, {"ours", "1", "8.25"}, {"a longer name, with commas", "16", "100"}}
	text := "a title\n\n" + want.String() + "\nanother\n\n" + Table{{"plugin"}, {"x"}}.String()
	if diff := cmp.Diff(want, Parse(text)); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if before, got, after := Cut(text); before+got.String()+after != text {
		t.Errorf("cut into %q, %v and %q", before, got, after)
	}
	for line := range strings.Lines(want.String()) {
		if first, _, _ := strings.Cut(want.String(), "\n"); len(line) != len(first)+1 {
			t.Errorf("%q is not aligned with %q", line, first)
		}
	}
}

func TestFigures(t *testing.T) {
	tt := Table{{"layout", "route", "rr", "spread", "x", "crr", "x"}, {"a", "near", "10", "1%", "1.00", "20", "2.00"},
		{"a", "far", "30", "1%", "3.00", "40", "4.00"}}
	for _, c := range []struct {
		got, want float64
	}{
		{tt.Number("rr", "a", "far"), 30},
		{tt.Ratio("rr", "a", "far"), 3},
		{tt.Ratio("crr", "a"), 2},
		{tt.Number("rr", "b"), 0},
		{tt.Ratio("no such column", "a"), 0},
		{Table(nil).Ratio("rr", "a"), 0},
	} {
		if c.got != c.want {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
}
