// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nltest

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
)

// A verdict is a test that records how it ended.
type verdict struct {
	testing.TB
	said string
}

func (v *verdict) Helper()                   {}
func (v *verdict) Skipf(f string, a ...any)  { v.end("skip: "+f, a) }
func (v *verdict) Fatalf(f string, a ...any) { v.end("fail: "+f, a) }

func (v *verdict) end(f string, a []any) {
	v.said = fmt.Sprintf(f, a...)
	runtime.Goexit()
}

func TestNeed(t *testing.T) {
	probes["luck"] = func() error { return errors.New("none today") }
	t.Cleanup(func() { delete(probes, "luck") })
	for _, tt := range []struct{ ci, feature, want string }{
		{"", "luck", "skip: needs luck: none today"},
		{"false", "luck", "skip: needs luck: none today"},
		{"true", "luck", "fail: needs luck, and in CI everything runs: none today"},
		{"", "pluck", `fail: Need does not know how to look for "pluck"`},
	} {
		t.Setenv("CI", tt.ci)
		var v verdict
		done := make(chan struct{})
		go func() {
			defer close(done)
			Need(&v, tt.feature)
		}()
		<-done
		if v.said != tt.want {
			t.Errorf("CI=%s, %s: %q, want %q", tt.ci, tt.feature, v.said, tt.want)
		}
	}
}
