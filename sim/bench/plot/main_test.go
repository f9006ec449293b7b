// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

const docs = "../../../docs/"

// TestPlot checks that the committed plots show the committed figures.
func TestPlot(t *testing.T) {
	for name, from := range map[string][]string{"speed.svg": {docs + "bench-icount.txt", docs + "bench-traffic.txt"},
		"fleet.svg": {docs + "fleet.md"}, "cold.svg": {docs + "cold.txt"}} {
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

// TestInside checks that all bars and figures are inside the picture.
func TestInside(t *testing.T) {
	for _, name := range []string{"speed.svg", "fleet.svg", "cold.svg"} {
		text, err := os.ReadFile(docs + name)
		if err != nil {
			t.Fatal(err)
		}
		var width, height int
		if _, err := fmt.Sscanf(string(regexp.MustCompile(`viewBox="0 0 \d+ \d+"`).Find(text)), `viewBox="0 0 %d %d"`,
			&width, &height); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		column := 0
		for _, m := range regexp.MustCompile(
			`translate\((\d+) (\d+)\)|<text x="([\d.]+)" y="14">(\d[\d.]*)<`).FindAllSubmatch(text, -1) {
			x, _ := strconv.Atoi(string(m[1]))
			y, _ := strconv.Atoi(string(m[2]))
			column = max(column, x)
			end, _ := strconv.ParseFloat(string(m[3]), 64)
			const digit = 9 // of a font of 13 pixels, at most
			if right := column + int(end) + digit*len(m[4]); right > width || y+18 > height {
				t.Errorf("%s: %q ends at %d, %d, outside %d, %d", name, m[0], right, y+18, width, height)
			}
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
