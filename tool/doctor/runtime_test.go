// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// TestRuntime: a user runs a program of his own that is named containerd. doctor must take the release from the
// containerd in $PATH.
func TestRuntime(t *testing.T) {
	dir, path := t.TempDir(), t.TempDir()
	for in, text := range map[string]string{
		dir:  "echo; read line",
		path: "echo containerd github.com/containerd/containerd/v2 v2.1.5 fcd43222d6b0",
	} {
		if err := os.WriteFile(filepath.Join(in, "containerd"), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	other := exec.Command(filepath.Join(dir, "containerd"))
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait() // the program exits when its standard input is closed
	defer stdin.Close()
	if _, err := stdout.Read(make([]byte, 1)); err != nil { // wait until the program runs
		t.Fatal(err)
	}
	t.Setenv("PATH", path+":"+os.Getenv("PATH"))
	found, err := (&Node{}).checkRuntime(t.Context())
	if err != nil || len(found) != 1 || !strings.Contains(found[0].About, "v2.1.5") {
		t.Errorf("%v, %v: want a finding of v2.1.5", found, err)
	}
	report, _ := Review(t.Context(), Record{Conflists: conf.Load(""), Kernel: &Snapshot{}, Cloud: &Answers{}})
	if i := slices.IndexFunc(report.Findings, func(f Finding) bool { return f.Check == "runtime" }); i >= 0 {
		t.Errorf("the record of another node has %+v", report.Findings[i])
	}
}

func TestForgetful(t *testing.T) {
	for answer, want := range map[string]string{
		"containerd github.com/containerd/containerd/v2 v2.1.5 fcd43222d6b0": "v2.1.5",
		"containerd github.com/containerd/containerd/v2 v2.1.7 0a1b":         "",
		"containerd containerd.io 1.7.27 05044ec0a9a7":                       "1.7.27",
		"containerd github.com/containerd/containerd 1.7.31~ds1 1.7.31~ds1":  "",
		"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1":  "1.6.20",
		"containerd github.com/k3s-io/containerd v2.2.1-k3s1":                "v2.2.1",
		"containerd github.com/containerd/containerd/v2 v2.3.0 1f2e":         "",
		"containerd github.com/containerd/containerd/v2 2.4.2+unknown":       "",
		"containerd github.com/containerd/containerd/v3 v3.0.0":              "",
		"containerd github.com/containerd/containerd/v2 main-12-g0b84":       "",
	} {
		if got := faultyRelease(answer); got != want {
			t.Errorf("%s: got %q, want %q", answer, got, want)
		}
	}
}
