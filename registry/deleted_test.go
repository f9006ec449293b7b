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
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestDirectoryDeleted updates the registry from many goroutines while the directory is deleted 300 times. Each
// deletion begins a new count. No reader sees half a file, and no update fails. No counted update is lost, or appears
// after its count has ended.
func TestDirectoryDeleted(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "registry-*") // no disk, as with /run
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	r, err := Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	const deletions, workers, perDeletion = 300, 8, 4
	var c counts
	var done atomic.Bool
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for !done.Load() && !t.Failed() {
				if err := c.countOn(r); err != nil {
					t.Error(err)
				}
				if _, err := r.View(); err != nil {
					t.Errorf("a reader sees: %v", err)
				}
			}
		})
	}
	for range deletions {
		for enough := c.kept.Load() + perDeletion; c.kept.Load() < enough && !t.Failed(); {
			if _, err := r.View(); err != nil {
				t.Errorf("a reader sees: %v", err)
			}
		}
		if bad, _ := filepath.Glob(r.filePath() + ".bad-*"); bad != nil {
			t.Errorf("set aside: %v", bad)
		}
		remove(t, r.dir)
	}
	done.Store(true)
	wg.Wait()
	leftovers(t, r)
	c.check(t)
}

// remove does the same as rm -rf. It may fail because another goroutine writes into the directory.
func remove(t *testing.T, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
}

// A counts has the counted updates, in the order in which they held the lock.
type counts struct {
	mu    sync.Mutex
	all   []*count
	kept  atomic.Int64
	begun int
}

// A count is the state after one update: the number in the registry, and the name of the count to which it belongs.
type count struct {
	of   string
	n    int
	kept bool
}

// countOn adds one to the number in the registry. If the registry has no number, countOn begins a new count.
func (c *counts) countOn(r *Registry) error {
	var mine *count
	err := r.Update(context.Background(), func(s *State) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.Instance.ID == "" {
			c.begun++
			s.Instance.ID = fmt.Sprint("count ", c.begun)
		}
		s.Instance.ENIs++
		runtime.Gosched() // lets the deletion run
		mine = &count{of: s.Instance.ID, n: s.Instance.ENIs}
		c.all = append(c.all, mine)
		return nil
	})
	if err == nil {
		mine.kept = true
		c.kept.Add(1)
	}
	return err
}

// check checks that the numbers of each count are complete, and that counts follow each other.
func (c *counts) check(t *testing.T) {
	t.Helper()
	var last count
	ended := map[string]bool{}
	total := 0
	for _, now := range c.all {
		if !now.kept {
			continue
		}
		total++
		switch {
		case now.of == last.of && now.n == last.n+1:
		case now.of != last.of && now.n == 1 && !ended[now.of]:
			ended[last.of] = true
		default:
			t.Errorf("after %d of %s was kept %d of %s", last.n, last.of, now.n, now.of)
		}
		last = *now
	}
	t.Logf("%d updates in %d counts; %d were begun again", total, len(ended), len(c.all)-total)
}

// TestLockDeleted deletes the file of a lock while a process waits for it. The waiter must
// not get the lock of the deleted file.
func TestLockDeleted(t *testing.T) {
	for _, name := range []string{"grow", "collect", "queue"} {
		r := open(t)
		first, err := r.Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		waiter := make(chan func(), 1)
		go func() {
			unlock, err := r.Lock(context.Background(), name)
			if err != nil {
				t.Error(err)
			}
			waiter <- unlock
		}()
		waits(t, r, name, waiter)
		remove(t, r.dir)
		second, err := r.Lock(t.Context(), name)
		if err != nil {
			t.Fatalf("%s after the directory was deleted: %v", name, err)
		}
		first() // the waiter has locked a deleted file, which no other process can find
		waits(t, r, name, waiter)
		second()
		if unlock := <-waiter; unlock != nil {
			unlock()
		}
	}
}

// waits returns when the goroutine waits in the kernel for the lock. If the goroutine gets the lock instead, the test
// fails.
func waits(t *testing.T, r *Registry, name string, has chan func()) {
	t.Helper()
	fi, err := os.Stat(filepath.Join(r.dir, name+".lock"))
	if err != nil {
		t.Fatal(err)
	}
	blocked := regexp.MustCompile(fmt.Sprintf(`(?m)^.*-> FLOCK .*:%d .*$`, fi.Sys().(*syscall.Stat_t).Ino))
	for {
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		if blocked.Match(locks) {
			return
		}
		if len(has) > 0 {
			t.Fatalf("two have the lock %s", name)
		}
		runtime.Gosched()
	}
}

// TestMarkDeleted: Mark must work after the registry's directory was deleted.
func TestMarkDeleted(t *testing.T) {
	r := open(t)
	remove(t, r.dir)
	if err := r.Mark("refill"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "refill")); err != nil {
		t.Error(err)
	}
}
