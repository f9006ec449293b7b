// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry/indexed"
)

const day = 24 * time.Hour

// stepped simulates a step of the wall clock by d, until the test ends. It changes Uptime, so that the boot time seems
// to move by d.
func stepped(t *testing.T, d time.Duration) {
	t.Helper()
	was := Uptime
	Uptime = func() time.Duration { return was() - d }
	t.Cleanup(func() { Uptime = was })
}

// allTimes returns a state in which all times have the value when. It sets them by reflection, so they include fields
// that replaceTimes does not know yet.
func allTimes(t *testing.T, when time.Time) *State {
	t.Helper()
	s, a, l := newState(), addr("10.0.0.10"), Lease{}
	for _, field := range reflect.ValueOf(s).Elem().Fields() {
		if field.CanSet() {
			setTimes(t, field, when)
		}
	}
	s.LogLines = nil // the times of LogLines are by the clock of their series
	setTimes(t, reflect.ValueOf(&l).Elem(), when)
	s.Leases.Set(a, l)
	s.Free.Set(a.Next(), when)
	return s
}

// setTimes sets all times in v. Empty maps and lists get one element.
func setTimes(t *testing.T, v reflect.Value, when time.Time) {
	t.Helper()
	switch p := v.Addr().Interface().(type) {
	case *time.Time:
		*p = when
		return
	case *netip.Addr:
		*p = addr("10.0.0.9")
		return
	case *netip.Prefix:
		*p = netip.MustParsePrefix("10.0.0.0/28")
		return
	case *indexed.Entries[time.Time], *indexed.Entries[Lease]:
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() {
				setTimes(t, field, when)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		setTimes(t, v.Index(0), when)
	case reflect.Map:
		key, one := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		setTimes(t, key, when)
		setTimes(t, one, when)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, one)
	}
}

// times returns all times of a state. The keys are the paths of the fields.
func times(s *State) map[string]time.Time {
	all := map[string]time.Time{}
	for _, v := range maps.Collect(s.Leases.All()) {
		find(all, "Leases", reflect.ValueOf(v))
	}
	for _, v := range maps.Collect(s.Free.All()) {
		all["Free"] = v
	}
	for f, v := range reflect.ValueOf(s).Elem().Fields() {
		if f.IsExported() && f.Name != "Free" && f.Name != "Leases" {
			find(all, f.Name, v)
		}
	}
	return all
}

func find(all map[string]time.Time, path string, v reflect.Value) {
	if t, ok := v.Interface().(time.Time); ok {
		all[path] = t
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for f, field := range v.Fields() {
			if f.IsExported() {
				find(all, path+"."+f.Name, field)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			find(all, path, v.Index(i))
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			find(all, strings.TrimSpace(fmt.Sprint(path, " ", key)), value)
		}
	}
}

// deadlines are the times that may be in the future. The values are the maximum distances from the present.
var deadlines = map[string]time.Duration{
	"Waiters.Until": MostWait, "NotBefore": MostBackoff, "Refusals.Until": MostRefusal, "Instance.FullUntil": MostFull,
	"Instance.QuotaUntil": MostQuota,
}

// TestFutureTimes: a time in the file is further in the future than it can be. A reader must replace it by the latest
// possible time, even if the file has no boot time, or if another program wrote the file.
func TestFutureTimes(t *testing.T) {
	for _, booted := range []string{"", "as it is now"} {
		r := open(t)
		s := allTimes(t, time.Now().Add(day))
		if booted != "" {
			_, s.bootTime = nowAndBootTime()
		}
		b := unsealed(t, encoded(t, s))
		write(t, r, string(b))
		began := time.Now()
		seen := times(view(t, r))
		update(t, r, func(*State) {})
		kept := times(view(t, r))
		if len(seen) < 16 {
			t.Errorf("only %d times: %v", len(seen), seen)
		}
		for path, got := range seen {
			most := began.Add(deadlines[path]).Add(-time.Millisecond)
			if got.Before(most) || got.After(most.Add(time.Minute)) {
				t.Errorf("booted %q: %s is %v from now", booted, path, got.Sub(began))
			}
			if again := kept[path]; again.Before(got) || again.After(got.Add(time.Minute)) {
				t.Errorf("booted %q: %s is %v later after an update", booted, path, again.Sub(got))
			}
		}
	}
}

// TestClockSet: the clock was set. Each time of the state must move by the same duration, in what readers get and in
// the file. This must also happen if another program has edited the file.
func TestClockSet(t *testing.T) {
	for _, edited := range []bool{false, true} {
		for _, step := range []time.Duration{-day, -2 * time.Second, 2 * time.Second, day} {
			r, when := open(t), time.Now().Add(-3*day).UTC().Round(0)
			update(t, r, func(s *State) {
				booted := s.bootTime
				*s = *allTimes(t, when)
				s.bootTime = booted
			})
			if edited {
				b, err := os.ReadFile(r.filePath())
				if err != nil {
					t.Fatal(err)
				}
				write(t, r, string(b)) // as if another program had written the file
			}
			t.Run(fmt.Sprintf("%v edited=%v", step, edited), func(t *testing.T) {
				stepped(t, step)
				wantTimes(t, "seen", view(t, r), when.Add(step))
				update(t, r, func(*State) {})
				wantTimes(t, "kept", view(t, r), when.Add(step))
			})
			wantTimes(t, "set back", view(t, r), when)
		}
	}
}

func wantTimes(t *testing.T, what string, s *State, want time.Time) {
	t.Helper()
	for path, got := range times(s) {
		if d := got.Sub(want).Abs(); d > time.Second/2 {
			t.Errorf("%s: %s is %v wrong", what, path, got.Sub(want))
		}
	}
}

// TestClockZero: the zero time stays zero when the clock is set.
func TestClockZero(t *testing.T) {
	r := open(t)
	update(t, r, func(s *State) { fill(s, 1) })
	stepped(t, -day)
	if since, ok := view(t, r).Free.At(addr("10.0.0.10")); !ok || !since.IsZero() {
		t.Errorf("an address that was never used is free since %v", since)
	}
}

// TestClockUntouched: the clock was not set. Leases must still be parsed only when they are used, and the file must
// stay the same, byte for byte.
func TestClockUntouched(t *testing.T) {
	r := open(t)
	update(t, r, func(s *State) {
		booted := s.bootTime
		*s = *allTimes(t, time.Now().Add(day)) // the times are impossible, but are not checked in a file of ours
		s.bootTime = booted
	})
	before, err := os.ReadFile(r.filePath())
	if err != nil {
		t.Fatal(err)
	}
	update(t, r, func(*State) {})
	after, err := os.ReadFile(r.filePath())
	if err != nil || !bytes.Equal(withoutTime(t, before), withoutTime(t, after)) {
		t.Errorf("written %s (%v)\nafter   %s", after, err, before)
	}
}

// withoutTime returns a file's text without the member that has the modification time.
func withoutTime(t *testing.T, file []byte) []byte {
	t.Helper()
	body, _, ok := bytes.Cut(file, []byte(writtenMember))
	if !ok {
		t.Fatalf("no time in %s", file)
	}
	return body
}

// TestClockCreeps: each change of the clock is too small to be noticed, but their sum must be noticed.
func TestClockCreeps(t *testing.T) {
	r, when := open(t), time.Now().Add(-day)
	update(t, r, func(s *State) { s.Free.Set(addr("10.0.0.10"), when) })
	for range 7 {
		stepped(t, 400*time.Millisecond)
		update(t, r, func(*State) {})
	}
	since, _ := view(t, r).Free.At(addr("10.0.0.10"))
	if wrong := when.Add(7 * 400 * time.Millisecond).Sub(since); wrong.Abs() > clockTolerance+time.Second/4 {
		t.Errorf("%v wrong", wrong)
	}
}

// TestBegunAfterSuspend: a command began, a lease began a second later, and then the machine was suspended for an hour.
// The wall clock counts this hour. The monotonic clock in the command's time does not count it.
func TestBegunAfterSuspend(t *testing.T) {
	command := time.Now()
	const hour, secondsOfWall = time.Hour, 30 // in the field wall of a time.Time with a monotonic clock
	*(*uint64)(unsafe.Pointer(&command)) -= uint64(hour/time.Second) << secondsOfWall
	if elapsed := time.Now().Round(0).Sub(command.Round(0)); elapsed < hour || time.Since(command) > hour/2 {
		t.Fatalf("the command began %v ago by the wall clock, and %v by the other", elapsed, time.Since(command))
	}
	was := suspended
	suspended = func() time.Duration { return was() + hour }
	t.Cleanup(func() { suspended = was })
	s := newState()
	s.readAt, _ = nowAndBootTime()
	for after, want := range map[time.Duration]bool{time.Second: true, -time.Second: false} {
		if got := s.BegunAfter(Lease{Since: command.Round(0).Add(after)}, command); got != want {
			t.Errorf("a lease that began %v after the command counts as later: %v", after, got)
		}
	}
}

// TestBegunAfter compares the times of leases with the time of a command. If a lease's time was replaced by the
// present, no process knows when the lease began. A DEL must then end the lease.
func TestBegunAfter(t *testing.T) {
	r := open(t)
	lease := func(a, id string, since time.Time) {
		update(t, r, func(s *State) { s.Leases.Set(addr(a), Lease{Key: key(id), ENI: "eni-1", Since: since}) })
	}
	lease("10.0.0.10", "before", time.Now())
	command := time.Now()
	lease("10.0.0.11", "after", time.Now())
	lease("10.0.0.12", "cut", time.Now().Add(day))
	s := view(t, r)
	for a, want := range map[string]bool{"10.0.0.10": false, "10.0.0.11": true} {
		l, _ := s.Leases.At(addr(a))
		if got := s.BegunAfter(l, command); got != want {
			t.Errorf("lease of %s begun after the command: %v", l.ContainerID, got)
		}
		if s.BegunAfter(l, time.Time{}) {
			t.Errorf("lease of %s begun after no command", l.ContainerID)
		}
	}
	b, err := os.ReadFile(r.filePath())
	if err == nil {
		err = os.WriteFile(r.filePath(), append(b, '\n'), 0o600) // as if another program had written the file
	}
	if err != nil {
		t.Fatal(err)
	}
	s = view(t, r)
	if l, _ := s.Leases.At(addr("10.0.0.12")); s.BegunAfter(l, command) {
		t.Errorf("a lease whose time is cut has begun after the command: %v", l.Since)
	}
	for _, id := range []string{"cut", "before", "after"} {
		update(t, r, func(s *State) { s.EndOf(key(id), time.Now(), command) })
	}
	s = view(t, r)
	if left := slices.Collect(s.Leases.Keys()); !slices.Equal(left, []netip.Addr{addr("10.0.0.11")}) {
		t.Errorf("leases after the end of all that a command may end: %v", left)
	}
}
