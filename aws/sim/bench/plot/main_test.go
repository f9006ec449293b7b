// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

const docs = "../../../../docs/"

// TestPlot checks that the committed plots show the committed figures. make plot draws them.
func TestPlot(t *testing.T) {
	for name, from := range map[string][]string{"speed.svg": {docs + "bench-icount.txt", docs + "bench-traffic.txt"}, "fleet.svg": {docs + "fleet.md"}} {
		var got bytes.Buffer
		if err := run(from, &got); err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(docs + name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("docs/%s does not show the figures of %q: run make plot", name, from)
		}
	}
}

// TestMissing expects an error for a missing figure, and not an empty bar.
func TestMissing(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{empty, docs + "bench-traffic.txt"}, &bytes.Buffer{}); err == nil {
		t.Error("a file without a table is drawn")
	}
	if err := run([]string{docs + "bench-traffic.txt", docs + "bench-icount.txt"}, &bytes.Buffer{}); err == nil {
		t.Error("files in the wrong order are drawn")
	}
}
