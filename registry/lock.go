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

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
)

// errDeleted means that somebody has deleted the directory, or files in it, during an operation.
var errDeleted = errors.New("somebody keeps deleting the files of the registry")

// quick saves four system calls per file. Without it, package os makes each file non-blocking, finds that the kernel
// cannot poll it, and reverts that.
const quick = unix.O_NONBLOCK

// attempts is how often an operation begins again after somebody has deleted the directory.
const attempts = 100

// Lock takes the named lock of this node, and excludes every other process and goroutine. It waits in the kernel until
// ctx is done, so waiters get the lock at once and in turn. The kernel releases the lock when the process ends for any
// reason.
func (r *Registry) Lock(ctx context.Context, name string) (unlock func(), err error) {
	l, err := r.hold(ctx, name+".lock", os.O_CREATE, os.Stat)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { l.Close() }, nil
}

// hold locks the file with this name in the directory. A lock belongs to an inode. While we waited, somebody may have
// deleted the file, and the next process then creates and locks another one. So the locked file must still have the
// name, as stat reports; otherwise hold begins again.
func (r *Registry) hold(ctx context.Context, name string, flag int, stat func(string) (fs.FileInfo, error)) (*flock.Flock, error) {
	path := filepath.Join(r.dir, name)
	for range attempts {
		// Each caller needs its own Flock, because a Flock does not exclude other goroutines.
		l := flock.New(path, flock.SetFlag(os.O_RDONLY|flag|quick), flock.SetPermissions(0o600))
		err := take(ctx, l)
		if err == nil {
			if err = inPlace(l, stat, path); err == nil {
				return l, nil
			}
			l.Close()
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = os.MkdirAll(r.dir, 0o700)
		}
		// With ErrExist, MkdirAll has seen that others create and delete the directory.
		if err != nil && !errors.Is(err, errDeleted) && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return nil, errDeleted
}

// inPlace returns errDeleted if the locked file no longer has the name.
func inPlace(l *flock.Flock, stat func(string) (fs.FileInfo, error), path string) error {
	locked, err := l.Stat()
	if err != nil {
		return err
	}
	named, err := stat(path)
	if err == nil && !os.SameFile(locked, named) {
		err = errDeleted
	}
	return err
}

// take locks l as soon as nobody else holds it, or returns when ctx is done.
func take(ctx context.Context, l *flock.Flock) error {
	free, err := l.TryLock() // mostly nobody holds it, so no thread has to wait
	if err == nil && !free {
		err = wait(ctx, l)
	}
	return err
}

// wait waits for l in a goroutine, because ctx may be done first.
func wait(ctx context.Context, l *flock.Flock) error {
	done := make(chan error, 1)
	go func() { done <- l.Lock() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		go func() { <-done; l.Close() }()
		return ctx.Err()
	}
}
