// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// A registry is usable while a process holds its lock. Usable leaves no file except that
// lock's.
func TestUsable(t *testing.T) {
	for _, text := range []string{"", "{", `{"schema_version": 1}`} {
		r := open(t)
		unlock, err := r.Lock(t.Context(), lockName)
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		if text != "" {
			if err := os.WriteFile(r.file(), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Usable(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		names, err := filepath.Glob(filepath.Join(r.dir, "*"))
		most := 1
		if text != "" {
			most = 2
		}
		if err != nil || len(names) > most {
			t.Errorf("%q leaves %v (%v)", text, names, err)
		}
	}
}

// Usable returns an error for everything that would make an ADD fail.
func TestUnusable(t *testing.T) {
	later := open(t)
	if err := os.WriteFile(later.file(), []byte(`{"schema_version": 2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	noLock, unreadable := open(t), open(t)
	if err := errors.Join(os.Mkdir(noLock.lockFile(lockName), 0o700), os.Mkdir(unreadable.file(), 0o700)); err != nil {
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
		{later, ErrVersion}, {noLock, unix.EISDIR}, {unreadable, unix.EISDIR}, {gone, fs.ErrNotExist},
	} {
		if err := tt.r.Usable(); !errors.Is(err, tt.want) {
			t.Errorf("%v, want %v", err, tt.want)
		}
	}
}

// A full or read-only file system takes no lease.
func TestUnusableFileSystem(t *testing.T) {
	nltest.Need(t, "root")
	for _, tt := range []struct {
		name  string
		spoil func(dir string) error
		want  error
	}{
		{"sound", func(string) error { return nil }, nil},
		{"read-only", func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") }, unix.EROFS},
		{"full", func(dir string) error { return os.WriteFile(filepath.Join(dir, "other"), make([]byte, 64<<10), 0o600) }, unix.ENOSPC},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, done := open(t), make(chan error)
			go func() { done <- onMount(r, tt.spoil) }()
			if err := <-done; !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

// onMount calls Usable with a tmpfs of its own as the registry's directory. Only this
// thread sees the tmpfs, which ends with the thread.
func onMount(r *Registry, spoil func(string) error) error {
	runtime.LockOSThread() // never unlocked: the thread must end
	err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err == nil {
		err = unix.Mount("tmpfs", r.dir, "tmpfs", 0, "size=64k")
	}
	if err == nil {
		err = r.Change(context.Background(), func(*State) {})
	}
	if err == nil {
		err = spoil(r.dir)
	}
	if err != nil {
		return errors.Join(errors.New("the test itself"), err)
	}
	return r.Usable()
}
