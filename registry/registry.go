// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package registry keeps the registry of a node. The registry records which addresses are leased to pods, which
// addresses are free and since when, and which ENIs have the addresses.
//
// There is no daemon, so the registry is a file that many short processes share. [Registry.Update] holds an exclusive
// lock on the directory while it reads, changes and replaces the file. It replaces the file by rename(2), so
// [Registry.View] needs no lock (see readSteady). Update holds the lock for 0.5 ms, or for 1.5 ms on a node with 1500
// pods. Other processes wait for the lock. So the function that Update calls must not ask EC2 or metadata, which take
// longer. It asks netlink only in rare cases: to find the name of an unknown pod, or to remove objects that serve all
// pods. A process that asks EC2 can hold a lock of [Registry.Lock] instead.
//
// The registry is only a record: the true state is in EC2 and in the kernel. The registry is lost at each reboot, for
// example. The next process then rebuilds the registry, so only time is lost. If the file cannot be parsed, Update
// renames it.
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

// ErrVersion means that a later release has written the registry's file.
var ErrVersion = errors.New("written by a later release")

// Dir returns the directory of this node's registry: $CNI_IPVLAN_VPC_STATE_DIR, or by default /run/cni-ipvlan-vpc-k8s.
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

// View returns the state. If the wall clock was set since the last Update, View corrects the times in the state. If the
// registry has no file yet, View returns a Blank state.
func (r *Registry) View() (*State, error) {
	b, written, err := readSteady(r.openFile)
	return parseContent(r.filePath(), b, written, err)
}

// noPollFlag saves four system calls per file, with which package os would find out whether the kernel can poll the
// file.
const noPollFlag = unix.O_NONBLOCK

// openFile opens the registry's file for a process that does not hold the lock.
func (r *Registry) openFile() (*os.File, error) {
	f, err := os.OpenFile(r.filePath(), os.O_RDONLY|noPollFlag, 0)
	// EAGAIN means that another process has replaced the file during this open(2). The kernel has refused this open(2),
	// because a process has a write lease of fcntl(2) on the old file: see [atomicfile.Exchange]. A second open(2)
	// finds the new file.
	if errors.Is(err, unix.EAGAIN) {
		f, err = os.OpenFile(r.filePath(), os.O_RDONLY, 0)
	}
	return f, err
}

// Update calls f with the state. If f succeeds, Update writes the state. If the registry's file cannot be parsed,
// Update renames it, and calls f with a Blank state. If a later release has written the file, Update returns
// ErrVersion.
//
// If another process deletes the directory during the Update, Update calls f again with the new state. So f must
// overwrite results of an earlier call, and must not append to them.
func (r *Registry) Update(ctx context.Context, f func(*State) error) error {
	var err error
	for range maxAttempts {
		if err = r.tryUpdate(ctx, f); !errors.Is(err, errDeleted) {
			return err
		}
	}
	return fmt.Errorf("update registry in %s: %w", r.dir, err)
}

// tryUpdate makes one attempt of Update. If another process deletes the directory during the attempt, tryUpdate returns
// errDeleted.
func (r *Registry) tryUpdate(ctx context.Context, f func(*State) error) error {
	d, err := r.openDirectory(ctx)
	if err != nil {
		return err
	}
	defer d.unlockAndClose()
	s, err := d.loadState()
	if err != nil {
		return err
	}
	if err := f(s); err != nil {
		return err
	}
	log := s.prepareLog()
	now := time.Now()
	b, err := s.encodeFile(now)
	if err == nil {
		err = d.replaceFile(now, b)
	}
	if err != nil {
		log.closeFile()
		return fmt.Errorf("write registry: %w", err)
	}
	log.appendText()
	return nil
}

// Change does what Update does, but its function f returns no error.
func (r *Registry) Change(ctx context.Context, f func(*State)) error {
	return r.Update(ctx, func(s *State) error { f(s); return nil })
}

// Usable returns nil if processes can change the registry, and the reason as an error if they cannot. It does not wait
// for the lock, because a process that holds the lock for long may only be slow.
//
// To test the free space, Usable writes to a file without a name. It writes as many bytes as an Update needs. Each
// Update keeps the old file that it replaces (see [atomicfile.Exchange]). The next Update writes its content into the
// old file. So an Update needs new space only for the bytes that do not fit into the old file.
func (r *Registry) Usable() error {
	size, err := r.readableSize()
	if err != nil {
		return err
	}
	f, err := openAt(unix.AT_FDCWD, r.dir, unix.O_TMPFILE|os.O_WRONLY)
	if errors.Is(err, unix.EOPNOTSUPP) { // the file system does not support files without a name
		err = unix.Access(r.dir, unix.W_OK|unix.X_OK)
	} else if err == nil {
		const lease = 1 << 10 // bytes: nearly all new leases need less
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

// readableSize returns the size of the registry's file, or an error if processes of this release cannot use the file. A
// file that cannot be parsed is no error, because the next Update renames it. If the file begins with fileBeginning,
// readableSize does not read the rest.
func (r *Registry) readableSize() (size int64, err error) {
	// if this open(2) or the read(2) below fails, View returns the error
	fd, openErr := unix.Open(r.filePath(), unix.O_RDONLY|unix.O_CLOEXEC|noPollFlag, 0)
	if openErr == nil {
		defer unix.Close(fd)
		head := make([]byte, len(fileBeginning))
		_, readErr := unix.Read(fd, head)
		if readErr == nil && string(head) == fileBeginning {
			return unix.Seek(fd, 0, io.SeekEnd)
		}
	}
	s, err := r.View()
	if err != nil && !IsGarbage(err) {
		return 0, err
	}
	if s != nil {
		size = int64(s.fileSize)
	}
	return size, nil
}

// Mark creates an empty file with this name in the registry's directory. A path unit of systemd waits until this file
// exists (systemd.path(5), PathExists=).
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

// Marked reports whether Mark has created the file with this name. If stat(2) fails with any other error than "no such
// file", Marked also returns true.
func (r *Registry) Marked(name string) bool {
	_, err := os.Stat(filepath.Join(r.dir, name))
	return !errors.Is(err, fs.ErrNotExist)
}

func (r *Registry) filePath() string { return filepath.Join(r.dir, fileName) }
