// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package registry keeps what a node knows of its own addresses: which are
// leased to a pod, which are free and since when, and which ENIs carry them.
//
// There is no daemon, so the registry is a file that many short processes share.
// [Registry.Update] holds an exclusive lock while it reads, changes and replaces
// the file; [Registry.View] needs none, because the file is replaced by rename: a
// reader sees it before a change or after. The lock is for memory and tmpfs, about
// half a millisecond. It must never be held across a call to EC2, the metadata
// service or netlink; [Registry.Lock] has other locks for that.
//
// The registry is knowledge, not truth: EC2 and the kernel are the state. It lives
// on /run, so a reboot empties it, and whoever deletes it loses nothing but the
// time it takes to look again. A file that cannot be read is set aside, not trusted.
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

// Open returns the registry in dir, which it makes if it must, readable by its
// owner alone.
func Open(dir string) (*Registry, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	return &Registry{dir}, nil
}

// View returns the state. If there is no file yet, it is Blank.
func (r *Registry) View() (*State, error) {
	b, err := os.ReadFile(r.file())
	if errors.Is(err, fs.ErrNotExist) {
		return newState(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read registry: %w", err)
	}
	s, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("read registry: %s: %w", r.file(), err)
	}
	return s, nil
}

// Update calls f with the state, and keeps what f makes of it unless f fails. A
// file that cannot be parsed is set aside, and f gets a Blank state; one of a
// later release is left alone, and the error is ErrVersion.
func (r *Registry) Update(ctx context.Context, f func(*State) error) error {
	unlock, err := r.Lock(ctx, "registry")
	if err != nil {
		return err
	}
	defer unlock()
	s, err := r.View()
	if isGarbage(err) {
		s, err = newState(), r.setAside(err)
	}
	if err != nil {
		return err
	}
	if err := f(s); err != nil {
		return err
	}
	b, err := s.encode()
	if err != nil {
		return fmt.Errorf("write registry: %w", err)
	}
	if err := replace(r.file(), b); err != nil {
		return fmt.Errorf("write registry: %w", err)
	}
	return nil
}

// Change is Update for a function that cannot fail.
func (r *Registry) Change(ctx context.Context, f func(*State)) error {
	return r.Update(ctx, func(s *State) error { f(s); return nil })
}

// Lock takes the named lock of this node, from every other process and every other
// goroutine. It waits in the kernel, so waiters are served at once and in turn, until
// ctx is done. The kernel releases the lock when the process ends, however it ends.
func (r *Registry) Lock(ctx context.Context, name string) (unlock func(), err error) {
	// A lock of its own for each caller: a Flock is no lock between goroutines.
	l := flock.New(filepath.Join(r.dir, name+".lock"), flock.SetPermissions(0o600))
	free, err := l.TryLock() // as it is mostly, without a thread to wait in
	if err == nil && !free {
		err = wait(ctx, l)
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { l.Close() }, nil
}

// wait locks l when nobody else has it any more, unless ctx is done before.
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

// Mark makes an empty file of that name in the registry's directory, for systemd to
// see: that there is one is all it says (systemd.path(5), PathExists=).
func (r *Registry) Mark(name string) error {
	f, err := os.OpenFile(filepath.Join(r.dir, name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("mark: %w", err)
	}
	return f.Close()
}

func (r *Registry) file() string { return filepath.Join(r.dir, "registry.json") }

// isGarbage tells a file that nobody can make sense of from one that cannot be read.
func isGarbage(err error) bool {
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return false
	}
	return err != nil && !errors.Is(err, ErrVersion)
}

// setAside renames the file for people to look at.
func (r *Registry) setAside(why error) error {
	bad := r.file() + ".bad-" + time.Now().UTC().Format("20060102T150405.000000000")
	if err := os.Rename(r.file(), bad); err != nil {
		return fmt.Errorf("set registry aside: %w", err)
	}
	slog.Warn("registry set aside, and begun again", "file", bad, "because", why)
	return nil
}

// replace puts data at path, whole or not at all. The lock is on another file: a
// lock on this one would stay with the inode that the rename takes away. The lock also
// lets the new file always have the same name, so that what a killed process has left
// there is overwritten by the next one, and does not stay on a tmpfs for ever.
func replace(path string, data []byte) (err error) {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
