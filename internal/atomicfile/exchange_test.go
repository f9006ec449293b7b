// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// onTmpfs returns an empty directory on a tmpfs, like /run.
func onTmpfs(t *testing.T) (string, *os.File) {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "exchange-*")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close(); os.RemoveAll(path) })
	return path, dir
}

// put replaces the content of the file with the text. It passes the text to Exchange in two parts.
func put(t *testing.T, dir *os.File, text string) {
	t.Helper()
	at := len(text) / 2
	if err := Exchange(dir, "file", 0o600, time.Time{}, []byte(text[:at]), []byte(text[at:])); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestExchange checks that Exchange writes into two files in turn. A killed process may have left any text in the file
// that Exchange overwrites.
func TestExchange(t *testing.T) {
	path, dir := onTmpfs(t)
	file := filepath.Join(path, "file")
	var before []fs.FileInfo
	last := ""
	for i, text := range []string{"one", "the second", "3", "", "a fifth text", "six"} {
		put(t, dir, text)
		if got := read(t, file); got != text {
			t.Errorf("read %q, not %q", got, text)
		}
		fi, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if i > 1 && !os.SameFile(fi, before[i-2]) {
			t.Errorf("%q is in a new file", text)
		}
		before = append(before, fi)
		if i > 0 {
			if got := read(t, file+Old); got != last {
				t.Errorf("kept %q, not %q", got, last)
			}
			// A killed process has left this text.
			if err := os.WriteFile(file+Old, []byte(strings.Repeat("half", i)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		last = text
	}
}

// TestExchangeSpares: a reader has opened or mapped the file, or has a hard link to it. Later exchanges must not change
// the text that this reader sees.
func TestExchangeSpares(t *testing.T) {
	const text = "the text that a reader has open"
	for name, have := range map[string]func(t *testing.T, path string) (now func() (string, error)){
		"open": func(t *testing.T, path string) func() (string, error) {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return func() (string, error) { b, err := io.ReadAll(f); return string(b), err }
		},
		"mapped": func(t *testing.T, path string) func() (string, error) {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			b, err := unix.Mmap(int(f.Fd()), 0, len(text), unix.PROT_READ, unix.MAP_SHARED)
			if err = errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Munmap(b) })
			return func() (string, error) { return string(b), nil }
		},
		"linked": func(t *testing.T, path string) func() (string, error) {
			if err := os.Link(path, path+".backup"); err != nil {
				t.Fatal(err)
			}
			return func() (string, error) { b, err := os.ReadFile(path + ".backup"); return string(b), err }
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, dir := onTmpfs(t)
			put(t, dir, text)
			now := have(t, filepath.Join(path, "file"))
			for _, next := range []string{"two", "three", "four"} {
				put(t, dir, next)
				if got := read(t, filepath.Join(path, "file")); got != next {
					t.Errorf("read %q, not %q", got, next)
				}
			}
			if got, err := now(); got != text || err != nil {
				t.Errorf("it has become %q, %v", got, err)
			}
		})
	}
}

// TestExchangeDeleted deletes the directory, or the files in it. Exchange must write nothing into a new directory with
// the same path.
func TestExchangeDeleted(t *testing.T) {
	path, dir := onTmpfs(t)
	put(t, dir, "one")
	put(t, dir, "two")
	for _, name := range []string{"file" + Old, "file"} {
		if err := os.Remove(filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
		put(t, dir, "after "+name)
		if got := read(t, filepath.Join(path, "file")); got != "after "+name {
			t.Errorf("read %q", got)
		}
	}
	if err := errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := Exchange(dir, "file", 0o600, time.Time{}, []byte("late")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if files, err := os.ReadDir(path); len(files) > 0 || err != nil {
		t.Errorf("written into another directory: %v, %v", files, err)
	}
}

// TestExchangeLeased: a killed writer had a lease on the file (fcntl(2), F_SETLEASE). A child of the writer still has
// this lease, because it has not executed its program yet. Exchange must still replace the file.
func TestExchangeLeased(t *testing.T) {
	path, dir := onTmpfs(t)
	put(t, dir, "one")
	put(t, dir, "two")
	f, err := os.OpenFile(filepath.Join(path, "file"+Old), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "three")
	if got := read(t, filepath.Join(path, "file")); got != "three" {
		t.Errorf("read %q", got)
	}
}

// TestExchangeWhileStarting starts processes during the exchanges. Until a new process executes its program, it also
// has the files that the test has open. No writer and no reader may have to wait for such a process.
func TestExchangeWhileStarting(t *testing.T) {
	path, dir := onTmpfs(t)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					if err := exec.Command("true").Run(); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range 3000 {
		put(t, dir, "text")
		f, err := os.OpenFile(filepath.Join(path, "file"), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Error(err)
			break
		}
		f.Close()
	}
	close(done)
	wg.Wait()
}
