// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
)

// errDeleted means that another process has deleted the registry's directory, or files in it, during an operation.
var errDeleted = errors.New("another program keeps deleting the files of the registry")

// attempts is the maximum number of tries of an operation, if other processes delete the directory again and again.
const attempts = 100

// Lock takes the named lock of this node, and excludes every other process and goroutine. Lock waits in the kernel
// until ctx is done, so waiters get the lock at once and in turn. The kernel releases the lock when the process ends
// for any reason.
func (r *Registry) Lock(ctx context.Context, name string) (unlock func(), err error) {
	l, err := r.hold(ctx, name+".lock", unix.O_CREAT)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { l.Unlock() }, nil
}

// hold opens and locks the file with this name in the registry's directory. A lock belongs to an inode. While this
// process waits, another process may delete the file, and a third process may create and lock a new file. So hold
// checks that the locked file still has the name; otherwise hold begins again.
func (r *Registry) hold(ctx context.Context, name string, flag int) (*flock.Flock, error) {
	path := r.dir + "/" + name
	for range attempts {
		l, err := take(ctx, path, flag)
		if err == nil {
			return l, nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = os.MkdirAll(r.dir, 0o700)
		}
		// MkdirAll returns ErrExist if other processes create and delete the directory meanwhile.
		if err != nil && !errors.Is(err, errDeleted) && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return nil, errDeleted
}

// take opens and locks a file. It returns errDeleted if the path no longer leads to the locked file.
func take(ctx context.Context, path string, flag int) (*flock.Flock, error) {
	l := flock.New(path, flock.SetFlag(os.O_RDONLY|flag), flock.SetPermissions(0o600))
	// Usually no other process holds the lock, so no thread has to wait.
	if got, err := l.TryLock(); err != nil {
		return nil, err
	} else if !got {
		if err := wait(ctx, l); err != nil {
			return nil, err
		}
	}
	named, err := os.Stat(path)
	if err == nil {
		err = isOf(l, named)
	}
	if err != nil {
		l.Unlock()
		return nil, err
	}
	return l, nil
}

// isOf returns errDeleted if the lock is not on this file.
func isOf(l *flock.Flock, file fs.FileInfo) error {
	locked, err := l.Stat()
	if err == nil && !os.SameFile(locked, file) {
		err = errDeleted
	}
	return err
}

// openAt opens a file without os.OpenFile, which would ask the kernel for each file whether it can be polled.
func openAt(dir int, path string, flag int) (*os.File, error) {
	fd, err := unix.Openat(dir, path, flag|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// wait locks the file in a goroutine, because ctx may be done first. The library's TryLockContext tries again and again
// instead, so its waiters get the lock late, and not in turn.
func wait(ctx context.Context, l *flock.Flock) error {
	done := make(chan error, 1)
	go func() {
		err := l.Lock()
		for errors.Is(err, unix.EINTR) {
			err = l.Lock()
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		err := ctx.Err()
		if h, ok := holderOf(l.Path()); ok {
			err = fmt.Errorf("%v: %w", h, err)
		}
		go func() { <-done; l.Unlock() }()
		return err
	}
}
