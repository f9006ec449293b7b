// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package registry keeps the registry of a node. The registry records which addresses are leased to a pod, which
// addresses are free and since when, and which ENIs have them.
//
// There is no daemon, so the registry is a file that many short processes share. [Registry.Update] holds an exclusive
// lock on the directory while it reads, changes and replaces the file. Update replaces the file by rename, so
// [Registry.View] needs no lock: a reader sees the old file or the new file (see steady). Update holds the lock only
// for work in memory and on tmpfs. This work takes half a millisecond, and one millisecond more with 1500 pods. Never
// hold the lock during a call to EC2, the metadata service or netlink: [Registry.Lock] has other locks for such calls.
//
// The registry is only a record: the true state is in EC2 and in the kernel. The registry is on /run, so a reboot
// empties it. If an operator or another program deletes the registry, only time is lost. The next process asks the
// kernel, metadata and EC2, and builds the registry again. If a file cannot be parsed, Update renames the file and does
// not use it.
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

// Open returns the registry in dir. If there is no directory, Open creates one that only its owner can read.
func Open(dir string) (*Registry, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	return &Registry{dir}, nil
}

// View returns the state. If an operator or a program has set the clock since the last change of the file, View
// corrects the state's times by the difference. If there is no file yet, the state is Blank.
func (r *Registry) View() (*State, error) {
	b, written, err := steady(r.open)
	return read(r.file(), b, written, err)
}

// quick saves four system calls per file. Without quick, package os makes each file non-blocking, finds that the kernel
// cannot poll the file, and makes the file blocking again.
const quick = unix.O_NONBLOCK

// open opens the file for a process that does not hold the lock.
func (r *Registry) open() (*os.File, error) {
	f, err := os.OpenFile(r.file(), os.O_RDONLY|quick, 0)
	// another process has replaced the file during this open, and a process now writes into the old file: the new file
	// is already there
	if errors.Is(err, unix.EAGAIN) {
		f, err = os.OpenFile(r.file(), os.O_RDONLY, 0)
	}
	return f, err
}

// Update calls f with the state. If f succeeds, Update writes the state that f has changed. If the file cannot be
// parsed, Update renames it, and f gets a Blank state. If a later release wrote the file, Update does not change it,
// and returns ErrVersion.
//
// If another process deletes the directory meanwhile, Update writes nothing, and calls f again with the new state. So f
// must set its results, and not add to them.
func (r *Registry) Update(ctx context.Context, f func(*State) error) error {
	var err error
	for range attempts {
		if err = r.update(ctx, f); !errors.Is(err, errDeleted) {
			return err
		}
	}
	return fmt.Errorf("update registry in %s: %w", r.dir, err)
}

// update is one try of Update. If another process deletes the directory meanwhile, update returns errDeleted. It takes
// two locks. The lock "registry" excludes processes of older releases, which take no other lock. The directory's lock
// excludes all other processes.
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
// change would write, to a file without a name. A change writes into the file that the last change replaced, so a
// change needs space only for the additional bytes.
func (r *Registry) Usable() error {
	size, err := r.legible()
	if err != nil {
		return err
	}
	lock, err := openAt(unix.AT_FDCWD, r.lockFile(lockName), os.O_CREATE|os.O_RDONLY)
	if err != nil {
		return fmt.Errorf("lock the registry: %w", err)
	}
	lock.Close()
	f, err := openAt(unix.AT_FDCWD, r.dir, unix.O_TMPFILE|os.O_WRONLY)
	if errors.Is(err, unix.EOPNOTSUPP) { // some file systems cannot make a file without a name
		err = unix.Access(r.dir, unix.W_OK|unix.X_OK)
	} else if err == nil {
		const lease = 1 << 10 // bytes: the maximum of nearly all new leases
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

// legible returns the size of the file, or an error if no process of this release can read the file. If the file begins
// like a file of this release, legible does not read the rest. If the rest is garbage, legible still returns the size,
// although the next change will rename the file.
func (r *Registry) legible() (size int64, err error) {
	fd, openErr := unix.Open(r.file(), unix.O_RDONLY|unix.O_CLOEXEC|quick, 0) // after an error, View tries again
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

// Mark creates an empty file with this name in the registry's directory, for systemd. Only the existence of the file
// counts (systemd.path(5), PathExists=).
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
		return fmt.Errorf("write a mark for systemd: %w", err)
	}
	return f.Close()
}

// Marked reports whether Mark's file exists. If stat(2) fails for another reason, Marked returns true.
func (r *Registry) Marked(name string) bool {
	_, err := os.Stat(filepath.Join(r.dir, name))
	return !errors.Is(err, fs.ErrNotExist)
}

// lockName is the lock under which a process changes the registry.
const lockName = "registry"

func (r *Registry) lockFile(name string) string { return filepath.Join(r.dir, name+".lock") }

func (r *Registry) file() string { return filepath.Join(r.dir, fileName) }
