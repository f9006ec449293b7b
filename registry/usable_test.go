// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestUsable checks that a registry is usable while a process holds its lock, and that Usable leaves no file behind.
func TestUsable(t *testing.T) {
	for _, text := range []string{"", "{", `{"schema_version": 1}`} {
		r := open(t)
		d, err := r.openDirectory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer d.unlockAndClose()
		if text != "" {
			if err := os.WriteFile(r.filePath(), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Usable(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		names, err := filepath.Glob(filepath.Join(r.dir, "*"))
		most := 0
		if text != "" {
			most = 1
		}
		if err != nil || len(names) > most {
			t.Errorf("%q leaves %v (%v)", text, names, err)
		}
	}
}

// TestUsableReads: Usable notices a file of a later layout, although it does not read the whole file.
func TestUsableReads(t *testing.T) {
	r := open(t)
	if err := r.Change(t.Context(), func(s *State) { s.Instance.Type = "m5.large" }); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(r.filePath())
	if err != nil || !strings.HasPrefix(string(b), fileBeginning) {
		t.Errorf("the file is %.40s (%v), want %s", b, err, fileBeginning)
	}
	if size, err := r.readableSize(); size != int64(len(b)) || err != nil {
		t.Errorf("the size is %d (%v), want %d", size, err, len(b))
	}
	later := strings.Replace(string(b), fileBeginning, `{"schema_version":12,`, 1)
	if err := os.WriteFile(r.filePath(), []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Usable(); !errors.Is(err, ErrVersion) {
		t.Errorf("version 12: %v", err)
	}
}

// TestUnusable checks that Usable returns an error for all faults that would make an ADD fail.
func TestUnusable(t *testing.T) {
	later := open(t)
	if err := os.WriteFile(later.filePath(), []byte(`{"schema_version": 2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	unreadable := open(t)
	if err := os.Mkdir(unreadable.filePath(), 0o700); err != nil {
		t.Fatal(err)
	}
	gone := open(t)
	if err := os.Remove(gone.dir); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		r    *Registry
		want error
	}{
		{later, ErrVersion}, {unreadable, unix.EISDIR}, {gone, fs.ErrNotExist},
	} {
		if err := tt.r.Usable(); !errors.Is(err, tt.want) {
			t.Errorf("%v, want %v", err, tt.want)
		}
	}
}

// TestUnusableFileSystem: on a read-only file system, no lease can be recorded. On a full file system, a change can
// still overwrite the file that the last change has replaced. So a lease can be recorded there if the registry fits
// into this file. Usable must return the error that an ADD would get.
func TestUnusableFileSystem(t *testing.T) {
	nltest.Need(t, "root")
	full := func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "other"), make([]byte, 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("it is not full: %w", err)
		}
		return nil
	}
	for _, tt := range []struct {
		name  string
		sizes []int // number of addresses in the registry after each earlier change
		spoil func(dir string) error
		want  error
	}{
		{"sound", []int{1}, func(string) error { return nil }, nil},
		{"read-only", []int{1, 1}, func(dir string) error {
			return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}, unix.EROFS},
		{"full", []int{1}, full, unix.ENOSPC},
		{"full, with the last file", []int{1, 1}, full, nil},
		{"full, with a large last file", []int{200, 200}, full, nil},
		{"full, with a small last file", []int{1, 200}, full, unix.ENOSPC},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, done := open(t), make(chan error)
			change := func(addrs int) error {
				return r.Change(context.Background(), func(s *State) { fill(s, addrs) })
			}
			go func() {
				done <- onMount(r, func() (err error) {
					for _, addrs := range tt.sizes {
						err = errors.Join(err, change(addrs))
					}
					return errors.Join(err, tt.spoil(r.dir))
				}, func() {
					for what, err := range map[string]error{"Usable": r.Usable(),
						"an ADD": change(tt.sizes[len(tt.sizes)-1])} {
						if !errors.Is(err, tt.want) {
							t.Errorf("%s: %v, want %v", what, err, tt.want)
						}
					}
				})
			}()
			if err := <-done; err != nil {
				t.Fatal("the test itself: ", err)
			}
		})
	}
}

// onMount makes a new tmpfs the registry's directory. It then calls the function prepare, and after that the function
// then. Only this thread sees the tmpfs. When the thread ends, the kernel removes the tmpfs.
func onMount(r *Registry, prepare func() error, then func()) error {
	runtime.LockOSThread() // never unlocked: the thread must end
	err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err == nil {
		err = unix.Mount("tmpfs", r.dir, "tmpfs", 0, "size=64k")
	}
	if err == nil {
		err = prepare()
	}
	if err == nil {
		then()
	}
	return err
}
