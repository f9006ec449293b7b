// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package judge

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadTAP(t *testing.T) {
	const text = "1..4\nok 1 a # b\nok 2 c # skip it flakes\nnot ok 3 d: e\n# (in f, line 7)\n#   failed\nok 4 skip g\n"
	got, err := readTAP(strings.NewReader(text))
	want := []result{
		{"a # b", "passed", ""},
		{"c", "skipped", " # skip it flakes"},
		{"d: e", "failed", "\n# (in f, line 7)\n#   failed\n"},
		{"skip g", "passed", ""},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(result{})); d != "" || err != nil {
		t.Errorf("error %v; -want +got\n%s", err, d)
	}
	for _, wrong := range []string{"", "1..0\n", "1..2\nok 1 a\n", "1..1\nok 1 a\nok 2 b\n"} {
		if got, err := readTAP(strings.NewReader(wrong)); err == nil {
			t.Errorf("%q has no error: %v", wrong, got)
		}
	}
}
