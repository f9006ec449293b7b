// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// errDeleted means that somebody has deleted the directory, or files in it, during an operation.
var errDeleted = errors.New("somebody keeps deleting the files of the registry")

// attempts is how often an operation begins again after somebody has deleted the directory.
const attempts = 100

// Lock takes the named lock of this node, and excludes every other process and goroutine. It waits in the kernel until
// ctx is done, so waiters get the lock at once and in turn. The kernel releases the lock when the process ends for any
// reason.
func (r *Registry) Lock(ctx context.Context, name string) (unlock func(), err error) {
	l, err := r.hold(ctx, name+".lock", unix.O_CREAT)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { release(l) }, nil
}

// release unlocks the file and closes it. To close it is not enough: a lock belongs to the open file, and a process
// that another goroutine has just forked has that file, too, until it executes its program (flock(2)).
func release(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}

// hold opens and locks the file with this name in the directory. A lock belongs to an inode. While we waited, somebody may have
// deleted the file, and the next process then creates and locks another one. So the locked file must still have the
// name; otherwise hold begins again.
func (r *Registry) hold(ctx context.Context, name string, flag int) (*os.File, error) {
	path := r.dir + "/" + name
	for range attempts {
		f, err := take(ctx, path, flag)
		if err == nil {
			return f, nil
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

// take opens and locks a file. It returns errDeleted if the locked file no longer has the name.
func take(ctx context.Context, path string, flag int) (*os.File, error) {
	f, err := openAt(unix.AT_FDCWD, path, os.O_RDONLY|flag)
	if err != nil {
		return nil, err
	}
	// Mostly nobody holds it, so no thread has to wait.
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		if err = wait(ctx, f); err != nil {
			return nil, err // wait closes it
		}
	}
	if err == nil {
		err = inPlace(f, path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openAt opens a file without the runtime's poller, which asks the kernel for each file whether it can be polled.
func openAt(dir int, path string, flag int) (*os.File, error) {
	fd, err := unix.Openat(dir, path, flag|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// inPlace returns errDeleted if the locked file no longer has the name.
func inPlace(f *os.File, path string) error {
	var locked, named unix.Stat_t
	if err := errors.Join(unix.Fstat(int(f.Fd()), &locked), unix.Stat(path, &named)); err != nil {
		return err
	}
	if locked.Dev != named.Dev || locked.Ino != named.Ino {
		return errDeleted
	}
	return nil
}

// wait locks the file in a goroutine, because ctx may be done first. If it fails, it closes the file.
func wait(ctx context.Context, f *os.File) error {
	done := make(chan error, 1)
	go func() {
		err := error(unix.EINTR)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			f.Close()
		}
		return err
	case <-ctx.Done():
		err := ctx.Err()
		if h, ok := holderOf(f.Name()); ok {
			err = fmt.Errorf("%v: %w", h, err)
		}
		go func() { <-done; f.Close() }()
		return err
	}
}
