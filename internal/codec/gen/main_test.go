// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCurrent checks that each package has the descriptions that gen generates from its struct tags.
func TestCurrent(t *testing.T) {
	const root = "../../.."
	count := 0
	err := filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if strings.HasPrefix(d.Name(), ".") && dir != root || d.Name() == "bin" || d.Name() == "testdata" {
			return fs.SkipDir
		}
		s, err := readPackage(dir)
		if err != nil || len(s.types) == 0 {
			return err
		}
		count++
		file, want, err := generate(dir)
		if err != nil {
			return err
		}
		got, err := os.ReadFile(file)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is stale: run go generate in %s. It lacks:\n\t%s", file, dir,
				strings.Join(missing(got, want), "\n\t"))
		}
		return err
	})
	if err != nil || count < 3 {
		t.Errorf("%d packages, %v", count, err)
	}
}

// missing returns the lines of a description that a file lacks.
func missing(file, want []byte) (lines []string) {
	for line := range bytes.Lines(want) {
		if line = bytes.TrimSpace(line); !bytes.Contains(file, line) {
			lines = append(lines, string(line))
		}
	}
	return lines
}
