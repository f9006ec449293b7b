// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestReplace(t *testing.T) {
	path := t.TempDir()
	dir, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	left := filepath.Join(path, "file.new")
	if err := os.WriteFile(left, []byte("longer than what comes"), 0o600); err != nil { // left by a killed process
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two"} {
		if err := Replace(dir, "file", 0o600, []byte(text[:1]), []byte(text[1:])); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(path, "file")); string(b) != text || err != nil {
			t.Errorf("read %q, %v", b, err)
		}
	}
	if err := os.Mkdir(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(dir, "full", 0o600); err == nil {
		t.Error("a file has replaced a directory")
	}
	if left, _ := filepath.Glob(filepath.Join(path, "*.new")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestReplaceDeleted deletes the directory after the test has opened it, and makes another directory with the same
// path.
func TestReplaceDeleted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := Replace(dir, "file", 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if files, err := os.ReadDir(path); len(files) > 0 || err != nil {
		t.Errorf("written into another directory: %v, %v", files, err)
	}
}
