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

// fileName is the name of the registry's file.
const fileName = "registry.json"

// A directory is the registry's directory, open and locked.
//
// The lock is on the directory itself. A lock on a file in the directory would not always keep two processes apart. If
// another program deletes that file, the next process creates and locks a new file. Then both processes write into the
// same directory. All operations here use the open directory, not its path. If another program deletes the directory, a
// process that has it open can no longer write into it. The process also cannot write into a new directory with the
// same path.
type directory struct {
	*os.File
	lock *flock.Flock // flock opens the directory once more, because it does not give its open file to callers
}

// enter opens and locks the directory. It creates the directory if there is none.
func (r *Registry) enter(ctx context.Context) (*directory, error) {
	l, err := r.hold(ctx, ".", unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", r.dir, err)
	}
	d := &directory{lock: l}
	var opened fs.FileInfo
	if d.File, err = openAt(unix.AT_FDCWD, l.Path(), os.O_RDONLY|unix.O_DIRECTORY); err == nil {
		opened, err = d.Stat()
	}
	if err == nil {
		err = isOf(l, opened)
	}
	if err != nil {
		d.leave()
		return nil, deleted(err)
	}
	return d, nil
}

// leave unlocks and closes the directory.
func (d *directory) leave() {
	d.lock.Unlock()
	d.Close()
}

// state reads the registry's file. If the file cannot be parsed, state renames it, so that people can inspect it, and
// returns a blank state.
func (d *directory) state() (*State, error) {
	b, written, err := content(openAt(d.fd(), fileName, os.O_RDONLY))
	s, err := read(d.path(fileName), b, written, err)
	if !IsGarbage(err) {
		return s, err
	}
	bad, e := d.setAside("bad")
	if e != nil {
		return nil, e
	}
	slog.Warn("the registry cannot be read: it was set aside, and a new one is built from the kernel, metadata and EC2",
		"file", bad, "because", err)
	return blank(), nil
}

// setAside renames the registry's file, and returns the new path, which contains why.
func (d *directory) setAside(why string) (path string, err error) {
	aside := fileName + "." + why + "-" + time.Now().UTC().Format("20060102T150405.000000000")
	if err := unix.Renameat(d.fd(), fileName, d.fd(), aside); err != nil {
		return "", fmt.Errorf("set registry aside: %w", deleted(err))
	}
	return d.path(aside), nil
}

// SetAside renames the registry's file if it is of another node, and returns the new path. The function other decides
// whether the file is of another node. The next change then begins with a Blank state. If the file is not of another
// node, SetAside returns "".
func (r *Registry) SetAside(ctx context.Context, other func(*State) bool) (path string, err error) {
	unlock, err := r.Lock(ctx, lockName)
	if err != nil {
		return "", err
	}
	defer unlock()
	d, err := r.enter(ctx)
	if err != nil {
		return "", err
	}
	defer d.leave()
	s, err := d.state()
	if err != nil || !other(s) {
		return "", err
	}
	return d.setAside("other")
}

func (d *directory) fd() int { return int(d.Fd()) }

func (d *directory) path(name string) string { return filepath.Join(d.Name(), name) }

// read parses the content of a file, and moves its times to the current clock.
func read(path string, b []byte, written time.Time, err error) (*State, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return blank(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read registry: %w", err)
	}
	s, err := parse(b, written)
	if err != nil {
		return nil, fmt.Errorf("read registry: %s: %w", path, err)
	}
	s.setClock(clocks())
	return s, nil
}

// IsGarbage reports whether the error means that the file was read but cannot be parsed.
func IsGarbage(err error) bool {
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return false
	}
	return err != nil && !errors.Is(err, ErrVersion)
}

// replace replaces the registry's file by a file with this data and this modification time.
func (d *directory) replace(written time.Time, data [][]byte) error {
	return deleted(atomicfile.Exchange(d.File, fileName, 0o600, written, data...))
}

// deleted returns errDeleted if err says that a file does not exist, and err otherwise.
func deleted(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errDeleted
	}
	return err
}
