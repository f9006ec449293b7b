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

// errDeleted means that another process has deleted the registry's directory, or files in this directory, while this
// process used them.
var errDeleted = errors.New("another program keeps deleting the files of the registry")

// maxAttempts is the maximum number of attempts of an operation while other processes delete the directory again and
// again.
const maxAttempts = 100

// Lock takes the lock with this name. Only one process or goroutine of the node can hold the lock at a time. If another
// process holds the lock, Lock waits until it gets the lock or until ctx is done. It waits in the kernel, which gives
// the lock to the waiters in turn and without a delay. When a process that holds the lock ends for any reason, the
// kernel releases the lock.
func (r *Registry) Lock(ctx context.Context, name string) (unlock func(), err error) {
	l, err := r.lockNamed(ctx, name+".lock", unix.O_CREAT)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { l.Unlock() }, nil
}

// lockNamed opens and locks the file with this name in the registry's directory. The kernel locks an inode, not a name.
// If other processes have meanwhile deleted the file and created a new one, lockNamed begins again.
func (r *Registry) lockNamed(ctx context.Context, name string, flag int) (*flock.Flock, error) {
	path := r.dir + "/" + name
	for range maxAttempts {
		l, err := openAndLock(ctx, path, flag)
		if err == nil {
			return l, nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = os.MkdirAll(r.dir, 0o700)
		}
		// Also try again after ErrExist: MkdirAll returns ErrExist if other processes create and delete the directory
		// at the same time.
		if err != nil && !errors.Is(err, errDeleted) && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return nil, errDeleted
}

// openAndLock opens and locks the file with this path. If the path no longer names the locked file, openAndLock returns
// errDeleted.
func openAndLock(ctx context.Context, path string, flag int) (*flock.Flock, error) {
	l := flock.New(path, flock.SetFlag(os.O_RDONLY|flag), flock.SetPermissions(0o600))
	// Usually no other process holds the lock. Then TryLock succeeds, and no thread has to wait.
	if got, err := l.TryLock(); err != nil {
		return nil, err
	} else if !got {
		if err := waitForLock(ctx, l); err != nil {
			return nil, err
		}
	}
	named, err := os.Stat(path)
	if err == nil {
		err = checkSameFile(l, named)
	}
	if err != nil {
		l.Unlock()
		return nil, err
	}
	return l, nil
}

// checkSameFile returns errDeleted if the lock l is not on the given file.
func checkSameFile(l *flock.Flock, file fs.FileInfo) error {
	locked, err := l.Stat()
	if err == nil && !os.SameFile(locked, file) {
		err = errDeleted
	}
	return err
}

// openAt opens a file as openat(2) does. os.OpenFile would need more system calls, to find out whether the kernel can
// poll the file.
func openAt(dir int, path string, flag int) (*os.File, error) {
	fd, err := unix.Openat(dir, path, flag|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// waitForLock locks the file in a goroutine, because ctx may be done before the kernel gives the lock. The library's
// TryLockContext tries again at intervals, so waiters would get the lock late, and not in turn.
func waitForLock(ctx context.Context, l *flock.Flock) error {
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
		if h, ok := lockHolder(l.Path()); ok {
			err = fmt.Errorf("%v: %w", h, err)
		}
		go func() { <-done; l.Unlock() }()
		return err
	}
}
