// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// withLog returns a registry with n free addresses. The directory of its lease log does not exist yet.
func withLog(t *testing.T, n int) (r *Registry, file string) {
	t.Helper()
	r, file = open(t), filepath.Join(t.TempDir(), "log", "leases.log")
	update(t, r, func(s *State) {
		fill(s, n)
		s.Instance.ID = "i-1"
		s.UseLog("net", LeaseLog{File: file, MaxSize: 1, MaxFiles: 3})
	})
	return r, file
}

// logged returns the lines of a log. Each line is shown as its event and the last byte of the address.
func logged(t *testing.T, file string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for text := range bytes.Lines(text) {
		var l Line
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		line := l.Event
		if l.Address.IsValid() {
			line += " " + l.Address.String() + " " + l.Container
		}
		lines = append(lines, line)
	}
	return lines
}

func wantLog(t *testing.T, file string, want ...string) {
	t.Helper()
	if got := logged(t, file); !slices.Equal(got, want) {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func leaseTo(t *testing.T, r *Registry, address, id string) {
	t.Helper()
	update(t, r, func(s *State) {
		if err := s.Reserve(addr(address), lease(id)); err != nil {
			t.Error(err)
		}
	})
}

func end(t *testing.T, r *Registry, id string) {
	t.Helper()
	update(t, r, func(s *State) { s.EndOf(key(id), time.Now(), time.Time{}) })
}

func TestLeaseLog(t *testing.T) {
	r, file := withLog(t, 4)
	leaseTo(t, r, "10.0.0.10", "a")
	leaseTo(t, r, "10.0.0.10", "a") // the same ADD again
	leaseTo(t, r, "10.0.0.11", "b")
	end(t, r, "a")
	end(t, r, "a")
	update(t, r, func(s *State) {
		s.Found(addr("10.0.0.11"), Lease{NetNS: "/run/netns/x", ENI: "eni-1", Since: time.Now()})
	})
	all := []string{"snapshot", "begin 10.0.0.10 a", "begin 10.0.0.11 b", "end 10.0.0.10 a", "end 10.0.0.11 b",
		"begin 10.0.0.11 "}
	wantLog(t, file, all...)
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm()&^0o640 != 0 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}

	// Another network cannot switch the log off. The network that began the log can.
	update(t, r, func(s *State) { s.UseLog("other", LeaseLog{}) })
	leaseTo(t, r, "10.0.0.12", "c")
	update(t, r, func(s *State) { s.UseLog("net", LeaseLog{}) })
	leaseTo(t, r, "10.0.0.13", "d")
	wantLog(t, file, append(all, "begin 10.0.0.12 c", "off")...)
	s, err := r.View()
	if err != nil || s.Log != (Logging{}) || len(s.LogLines) > 0 {
		t.Errorf("%+v %v, %v", s.Log, s.LogLines, err)
	}
}

// TestLeaseLogOfGoneNetwork: the configuration no longer has the network that began the log. Another network with the
// same log must be able to switch it off.
func TestLeaseLogOfGoneNetwork(t *testing.T) {
	r, file := withLog(t, 1)
	leaseTo(t, r, "10.0.0.10", "a")
	update(t, r, func(s *State) { s.UseLog("other", s.Log.LeaseLog) })
	update(t, r, func(s *State) { s.UseLog("other", LeaseLog{}) })
	wantLog(t, file, "snapshot", "begin 10.0.0.10 a", "off")
}

// TestLeaseLogAfterKill: if a change is killed before it has appended all of its lines, the next change or collection
// appends them.
func TestLeaseLogAfterKill(t *testing.T) {
	for _, next := range []string{"change", "collection"} {
		for cut := 0; cut < 3; cut++ {
			r, file := withLog(t, 3)
			leaseTo(t, r, "10.0.0.10", "a")
			size := len(read1(t, file))
			end(t, r, "a")
			if err := os.Truncate(file, int64(size+cut*10)); err != nil {
				t.Fatal(err)
			}
			want := []string{"snapshot", "begin 10.0.0.10 a"}
			if next == "change" {
				leaseTo(t, r, "10.0.0.11", "b")
				want = append(want, "end 10.0.0.10 a", "snapshot", "held 10.0.0.11 b", "begin 10.0.0.11 b")
			} else {
				update(t, r, (*State).CheckLog)
				want = append(want, "end 10.0.0.10 a", "snapshot")
			}
			text := read1(t, file)
			if broken := text[size : size+cut*10]; cut > 0 { // the beginning of a line stays, as a line of its own
				text = slices.Concat(text[:size], text[size+len(broken)+1:])
				if err := os.WriteFile(file, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			wantLog(t, file, want...)
		}
	}
}

func read1(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestLeaseLogFullDisk: on a full disk, the log can be opened but not written. Its lines wait in the registry until
// there is room again.
func TestLeaseLogFullDisk(t *testing.T) {
	nltest.Need(t, "root")
	r, file := withLog(t, 4)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	disk, others := filepath.Dir(file), filepath.Join(filepath.Dir(file), "others")
	must(unix.Mount("tmpfs", disk, "tmpfs", 0, "size=256k"))
	defer func() { must(unix.Unmount(disk, unix.MNT_DETACH)) }()
	must(os.WriteFile(others, make([]byte, 256<<10), 0o600))
	for range maxUnwritten {
		leaseTo(t, r, "10.0.0.10", "a")
		end(t, r, "a")
	}
	s, err := r.View()
	must(err)
	if n := len(s.LogLines); n < maxUnwritten || n > maxUnwritten+1 {
		t.Errorf("%d lines wait, want %d and those of the last change", n, maxUnwritten)
	}
	must(os.Remove(others))
	leaseTo(t, r, "10.0.0.10", "b")
	if got := logged(t, file); len(got) < maxUnwritten || got[len(got)-1] != "begin 10.0.0.10 b" {
		t.Errorf("%d lines, the last ones %v", len(got), got[max(0, len(got)-3):])
	}
}

// TestLeaseLogFewerFiles: when MaxFiles becomes smaller, the next rotation deletes the files beyond this number.
func TestLeaseLogFewerFiles(t *testing.T) {
	r, file := withLog(t, 2)
	rotate := func(files int) {
		update(t, r, func(s *State) { s.UseLog("net", LeaseLog{File: file, MaxSize: 1, MaxFiles: files}) })
		l := lease("a")
		l.PodName = strings.Repeat("x", 100<<10)
		for range 60 {
			update(t, r, func(s *State) { s.Reserve(addr("10.0.0.11"), l) })
			end(t, r, "a")
		}
		if all, _ := filepath.Glob(file + "*"); len(all) != files {
			t.Errorf("maxFiles is %d, and there are %v", files, all)
		}
	}
	for _, files := range []int{5, 2, 1} {
		rotate(files)
	}
}

// TestLeaseLogUnwritable: a log that cannot be written must stop no change. Its lines are written later.
func TestLeaseLogUnwritable(t *testing.T) {
	r, file := withLog(t, 300)
	leaseTo(t, r, "10.0.0.10", "a")
	spoil := map[string]func() error{
		"directory": func() error { return os.Mkdir(file, 0o700) },
		"pipe":      func() error { return unix.Mkfifo(file, 0o600) }, // a pipe has a slow reader
		"symlink":   func() error { return os.Symlink("/dev/full", file) },
		"no directory": func() error {
			return os.WriteFile(filepath.Dir(file), nil, 0o600)
		},
	}
	for name, f := range spoil {
		for _, most := range []int{1, maxUnwritten + 20} {
			n := most
			if err := os.RemoveAll(filepath.Dir(file)); err != nil {
				t.Fatal(err)
			}
			if name != "no directory" {
				os.Mkdir(filepath.Dir(file), 0o700)
			}
			if err := f(); err != nil {
				t.Fatal(err)
			}
			end(t, r, "a")
			for a := addr("10.0.0.11"); n > 1; a, n = a.Next(), n-1 {
				leaseTo(t, r, a.String(), "many")
			}
			if err := os.RemoveAll(filepath.Dir(file)); err != nil {
				t.Fatal(err)
			}
			leaseTo(t, r, "10.0.0.10", "a")
			got := logged(t, file)
			if !slices.Contains(got, "begin 10.0.0.10 a") || most == 1 && !slices.Contains(got, "end 10.0.0.10 a") ||
				!slices.Contains(got, "snapshot") {
				t.Errorf("%s: %d: %v", name, most, got)
			}
			end(t, r, "many")
			s, err := r.View()
			if err != nil || len(s.LogLines) > maxUnwritten+20 {
				t.Errorf("%s: %d lines wait, %v", name, len(s.LogLines), err)
			}
		}
	}
}

// TestLeaseLogRotation checks that the size of the log is limited, and that each of its files begins with all leases.
func TestLeaseLogRotation(t *testing.T) {
	r, file := withLog(t, 2)
	long := strings.Repeat("x", 100<<10)
	for i := range 60 {
		leaseTo(t, r, "10.0.0.10", "stays")
		l := lease("a")
		l.PodName = long
		update(t, r, func(s *State) { s.Reserve(addr("10.0.0.11"), l) })
		if i == 20 { // as if the process was killed between two renames
			if err := os.Rename(file+".1", file+".2"); err != nil {
				t.Fatal(err)
			}
		}
		end(t, r, "a")
	}
	files, err := filepath.Glob(file + "*")
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if lines := logged(t, f); lines[0] != "snapshot" || lines[1] != "held 10.0.0.10 stays" {
			t.Errorf("%s begins with %v", f, lines[:2])
		}
		if n := len(read1(t, f)); n > 1<<20 || n < 700<<10 && f != file {
			t.Errorf("%s has %d bytes", f, n)
		}
	}
}

// TestLeaseLogProcesses: several processes change the registry at once. Each line must be written whole, and once.
func TestLeaseLogProcesses(t *testing.T) {
	const n = 20
	r, file := withLog(t, n)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var children []*exec.Cmd
	for range n {
		c := exec.Command(exe)
		c.Env = append(os.Environ(), child+"="+r.dir)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		children = append(children, c)
	}
	for _, c := range children {
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
	got := logged(t, file)
	slices.Sort(got)
	if got = slices.Compact(got); len(got) != n+1 {
		t.Errorf("%d lines: %v", len(got), got)
	}
}

// TestLeaseLogTaken: another program rotates, truncates or removes the log. The next change writes a snapshot of the
// leases into the log.
func TestLeaseLogTaken(t *testing.T) {
	for name, f := range map[string]func(file string) error{
		"renamed":   func(file string) error { return os.Rename(file, file+"-20261124") },
		"truncated": func(file string) error { return os.Truncate(file, 0) },
		"removed":   os.Remove,
	} {
		r, file := withLog(t, 3)
		leaseTo(t, r, "10.0.0.10", "a")
		if err := f(file); err != nil {
			t.Fatal(err)
		}
		end(t, r, "a")
		if got := logged(t, file); !slices.Contains(got, "snapshot") || got[len(got)-1] != "end 10.0.0.10 a" {
			t.Errorf("%s: %v", name, got)
		}
	}
}
