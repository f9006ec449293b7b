// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

// child is an environment variable with the path of a registry's directory. If it is set, the test binary takes an
// address of this registry.
const child = "REGISTRY_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(child); dir != "" {
		exit(takeOne(dir))
	}
	if dir, ok := os.LookupEnv(changer); ok {
		exit(change(dir))
	}
	if dir := os.Getenv(counting); dir != "" {
		for range countsEach {
			Count(dir, "ADD", OK, time.Millisecond)
		}
		exit(nil)
	}
	os.Exit(m.Run())
}

// exit ends the process, with status 1 if err is not nil.
func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// takeOne leases an address and prints it.
func takeOne(dir string) error {
	r, err := Open(dir)
	if err != nil {
		return err
	}
	return r.Update(context.Background(), func(s *State) error {
		for a := range s.Free.Keys() {
			fmt.Print(a)
			return s.Reserve(a, lease(fmt.Sprint(os.Getpid())))
		}
		return errors.New("none free")
	})
}

func key(id string) Key        { return Key{"net", Attachment{ContainerID: id, IfName: "eth0"}} }
func lease(id string) Lease    { return Lease{Key: key(id), ENI: "eni-1", Since: time.Now()} }
func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// fill gives the state n free addresses on eni-1, and returns the first.
func fill(s *State, n int) netip.Addr {
	first := addr("10.0.0.10")
	e := ENI{MAC: "06:00:00:00:00:01", Index: 1, Subnet: "subnet-1", CIDR: netip.MustParsePrefix("10.0.0.0/20"),
		VPC: "vpc-1"}
	for a := first; len(e.Addrs) < n; a = a.Next() {
		s.Free.Set(a, time.Time{})
		e.Addrs = append(e.Addrs, a)
	}
	s.ENIs["eni-1"] = e
	return first
}

func open(t testing.TB) *Registry {
	t.Helper()
	r, err := Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func update(t testing.TB, r *Registry, f func(*State)) {
	t.Helper()
	if err := r.Update(t.Context(), func(s *State) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

func view(t testing.TB, r *Registry) *State {
	t.Helper()
	s, err := r.View()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestProcesses: 40 processes take an address each, at the same time. No two processes may take the same address.
func TestProcesses(t *testing.T) {
	r := open(t)
	const n = 40
	update(t, r, func(s *State) { fill(s, n) })
	var mu sync.Mutex
	got := map[string]bool{}
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), child+"="+r.dir)
			out, err := cmd.Output()
			mu.Lock()
			defer mu.Unlock()
			if err != nil || got[string(out)] {
				t.Errorf("%q: %v", out, err)
			}
			got[string(out)] = true
		})
	}
	wg.Wait()
	if s := view(t, r); len(got) != n || s.Leases.Len() != n || s.Free.Len() != 0 {
		t.Errorf("%d addresses printed, %d leased, %d free; want %d, %d, 0", len(got), s.Leases.Len(),
			s.Free.Len(), n, n)
	}
	leftovers(t, r)
}

// TestKilledWriters kills writers at any moment. A reader must never see half a file.
func TestKilledWriters(t *testing.T) {
	r := open(t)
	update(t, r, func(s *State) { fill(s, 200) })
	for i := range 60 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), child+"="+r.dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Duration(i)*100*time.Microsecond, func() { cmd.Process.Kill() })
		cmd.Wait()
		timer.Stop()
		s := view(t, r)
		if got := s.Free.Len() + s.Leases.Len(); got != 200 {
			t.Fatalf("after kill %d: %d addresses, want 200", i, got)
		}
	}
	update(t, r, func(*State) {}) // a killed process does not keep the lock
}

// TestViewWhileWritten: a process opens the file while another process has the write lease on it (F_SETLEASE). View
// must wait, and return no error.
func TestViewWhileWritten(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "registry-*") // a file system with leases
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	r := &Registry{dir}
	update(t, r, func(s *State) { fill(s, 2) })
	f, err := os.OpenFile(r.filePath(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	lease := func(cmd, arg int) int {
		now, err := unix.FcntlInt(f.Fd(), cmd, arg)
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	lease(unix.F_SETLEASE, unix.F_WRLCK)
	seen := make(chan error, 1)
	go func() { _, err := r.View(); seen <- err }()
	for lease(unix.F_GETLEASE, 0) == unix.F_WRLCK && len(seen) == 0 { // wait until View opens the file
		runtime.Gosched()
	}
	f.Close()
	if err := <-seen; err != nil {
		t.Error(err)
	}
}

func leftovers(t *testing.T, r *Registry) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(r.dir, "*.new"))
	if err != nil || files != nil {
		t.Errorf("left behind: %v (%v)", files, err)
	}
}

// TestOriginalFile checks that this release reads the original's file, and that the original can read the file that
// this release writes.
func TestOriginalFile(t *testing.T) {
	r := open(t)
	const original = `{"schema_version":1,"ips":{"10.0.1.13":{"released_on":"2026-11-21T07:17:24Z"},"10.0.1.14":{"released_on":"0001-01-01T00:00:00Z"}}}` + "\n"
	write(t, r, original)
	s := view(t, r)
	want := map[netip.Addr]time.Time{addr("10.0.1.13"): time.Date(2026, 11, 21, 7, 17, 24, 0, time.UTC),
		addr("10.0.1.14"): {}}
	if diff := cmp.Diff(want, maps.Collect(s.Free.All()), cmpopts.EquateComparable(netip.Addr{})); diff != "" ||
		s.Blank() {
		t.Errorf("free addresses (-want +got):\n%s", diff)
	}
	update(t, r, func(s *State) { s.Forget(addr("10.0.1.14")) })
	b, err := os.ReadFile(r.filePath())
	if err != nil {
		t.Fatal(err)
	}
	var theirs struct {
		SchemaVersion int `json:"schema_version"`
		IPs           map[string]struct {
			ReleasedOn time.Time `json:"released_on"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(b, &theirs); err != nil || theirs.SchemaVersion != 1 || len(theirs.IPs) != 1 ||
		!theirs.IPs["10.0.1.13"].ReleasedOn.Equal(want[addr("10.0.1.13")]) {
		t.Errorf("to the original, %s is %v (%v)", b, theirs, err)
	}
}

func TestUnknownFieldsStay(t *testing.T) {
	r := open(t)
	write(t, r, `{"schema_version":1,"ips":{},"colour":{"of":["the","sky"]}}`)
	update(t, r, func(s *State) { fill(s, 1) })
	update(t, r, func(s *State) {})
	b, _ := os.ReadFile(r.filePath())
	if !strings.Contains(string(b), `"colour":{"of":["the","sky"]}`) {
		t.Errorf("got %s", b)
	}
}

func TestRoundTrip(t *testing.T) {
	r := open(t)
	now := time.Now().UTC()
	var want *State
	update(t, r, func(s *State) {
		a := fill(s, 3)
		l := lease("c1")
		l.PodNamespace, l.PodName, l.NetNS, l.Bound, l.Since = "shop", "cart-0", "/run/netns/c1", true, now
		if err := s.Reserve(a, l); err != nil {
			t.Error(err)
		}
		s.Intents["token"] = Intent{Action: "CreateNetworkInterface", Since: now}
		s.NotBefore["AssignPrivateIpAddresses"] = now
		s.VPCs["vpc-1"] = VPC{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}
		s.Instance = Instance{ID: "i-1", Type: "m5.large", Zone: "us-east-1a", ENIs: 3, IPv4PerENI: 10}
		want = s
	})
	got := view(t, r)
	if diff := cmp.Diff(want, got, likeState); diff != "" {
		t.Errorf("-written +read:\n%s", diff)
	}
}

// TestBadFiles: the registry's file cannot be parsed. This file must not be lost, and the next change must succeed.
func TestBadFiles(t *testing.T) {
	for _, tt := range []struct{ name, content string }{
		{"empty", ""},
		{"cut short", `{"schema_version":1,"ips":{"10.0.`},
		{"no version", `{"ips":{}}`},
		{"a version in capitals", `{"Schema_Version":1,"ips":{}}`},
		{"not an object", `[]`},
		{"an address twice", `{"schema_version":1,"ips":{"10.0.0.1":{}},"leases":{"10.0.0.1":{"containerID":"c"}}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := open(t)
			write(t, r, tt.content)
			if _, err := r.View(); err == nil {
				t.Error("View: no error")
			}
			update(t, r, func(s *State) {
				if !s.Blank() {
					t.Errorf("state is %+v", s)
				}
			})
			bad, _ := filepath.Glob(r.filePath() + ".bad-*")
			if len(bad) != 1 {
				t.Fatalf("set aside: %v", bad)
			}
			if b, _ := os.ReadFile(bad[0]); string(b) != tt.content {
				t.Errorf("set aside: %q", b)
			}
		})
	}
}

func TestLaterRelease(t *testing.T) {
	r := open(t)
	const later = `{"schema_version":2,"ips":["a different","layout"]}`
	write(t, r, later)
	err := r.Update(t.Context(), func(*State) error { t.Error("called"); return nil })
	if !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "schema_version 2") {
		t.Errorf("got %v", err)
	}
	if b, _ := os.ReadFile(r.filePath()); string(b) != later {
		t.Errorf("file is now %q", b)
	}
}

func TestUpdateFails(t *testing.T) {
	r := open(t)
	update(t, r, func(s *State) { fill(s, 2) })
	boom := errors.New("boom")
	err := r.Update(t.Context(), func(s *State) error { s.Free.Delete(addr("10.0.0.10")); return boom })
	if !errors.Is(err, boom) || view(t, r).Free.Len() != 2 {
		t.Errorf("err %v, %d free", err, view(t, r).Free.Len())
	}
	err = r.Update(t.Context(), func(s *State) error { s.Leases.Set(addr("10.0.0.10"), lease("c")); return nil })
	if err == nil || !strings.Contains(err.Error(), "10.0.0.10 is free, and leased by net/c/eth0") {
		t.Errorf("broken state: %v", err)
	}
	update(t, r, func(s *State) { s.Free.Delete(addr("10.0.0.10")); s.Leases.Set(addr("10.0.0.10"), lease("c")) })
	err = r.Update(t.Context(), func(s *State) error { s.Free.Set(addr("10.0.0.10"), time.Now()); return nil })
	if err == nil || !strings.Contains(err.Error(), "10.0.0.10 is free, and leased by net/c/eth0") {
		t.Errorf("broken state: %v", err)
	}
}

func TestLockHonoursContext(t *testing.T) {
	r := open(t)
	unlock, err := r.Lock(t.Context(), "grow")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := r.Lock(ctx, "grow"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second lock: %v", err)
	}
	other, err := r.Lock(t.Context(), "another")
	if err != nil {
		t.Fatal(err)
	}
	other()
	unlock()
	again, err := r.Lock(t.Context(), "grow")
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestPermissions(t *testing.T) {
	r := open(t)
	update(t, r, func(*State) {})
	for file, want := range map[string]os.FileMode{r.dir: 0o700, r.filePath(): 0o600} {
		fi, err := os.Stat(file)
		if err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v (%v), want %v", file, fi.Mode().Perm(), err, want)
		}
	}
}

func TestStateMethods(t *testing.T) {
	s := newState()
	a := fill(s, 3)
	b := a.Next()
	now := time.Now()
	if err := s.Reserve(a, lease("c1")); err != nil {
		t.Fatal(err)
	}
	if err := s.Reserve(a, lease("c2")); !errors.Is(err, ErrLeased) {
		t.Errorf("reserve twice: %v", err)
	}
	if got := s.Held(key("c1")); len(got) != 1 || got[0] != a {
		t.Errorf("held: %v", got)
	}
	ended := s.EndWhere(now, func(_ netip.Addr, l Lease) bool { return l.Key == key("c1") })
	if len(ended) != 1 || maps.Collect(s.Free.All())[a] != now || s.Leases.Len() != 0 {
		t.Errorf("ended %v, state %+v", ended, s)
	}
	if id, e := s.ENIOf(b); id != "eni-1" || e.Primary() != a {
		t.Errorf("ENIOf: %s %v", id, e)
	}
	e := s.ENIs["eni-1"]
	e.Prefixes = []Prefix{{CIDR: netip.MustParsePrefix("10.0.1.16/28")}}
	s.ENIs["eni-1"] = e
	if id, _ := s.ENIOf(addr("10.0.1.20")); id != "eni-1" || e.Assigned(netip.Addr.Is4) != 4 ||
		e.Assigned(netip.Addr.Is6) != 0 {
		t.Errorf("ENIOf an address in a prefix: %q; assigned %d", id, e.Assigned(netip.Addr.Is4))
	}
	if id, e := s.ENIOf(addr("1.2.3.4")); id != "" || e.Primary().IsValid() {
		t.Errorf("ENIOf: %s %v", id, e)
	}
}

func TestDrop(t *testing.T) {
	s := newState()
	fill(s, 2)
	s.Free.Set(addr("10.9.9.9"), time.Now())
	s.Drop("eni-1")
	if len(s.ENIs) != 0 || s.Free.Len() != 1 {
		t.Errorf("ENIs %v, free %v", s.ENIs, maps.Collect(s.Free.All()))
	}
}

func write(t *testing.T, r *Registry, content string) {
	t.Helper()
	if err := os.WriteFile(r.filePath(), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestEndOfWhatIsGone: a lease ends, and its address no longer belongs to its ENI. The address must not become free.
func TestEndOfWhatIsGone(t *testing.T) {
	s := newState()
	there, prefixed, gone := addr("10.0.0.4"), addr("10.0.1.4"), addr("10.0.0.5")
	s.ENIs["eni-1"] = ENI{Addrs: []netip.Addr{there}, Prefixes: []Prefix{{CIDR: netip.MustParsePrefix("10.0.1.0/28")}}}
	for _, a := range []netip.Addr{there, prefixed, gone} {
		if err := s.Reserve(a, lease(a.String())); err != nil {
			t.Fatal(err)
		}
		s.EndOf(lease(a.String()).Key, time.Now(), time.Time{})
	}
	if s.Leases.Len() > 0 || !s.Free.Has(there) || !s.Free.Has(prefixed) || s.Free.Has(gone) {
		t.Errorf("leases %v, free %v", maps.Collect(s.Leases.All()), maps.Collect(s.Free.All()))
	}
}

// TestNoLink checks that an ENI serves no pods if its link has vanished, or did not appear in time.
func TestNoLink(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		e    ENI
		want bool
	}{
		{ENI{}, false},
		{ENI{Link: "eth1"}, false},
		{ENI{Missed: now}, false},
		{ENI{Missed: now.Add(-LinkPatience)}, true},
		{ENI{Missed: now, Link: "eth1"}, true},
	} {
		if got := tt.e.NoLink(now); got != tt.want {
			t.Errorf("link %q, missed %v: %v", tt.e.Link, tt.e.Missed, got)
		}
	}
}
