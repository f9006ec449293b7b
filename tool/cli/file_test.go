// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// TestWriteFile writes to different kinds of files that a person may name. Symlinks, devices and pipes remain. A
// regular file is replaced, so a process that has opened the old file still reads the old text.
func TestWriteFile(t *testing.T) {
	at := func(name string) string { return filepath.Join(t.TempDir(), name) }
	link := func(to string) string {
		path := at("link")
		must(t, os.Symlink(to, path))
		return path
	}
	file := func() string {
		path := at("file")
		must(t, os.WriteFile(path, []byte("old"), 0o644))
		return path
	}
	for name, path := range map[string]string{
		"no file":                  at("file"),
		"file":                     file(),
		"symlink":                  link(file()),
		"symlink to a symlink":     link(link(file())),
		"symlink to no file":       link(at("file")),
		"symlink beside its file":  beside(t, "file"),
		"symlink through symlinks": beside(t, "sub/../file"),
	} {
		t.Run(name, func(t *testing.T) {
			was, err := os.Lstat(path)
			old, _ := os.Open(path)
			must(t, WriteFile(path, []byte("new"), 0o600))
			if b, err := os.ReadFile(path); string(b) != "new" || err != nil {
				t.Errorf("the file has %q, %v", b, err)
			}
			if is, err2 := os.Lstat(path); err == nil && (err2 != nil || is.Mode().Type() != was.Mode().Type()) {
				t.Errorf("the file was %v, and is %v, %v", was.Mode(), is.Mode(), err2)
			}
			if old != nil {
				b, err := io.ReadAll(old)
				if string(b) != "old" || err != nil {
					t.Errorf("a reader of the old file sees %q, %v", b, err)
				}
				must(t, old.Close())
			}
		})
	}
}

// beside returns a symlink whose target is the relative path in the argument to. The symlink's directory also has a
// file named file, and a symlink named sub. sub leads to a directory whose parent also has a file named file.
func beside(t *testing.T, to string) string {
	dir, other := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(filepath.Join(other, "deep"), 0o755))
	must(t, os.Symlink(filepath.Join(other, "deep"), filepath.Join(dir, "sub")))
	for _, d := range []string{dir, other} {
		must(t, os.WriteFile(filepath.Join(d, "file"), []byte("old"), 0o644))
	}
	must(t, os.Symlink(to, filepath.Join(dir, "link")))
	return filepath.Join(dir, "link")
}

// TestWriteFileInPlace writes into a named pipe, and into files that this process has open, by their names in /proc.
func TestWriteFileInPlace(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	must(t, syscall.Mkfifo(fifo, 0o600))
	both, err := os.OpenFile(fifo, os.O_RDWR, 0)
	must(t, err)
	defer both.Close()
	unnamed, err := os.Create(filepath.Join(t.TempDir(), "unnamed"))
	must(t, err)
	defer unnamed.Close()
	must(t, os.Remove(unnamed.Name()))
	named, err := os.Create(filepath.Join(t.TempDir(), "named"))
	must(t, err)
	defer named.Close()
	for name, c := range map[string]struct {
		path string
		from *os.File
	}{
		"named pipe":     {fifo, both},
		"deleted file":   {fdOf(unnamed), unnamed},
		"open file":      {fdOf(named), named},
		"open pipe":      {fdOf(both), both},
		"link of a link": {linkTo(t, fdOf(named)), named},
	} {
		t.Run(name, func(t *testing.T) {
			was, err := os.Stat(c.path)
			must(t, err)
			must(t, WriteFile(c.path, []byte("new"), 0o600))
			is, err := os.Stat(c.path)
			if err != nil || !os.SameFile(was, is) {
				t.Errorf("another file is at %s: %v", c.path, err)
			}
			if is.Mode().IsRegular() {
				_, err = c.from.Seek(0, io.SeekStart)
				must(t, err)
			}
			b := make([]byte, 3)
			if _, err := io.ReadFull(c.from, b); string(b) != "new" || err != nil {
				t.Errorf("read %q, %v", b, err)
			}
		})
	}
	if err := WriteFile(t.TempDir(), nil, 0o600); err == nil {
		t.Error("a file has replaced a directory")
	}
	if err := WriteFile(filepath.Join(t.TempDir(), "none", "file"), nil, 0o600); err == nil {
		t.Error("a file was written into no directory")
	}
}

func fdOf(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

func linkTo(t *testing.T, path string) string {
	link := filepath.Join(t.TempDir(), "stdout")
	must(t, os.Symlink(path, link))
	return link
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
