// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/atomicfile"
)

const fileName = "registry.json"

// A directory is the registry's directory, open and locked.
//
// The lock is on the directory itself. If it were on a file, another program could delete this file. The next process
// would then lock a new file, and two processes would write into the same directory.
//
// All operations in this Go file use the open directory, not its path. So they never write into a new directory that
// has replaced the open one.
type directory struct {
	*os.File
	// package flock opens the directory a second time, for the lock
	lock *flock.Flock
}

// openDirectory opens and locks the registry's directory. If there is no directory, openDirectory creates one.
func (r *Registry) openDirectory(ctx context.Context) (*directory, error) {
	l, err := r.lockNamed(ctx, ".", unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", r.dir, err)
	}
	d := &directory{lock: l}
	var opened fs.FileInfo
	if d.File, err = openAt(unix.AT_FDCWD, l.Path(), os.O_RDONLY|unix.O_DIRECTORY); err == nil {
		opened, err = d.Stat()
	}
	if err == nil {
		err = checkSameFile(l, opened)
	}
	if err != nil {
		d.unlockAndClose()
		return nil, asDeleted(err)
	}
	return d, nil
}

func (d *directory) unlockAndClose() {
	d.lock.Unlock()
	d.Close()
}

// loadState reads the registry's file. If the file cannot be parsed, loadState renames it, so that people can inspect
// it, and returns a blank state.
func (d *directory) loadState() (*State, error) {
	b, written, err := readContent(openAt(d.fd(), fileName, os.O_RDONLY))
	s, err := parseContent(d.path(fileName), b, written, err)
	if !IsGarbage(err) {
		return s, err
	}
	bad, e := d.setAside("bad")
	if e != nil {
		return nil, e
	}
	slog.Warn("the registry cannot be read. It was set aside, and a new registry is built from the kernel, metadata "+
		"and EC2",
		"file", bad, "because", err)
	return blankState(), nil
}

// setAside renames the registry's file, and returns the new path.
func (d *directory) setAside(why string) (path string, err error) {
	aside := fileName + "." + why + "-" + time.Now().UTC().Format("20060102T150405.000000000")
	if err := unix.Renameat(d.fd(), fileName, d.fd(), aside); err != nil {
		return "", fmt.Errorf("set registry aside: %w", asDeleted(err))
	}
	return d.path(aside), nil
}

// SetAside calls isOther, which must report whether the state belongs to another node. If isOther returns true,
// SetAside renames the registry's file and returns the new path. The next change then begins with an empty state. If
// isOther returns false, SetAside returns "".
func (r *Registry) SetAside(ctx context.Context, isOther func(*State) bool) (path string, err error) {
	d, err := r.openDirectory(ctx)
	if err != nil {
		return "", err
	}
	defer d.unlockAndClose()
	s, err := d.loadState()
	if err != nil || !isOther(s) {
		return "", err
	}
	return d.setAside("other")
}

func (d *directory) fd() int { return int(d.Fd()) }

func (d *directory) path(name string) string { return filepath.Join(d.Name(), name) }

// parseContent parses b, which is the content of the registry's file, and converts the times in it to the current
// clock. The arguments "written" and "err" are the modification time of the file, and the error of the read.
func parseContent(path string, b []byte, written time.Time, err error) (*State, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return blankState(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read registry: %w", err)
	}
	s, err := parseState(b, written)
	if err != nil {
		return nil, fmt.Errorf("read registry: %s: %w", path, contentError{err})
	}
	s.setClock(nowAndBootTime())
	return s, nil
}

// A contentError says why the registry's file cannot be parsed.
type contentError struct{ error }

func (e contentError) Unwrap() error { return e.error }

// IsGarbage reports whether an error means that the registry's file was read, but cannot be parsed.
func IsGarbage(err error) bool {
	_, ok := errors.AsType[contentError](err)
	return ok && !errors.Is(err, ErrVersion)
}

// replaceFile replaces the content and the modification time of the registry's file.
func (d *directory) replaceFile(written time.Time, data [][]byte) error {
	return asDeleted(atomicfile.Exchange(d.File, fileName, 0o600, written, data...))
}

// asDeleted returns errDeleted if err means that a file does not exist. It returns all other errors unchanged.
func asDeleted(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errDeleted
	}
	return err
}
