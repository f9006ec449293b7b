// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
	past "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/history"
)

// TestLeaseLog plays random histories of a node. Between two events, the test records the time, and which pod has which
// address. In the end, the lease log must say the same for each of these times.
func TestLeaseLog(t *testing.T) {
	n, want := 250, 10000
	if testing.Short() {
		n, want = 40, 1000
	}
	if *histories > 0 {
		n = *histories
	}
	simtest.Credentials(t)
	uptime, bootID := registry.Uptime, registry.BootID
	t.Cleanup(func() { registry.Uptime, registry.BootID = uptime, bootID })
	tried := map[string]*atomic.Int32{}
	for _, what := range []string{"of a pod", "of no pod", "unknown", "cut", "rotated", "reboots", "clock steps"} {
		tried[what] = new(atomic.Int32)
	}
	playAll(t, *firstSeed, n, 1, oneKernel, func(t *testing.T, k *kernel, seed uint64) {
		dir := simtest.Memory(t)
		synctest.Test(t, func(t *testing.T) {
			defer k.end(t)
			l := &logged{model: newModel(t, k, filepath.Join(dir, "state"), seed, false), tried: tried,
				booted: time.Now().Add(-time.Minute)}
			registry.Uptime = func() time.Duration { return time.Since(l.booted) }
			registry.BootID = func() string { return fmt.Sprint(l.boots) }
			l.file = filepath.Join(dir, "log", "leases.log")
			l.play()
		})
	})
	for what, n := range tried {
		t.Logf("%-12s %6d", what, n.Load())
		if n.Load() == 0 && what != "unknown" {
			t.Errorf("no history had %s", what)
		}
	}
	if n, all := tried["unknown"].Load(), tried["of a pod"].Load()+tried["of no pod"].Load(); n > all/20 {
		t.Errorf("%d of %d answers are unknown, want one in twenty at most", n, n+all)
	}
	if got := int(tried["of a pod"].Load() + tried["of no pod"].Load()); got < want {
		t.Errorf("the histories have %d records, want %d", got, want)
	}
}

// A logged is a model whose node has a lease log.
type logged struct {
	*model
	file    string
	booted  time.Time
	boots   int
	before  int             // number of lines from before the last boot
	last    []registry.Line // the lines of the change at which the log was cut
	packets []packet
	tried   map[string]*atomic.Int32
}

// A packet is from or to an address, as flow logs record it.
type packet struct {
	at   time.Time
	addr netip.Addr
	pod  string // the container of the pod that had the address; empty: no pod
}

func (l *logged) play() {
	defer func() {
		if len(l.bad) > 0 {
			l.Errorf("%s\n\nthe history:\n%s", strings.Join(l.bad, "\n"), strings.Join(l.log, "\n"))
		}
	}()
	l.keeps = true
	l.others()
	if l.chance(30) {
		l.requests()
	}
	size := pick(l.rng, 0, 1) // 0: each change begins another file
	if l.conf != nil {
		l.conf.LeaseLog = &registry.LeaseLog{File: l.file, MaxSize: 1, MaxFiles: 100}
		must(l, l.conf.Validate())
		l.policies = l.conf.Policies()
	}
	for i := 0; i < len(l.policies) && l.conf == nil; i++ {
		l.policies[i].Log = registry.LeaseLog{File: l.file, MaxSize: size, MaxFiles: 100000}
	}
	for range 2 * l.steps {
		l.event()
		l.note()
		if len(l.bad) > 0 {
			return
		}
	}
	l.heal()
	if _, err := os.Stat(l.file + ".1"); err == nil {
		l.tried["rotated"].Add(1)
	}
	l.check()
}

// event plays a random event, and sometimes cuts the log.
func (l *logged) event() {
	switch n := l.rng.IntN(100); {
	case n < 4:
		l.heal()
		l.reboot()
		l.boots++
		l.booted = time.Now().Add(-30 * time.Second)
		l.before = len(l.lines())
		l.tried["reboots"].Add(1)
	case n < 8:
		l.heal()
		l.lose()
	case n < 13:
		l.heal()
		l.setClock()
	case n < 50:
		l.add()
	case n < 75:
		l.del()
	case n < 80:
		l.die()
	case n < 90:
		l.collect()
	default:
		l.tick()
	}
	if l.chance(30) {
		l.cut()
	}
}

// setClock plays a step of the clock. The clock itself stays: the times in the registry and in the lines since the boot
// move instead.
func (l *logged) setClock() {
	path := filepath.Join(l.Dir, "registry.json")
	text, err := os.ReadFile(path)
	var all any
	s, failed := l.view()
	if err != nil || failed != nil || s.Log.File == "" || json.Unmarshal(text, &all) != nil {
		return // after the registry was lost, no process knows of a step until the next ADD
	}
	d := pick(l.rng, -24*time.Hour, -time.Hour, time.Hour, 24*time.Hour)
	l.logf("%s the clock steps by %v", l.clock(), d)
	text, err = json.Marshal(shifted(all, -d))
	must(l, err)
	must(l, os.WriteFile(path, text, 0o600))
	skip := l.before
	for _, file := range l.files() {
		lines := linesOf(l, file)
		for i, line := range lines {
			if skip--; skip < 0 && json.Unmarshal(line, &all) == nil {
				lines[i] = shiftedLine(l, line, -d)
			}
		}
		must(l, os.WriteFile(file, bytes.Join(lines, nil), 0o640))
	}
	l.tried["clock steps"].Add(1)
	l.heal()
}

// shiftedLine returns a line of the log with each time later by d.
func shiftedLine(t testing.TB, line []byte, d time.Duration) []byte {
	times := regexp.MustCompile(`"\d{4}-\d\d-\d\dT[0-9:.]+Z"`)
	return times.ReplaceAllFunc(line, func(text []byte) []byte {
		at, err := time.Parse(`"`+time.RFC3339Nano+`"`, string(text))
		must(t, err)
		return []byte(at.Add(d).Format(`"` + time.RFC3339Nano + `"`))
	})
}

// files returns the paths of the files of the log, the oldest first.
func (l *logged) files() (files []string) {
	for n := 0; ; n++ {
		name := l.file
		if n > 0 {
			name = fmt.Sprintf("%s.%d", l.file, n)
		}
		if _, err := os.Stat(name); err != nil {
			slices.Reverse(files)
			return files
		}
		files = append(files, name)
	}
}

// lines returns all lines of the log, the oldest first.
func (l *logged) lines() (lines [][]byte) {
	for _, file := range l.files() {
		lines = append(lines, linesOf(l, file)...)
	}
	return lines
}

func linesOf(t testing.TB, file string) (lines [][]byte) {
	text, err := os.ReadFile(file)
	must(t, err)
	for line := range bytes.Lines(text) {
		lines = append(lines, line)
	}
	return lines
}

// cut makes the log look as if the process of the last change had been killed before or while it appended its lines.
func (l *logged) cut() {
	s, err := l.view()
	fi, failed := os.Stat(l.file)
	if err != nil || failed != nil || s.Log.Size != int(fi.Size()) || len(s.LogLines) == 0 ||
		slices.Equal(s.LogLines, l.last) {
		return
	}
	l.last = s.LogLines
	size := 0
	for _, line := range s.LogLines {
		text, err := json.Marshal(line)
		must(l, err)
		size += len(text) + 1
	}
	to := s.Log.Size - 1 - l.rng.IntN(size)
	if l.chance(50) {
		to = s.Log.Size - size
	}
	l.logf("%s the log is cut from %d to %d bytes", l.clock(), fi.Size(), to)
	must(l, os.Truncate(l.file, int64(to)))
	l.tried["cut"].Add(1)
}

// heal runs a collection, so that the log has all lines. This is necessary before an event after which the registry
// cannot know which lines are missing.
func (l *logged) heal() {
	l.confess()
	if _, err := l.collectNow(less.Collection{FreeAfter: 24 * time.Hour, Max: 1}, fate{}); err != nil {
		l.logf("  %v", err)
	}
	l.damaged = false
}

// note records which pod has which address until the next event.
func (l *logged) note() {
	s, err := l.view()
	if err != nil || s.Log.File == "" {
		return // the registry was lost: until the next ADD, no process writes when leases end
	}
	owner := map[netip.Addr]string{}
	for a := range s.Free.Keys() {
		owner[a] = ""
	}
	for a, lease := range s.Leases.All() {
		if owner[a] = lease.ContainerID; lease.Key == (registry.Key{}) {
			delete(owner, a) // an unknown pod has it
		}
	}
	for _, p := range l.pods {
		for _, a := range p.addrs {
			switch {
			case p.alive && (p.original || p.robbed || p.forgot && !s.Leases.Has(a)):
				delete(owner, a) // the node cannot know yet, or ever, that the pod has it
			case p.alive:
				owner[a] = p.ContainerID
			}
		}
	}
	time.Sleep(time.Second)
	for a, pod := range owner {
		l.packets = append(l.packets, packet{time.Now(), a, pod})
	}
	time.Sleep(time.Second)
}

// check compares the log with the packets that note has recorded.
func (l *logged) check() {
	if len(l.files()) == 0 {
		return
	}
	h, _, err := past.Read(filepath.Dir(l.file))
	must(l, err)
	for _, r := range l.packets {
		got, what := "", "of no pod"
		for _, lease := range h.At(r.addr, r.at) {
			got += lease.Container
		}
		if r.pod != "" {
			what = "of a pod"
		}
		unknown := !h.Sure(r.addr, r.at, r.at.Add(1)) || got == "" && len(h.At(r.addr, r.at)) > 0
		if unknown {
			what = "unknown"
		}
		l.tried[what].Add(1)
		if got != r.pod && !unknown {
			l.wrong("at %v %s was that of %q, and the log says %q\n%s", r.at.Sub(l.began), r.addr, r.pod, got,
				l.about(r.addr))
			return
		}
	}
}

// about returns the lines of the log about an address.
func (l *logged) about(a netip.Addr) (text string) {
	for _, line := range l.lines() {
		if !bytes.Contains(line, []byte(`"address"`)) || bytes.Contains(line, []byte(`"`+a.String()+`"`)) {
			text += string(line)
		}
	}
	return text
}
