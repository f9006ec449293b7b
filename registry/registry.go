// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package registry keeps what a node knows of its own addresses. It knows which addresses are leased to a pod, which
// are free and since when, and which ENIs have them.
//
// There is no daemon, so the registry is a file that many short processes share.
// [Registry.Update] holds an exclusive lock on the directory while it reads, changes and
// replaces the file. [Registry.View] needs no lock, because the file is replaced by rename:
// a reader sees the old file or the new one (see steady). The lock is held for work in memory and on
// tmpfs: half a millisecond, and with 1500 pods one more. Never hold it during a call to EC2, the metadata service
// or netlink; [Registry.Lock] has other locks for that.
//
// The registry is what we know; EC2 and the kernel are the state. The registry is on /run, so a reboot empties it. If
// an operator or another program deletes it, only time is lost: the next process learns from the kernel, metadata and
// EC2 again. A file that cannot be read is set aside, not trusted.
package registry

//go:generate go run ../internal/codec/gen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/atomicfile"
)

// ErrVersion means that a later release wrote the file.
var ErrVersion = errors.New("written by a later release")

// Dir is the directory of this node's registry: /run/cni-ipvlan-vpc-k8s, or
// $CNI_IPVLAN_VPC_STATE_DIR.
func Dir() string {
	if dir := os.Getenv("CNI_IPVLAN_VPC_STATE_DIR"); dir != "" {
		return dir
	}
	return "/run/cni-ipvlan-vpc-k8s"
}

// A Registry is a directory with the state of one node.
type Registry struct{ dir string }

// Open returns the registry in dir. It creates the directory if there is none, readable by
// its owner alone.
func Open(dir string) (*Registry, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	return &Registry{dir}, nil
}

// View returns the state. If an operator or a program has set the clock since the file was written, View corrects
// the times of the state by the difference. If there is no file yet, the state is Blank.
func (r *Registry) View() (*State, error) {
	b, written, err := steady(r.open)
	return read(r.file(), b, written, err)
}

// quick saves four system calls per file. Without it, package os makes each file non-blocking, finds that the kernel
// cannot poll it, and reverts that.
const quick = unix.O_NONBLOCK

// open opens the file for a process that does not hold the lock.
func (r *Registry) open() (*os.File, error) {
	f, err := os.OpenFile(r.file(), os.O_RDONLY|quick, 0)
	// it was replaced when it was half open, and a process writes into it: the next file is there
	if errors.Is(err, unix.EAGAIN) {
		f, err = os.OpenFile(r.file(), os.O_RDONLY, 0)
	}
	return f, err
}

// Update calls f with the state. Unless f fails, Update writes the state as f has changed it. A
// file that cannot be parsed is set aside, and f gets a Blank state. A file of a later release is
// left alone, and the error is ErrVersion.
//
// If another process deletes the directory meanwhile, nothing is written, and f is called again with
// the new state. So f must set its results, and not add to them.
func (r *Registry) Update(ctx context.Context, f func(*State) error) error {
	var err error
	for range attempts {
		if err = r.update(ctx, f); !errors.Is(err, errDeleted) {
			return err
		}
	}
	return fmt.Errorf("update registry in %s: %w", r.dir, err)
}

// update is one try of Update. It fails with errDeleted if another process deletes the directory meanwhile.
// It takes two locks. The lock "registry" excludes older releases, which lock nothing else. The
// directory's lock excludes all others.
func (r *Registry) update(ctx context.Context, f func(*State) error) error {
	unlock, err := r.Lock(ctx, lockName)
	if err != nil {
		return err
	}
	defer unlock()
	d, err := r.enter(ctx)
	if err != nil {
		return err
	}
	defer d.leave()
	s, err := d.state()
	if err != nil {
		return err
	}
	if err := f(s); err != nil {
		return err
	}
	log := s.prepareLog()
	now := time.Now()
	b, err := s.encode(now)
	if err == nil {
		err = d.replace(now, b)
	}
	if err != nil {
		log.drop()
		return fmt.Errorf("write registry: %w", err)
	}
	log.append()
	return nil
}

// Change is Update for a function that cannot fail.
func (r *Registry) Change(ctx context.Context, f func(*State)) error {
	return r.Update(ctx, func(s *State) error { f(s); return nil })
}

// Usable returns nil if a process can change the registry, and otherwise the reason. It waits for no lock, because a
// process that holds the lock may be slow without being broken. Usable leaves no file behind: it writes as much as a
// change would write, to a file without a name. A change writes into the file that the last change replaced, so it
// needs space only for what is larger.
func (r *Registry) Usable() error {
	size, err := r.legible()
	if err != nil {
		return err
	}
	lock, err := openAt(unix.AT_FDCWD, r.lockFile(lockName), os.O_CREATE|os.O_RDONLY)
	if err != nil {
		return fmt.Errorf("lock of the registry: %w", err)
	}
	lock.Close()
	f, err := openAt(unix.AT_FDCWD, r.dir, unix.O_TMPFILE|os.O_WRONLY)
	if errors.Is(err, unix.EOPNOTSUPP) { // some file systems have no such files
		err = unix.Access(r.dir, unix.W_OK|unix.X_OK)
	} else if err == nil {
		const lease = 1 << 10 // at most, nearly always
		if size += lease - atomicfile.Room(r.dir, fileName); size > 0 {
			_, err = f.Write(make([]byte, size))
		}
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("write to %s: %w", r.dir, err)
	}
	return nil
}

// legible returns the size of the file, or an error if no process of this release can read it. Of a file that begins as
// those of this release, it does not read the rest. If the rest is garbage, its size counts, too, although the next
// change sets it aside.
func (r *Registry) legible() (size int64, err error) {
	fd, openErr := unix.Open(r.file(), unix.O_RDONLY|unix.O_CLOEXEC|quick, 0) // View repeats what fails here
	if openErr == nil {
		defer unix.Close(fd)
		head := make([]byte, len(beginning))
		_, readErr := unix.Read(fd, head)
		if readErr == nil && string(head) == beginning {
			return unix.Seek(fd, 0, io.SeekEnd)
		}
	}
	s, err := r.View()
	if err != nil && !IsGarbage(err) {
		return 0, err
	}
	if s != nil {
		size = int64(s.size)
	}
	return size, nil
}

// Mark creates an empty file of that name in the registry's directory, for systemd. Only
// its existence counts (systemd.path(5), PathExists=).
func (r *Registry) Mark(name string) error {
	open := func() (*os.File, error) {
		return os.OpenFile(filepath.Join(r.dir, name), os.O_CREATE|os.O_WRONLY, 0o600)
	}
	f, err := open()
	if errors.Is(err, fs.ErrNotExist) { // the directory has been deleted
		err = os.MkdirAll(r.dir, 0o700)
		if err == nil {
			f, err = open()
		}
	}
	if err != nil {
		return fmt.Errorf("mark: %w", err)
	}
	return f.Close()
}

// Marked reports whether Mark's file exists. If stat(2) does not answer that, Marked reports true.
func (r *Registry) Marked(name string) bool {
	_, err := os.Stat(filepath.Join(r.dir, name))
	return !errors.Is(err, fs.ErrNotExist)
}

// lockName is the lock under which the registry is changed.
const lockName = "registry"

func (r *Registry) lockFile(name string) string { return filepath.Join(r.dir, name+".lock") }

func (r *Registry) file() string { return filepath.Join(r.dir, fileName) }
