// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package history

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestShipped reads logs of several nodes as programs deliver them: with repeated, reordered and cut lines, and damaged
// files. Each answer is right or unknown. Without a loss, an answer is unknown only if the clock was set and the order
// of the lines is lost.
func TestShipped(t *testing.T) {
	histories, questions := 10*len(shippers), 100
	type count struct{ right, unknown int }
	counts := map[string]*count{}
	for seed := range uint64(histories) {
		w := newPast(seed)
		w.play()
		how := shippers[seed%uint64(len(shippers))]
		dir := t.TempDir()
		how.ship(w, dir)
		h, _, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if counts[how.name] == nil {
			counts[how.name] = new(count)
		}
		for range questions {
			a, at, want := w.question()
			got, found := "", h.At(a, at)
			for _, l := range found {
				got += l.Container
			}
			switch {
			// the address was found in use, by an unknown pod
			case !h.Sure(a, at, at.Add(1)), got == "" && len(found) > 0:
				counts[how.name].unknown++
			case got != want:
				t.Fatalf("history %d, %s: at %v %s was that of %q, and the log says %q\n%s\n%s", seed, how.name,
					at.Format(time.TimeOnly), a, want, got, w.about(a), told(h.LeasesOf(a)))
			default:
				counts[how.name].right++
			}
		}
	}
	for _, how := range shippers {
		c := counts[how.name]
		t.Logf("%-28s %6d right, %6d unknown (%d %%)", how.name, c.right, c.unknown, c.unknown*100/(c.right+c.unknown))
		if c.unknown > (c.right+c.unknown)*how.most/100 {
			t.Errorf("%s: %d answers are unknown, want %d %% at most", how.name, c.unknown, how.most)
		}
	}
}

// A past is what has happened on some nodes, and the logs that they have written.
type past struct {
	rng   *rand.Rand
	now   time.Time // the true time
	begun time.Time
	nodes []*machine
	addrs []netip.Addr
	truth map[netip.Addr][]tenure
}

// A tenure is the time for which a container had an address.
type tenure struct {
	container string
	from, to  time.Time // to is zero: it has it
}

// A machine is a node that writes a log.
type machine struct {
	id     string
	booted time.Time     // the true time
	offset time.Duration // of its clock
	boots  int
	leases map[netip.Addr]registry.Line
	files  [][]string // the oldest first, of lines
	series string
	number int
	after  string
	count  int // of series
}

// skew is the largest difference of a clock from the true time, once a program has set it.
const skew = 3 * time.Second

func newPast(seed uint64) *past {
	w := &past{rng: rand.New(rand.NewPCG(seed, 36)), begun: time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC),
		truth: map[netip.Addr][]tenure{}}
	w.now = w.begun
	for i := range 3 {
		n := &machine{id: fmt.Sprintf("i-%d", i), booted: w.begun.Add(-time.Hour),
			leases: map[netip.Addr]registry.Line{}, offset: w.offset(), files: [][]string{nil}}
		w.nodes = append(w.nodes, n)
	}
	for i := range 10 {
		w.addrs = append(w.addrs, netip.AddrFrom4([4]byte{10, 0, 97, byte(30 + i)}))
	}
	return w
}

// offset is that of a clock that a program has set.
func (w *past) offset() time.Duration { return time.Duration(w.rng.Int64N(int64(2*skew))) - skew }

func (w *past) play() {
	for _, n := range w.nodes {
		n.mistake(w.rng)
		n.begin()
		w.snapshot(n)
	}
	for i := range 250 {
		w.now = w.now.Add(time.Duration(10+w.rng.IntN(60))*time.Second + time.Duration(w.rng.IntN(1e9)))
		n := w.nodes[w.rng.IntN(len(w.nodes))]
		switch r := w.rng.IntN(100); {
		case r < 3:
			n.files = append(n.files, nil)
			w.snapshot(n)
		case r < 5:
			w.reboot(n)
		case r < 7:
			w.lose(n)
		case r < 9:
			w.step(n, w.offset())
		case r < 15:
			w.killed(n)
		case r < 55:
			w.begin(n, fmt.Sprintf("c%d", i))
		case r < 95:
			w.end(n)
		default:
			w.snapshot(n)
		}
	}
	for _, n := range w.nodes {
		w.step(n, w.offset()) // all clocks are right in the end
	}
	w.now = w.now.Add(time.Hour)
}

func (w *past) stamp(n *machine) time.Time { return w.now.Add(n.offset) }

// begin begins a series.
func (n *machine) begin() {
	if n.series != "" {
		n.after = fmt.Sprintf("%s.%d", n.series, n.number)
	}
	n.count++
	n.series, n.number = fmt.Sprintf("%sseries%d", n.id, n.count), 0
}

func (n *machine) write(lines ...registry.Line) {
	last := len(n.files) - 1
	for _, l := range lines {
		l.Series, l.Number, l.Instance = n.series, n.number, n.id
		n.files[last] = append(n.files[last], encoded(l))
	}
}

// change writes a change of a lease.
func (n *machine) change(l registry.Line) {
	n.number++
	n.write(l)
}

func (w *past) snapshot(n *machine) {
	at := w.stamp(n)
	n.write(registry.Line{Time: at, Event: registry.Snapshot, Booted: n.booted.Add(n.offset),
		Boot: fmt.Sprint(n.id, n.boots), Leases: len(n.leases), After: n.after})
	for _, l := range n.leases {
		l.Since, l.Time, l.Event = l.Time, at, registry.Held
		n.write(l)
	}
}

func (w *past) begin(n *machine, container string) {
	a := w.addrs[w.rng.IntN(len(w.addrs))]
	if ls := w.truth[a]; len(ls) > 0 && (ls[len(ls)-1].to.IsZero() || w.now.Sub(ls[len(ls)-1].to) < 2*skew &&
		w.rng.IntN(2) == 0) {
		return
	}
	w.truth[a] = append(w.truth[a], tenure{container: container, from: w.now})
	n.leases[a] = registry.Line{Time: w.stamp(n), Event: registry.Begin, Address: a, Network: "pods", Namespace: "shop",
		Pod:       "p-" + container,
		Container: container, Interface: "eth0", ENI: "eni-1"}
	n.change(n.leases[a])
}

func (w *past) end(n *machine) {
	for _, a := range w.addrs {
		l, ok := n.leases[a]
		if !ok || w.rng.IntN(2) == 0 {
			continue
		}
		l.Since, l.Time, l.Event = l.Time, w.stamp(n), registry.End
		n.change(l)
		delete(n.leases, a)
		w.over(a)
		return
	}
}

func (w *past) over(a netip.Addr) { ls := w.truth[a]; ls[len(ls)-1].to = w.now }

// mistake lets the clock of a machine that boots be wrong by hours, until a program sets it.
func (n *machine) mistake(rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		n.offset = time.Duration(rng.IntN(20)-10) * time.Hour
	}
}

// reboot ends all leases of a node without a line.
func (w *past) reboot(n *machine) {
	w.step(n, w.offset()) // no reader knows by which clock the lines are that no line corrects
	for a := range n.leases {
		w.over(a)
	}
	clear(n.leases)
	n.mistake(w.rng)
	n.boots++
	n.booted = w.now
	w.now = w.now.Add(time.Minute)
	n.begin()
	w.begin(n, fmt.Sprintf("boot%d", w.now.Unix()))
	w.now = w.now.Add(5 * time.Millisecond)
	w.snapshot(n)
}

// lose deletes the registry of a node. It is rebuilt from the kernel, without the pods' names, except for a pod that
// has ended.
func (w *past) lose(n *machine) {
	n.begin()
	over := w.rng.IntN(3) == 0
	for _, a := range w.addrs {
		switch _, ok := n.leases[a]; {
		case !ok:
		case over:
			w.over(a)
			delete(n.leases, a)
			over = false
		default:
			n.leases[a] = registry.Line{Time: w.stamp(n), Event: registry.Begin, Address: a, NetNS: "/run/netns/x",
				ENI: "eni-1"}
		}
	}
	w.snapshot(n)
}

// step sets the clock of a node. The registry moves its times by as much.
func (w *past) step(n *machine, offset time.Duration) {
	for a, l := range n.leases {
		l.Time = l.Time.Add(offset - n.offset)
		n.leases[a] = l
	}
	n.offset = offset
	n.begin()
	w.snapshot(n)
}

// killed is as if a process was killed while it wrote the last line: the next one writes it again.
func (w *past) killed(n *machine) {
	i := len(n.files) - 1
	j := len(n.files[i]) - 1
	if j < 0 || !strings.Contains(n.files[i][j], `"begin"`) && !strings.Contains(n.files[i][j], `"end"`) {
		return
	}
	text := n.files[i][j]
	n.files[i][j] = text[:1+w.rng.IntN(len(text)-1)]
	n.files[i] = append(n.files[i], text)
	w.snapshot(n)
}

// question returns an address, a time that is not near a change of it, and the container that had it.
func (w *past) question() (netip.Addr, time.Time, string) {
	for {
		a := w.addrs[w.rng.IntN(len(w.addrs))]
		at := w.begun.Add(time.Duration(w.rng.Int64N(int64(w.now.Sub(w.begun)))))
		near := func(t time.Time) bool { return !t.IsZero() && at.Sub(t).Abs() < 3*skew }
		if at.Before(w.logged()) || slices.ContainsFunc(w.truth[a], func(l tenure) bool {
			return near(l.from) || near(l.to)
		}) {
			continue
		}
		for _, l := range w.truth[a] {
			if l.from.Before(at) && (l.to.IsZero() || at.Before(l.to)) {
				return a, at, l.container
			}
		}
		return a, at, ""
	}
}

// logged returns the time from which all nodes had a log.
func (w *past) logged() time.Time { return w.begun.Add(skew) }

func (w *past) about(a netip.Addr) (text string) {
	for _, n := range w.nodes {
		for _, l := range slices.Concat(n.files...) {
			if !strings.Contains(l, `"address"`) || strings.Contains(l, `"`+a.String()+`"`) {
				text += l + "\n"
			}
		}
	}
	return text
}

func encoded(l registry.Line) string {
	b, err := json.Marshal(l)
	must(err)
	return string(b)
}

// A shipper puts the logs of nodes into a directory.
type shipper struct {
	name string
	most int // how many answers may be unknown, in percent
	ship func(w *past, dir string)
}

var shippers = []shipper{
	{"as it is", 1, func(w *past, dir string) {
		w.each(dir, func(n *machine, to string) { n.copy(to, len(n.files)) })
	}},
	{"hourly copies", 1, func(w *past, dir string) {
		w.each(dir, func(n *machine, to string) {
			for hour := 1; hour <= len(n.files); hour++ {
				n.copy(fmt.Sprintf("%s.h%02d", to, hour), hour)
			}
		})
	}},
	{"an image", 1, func(w *past, dir string) { // other nodes were made from a used one, and have its log
		for i, n := range w.nodes {
			store(filepath.Join(dir, n.id, "leases.log"), slices.Concat(slices.Concat(w.nodes[0].files...),
				slices.Concat(w.nodes[i].files...)))
		}
	}},
	{"twice, in any order", 1, func(w *past, dir string) { store(filepath.Join(dir, "all"), w.mixed(3)) }},
	{"nearly in order", 1, func(w *past, dir string) {
		w.each(dir, func(n *machine, to string) {
			all := whole(slices.Concat(n.files...))
			for range len(all) {
				i := w.rng.IntN(len(all) - 1)
				all[i], all[i+1] = all[i+1], all[i]
			}
			store(to, append(all, all[len(all)/2:]...))
		})
	}},
	{"cut, and sent again", 1, func(w *past, dir string) { w.cut(dir, 150, true) }},
	{"cut behind the address", 45, func(w *past, dir string) { w.cut(dir, 150, false) }},
	{"cut anywhere", 60, func(w *past, dir string) { w.cut(dir, 1, false) }},
	{"lines lost", 20, func(w *past, dir string) {
		w.each(dir, func(n *machine, to string) {
			all := slices.Concat(n.files...)
			last := len(all) - 1 // no reader can know that nothing comes after the last line
			store(to, append(slices.DeleteFunc(slices.Clone(all[:last]), func(string) bool {
				return w.rng.IntN(50) == 0
			}), all[last]))
		})
	}},
	{"a file lost", 50, func(w *past, dir string) {
		w.each(dir, func(n *machine, to string) {
			n.copy(to, len(n.files))
			if len(n.files) > 1 {
				must(os.Remove(to + fmt.Sprintf(".%d", 1+w.rng.IntN(len(n.files)-1))))
			}
		})
	}},
	{"a broken gzip", 35, func(w *past, dir string) {
		w.each(dir, func(n *machine, to string) {
			n.copy(to, len(n.files))
			name := to + fmt.Sprintf(".%d", w.rng.IntN(len(n.files))+1)
			if b, err := os.ReadFile(name); err == nil {
				var z bytes.Buffer
				g := gzip.NewWriter(&z)
				g.Write(b)
				g.Close()
				must(os.WriteFile(name, z.Bytes()[:z.Len()*2/3], 0o600))
			}
		})
	}},
}

// whole returns the lines that no kill has cut.
func whole(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.HasSuffix(l, "}") })
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (w *past) each(dir string, f func(n *machine, to string)) {
	for _, n := range w.nodes {
		f(n, filepath.Join(dir, n.id, "leases.log"))
	}
}

// store writes lines to a file.
func store(path string, lines []string) {
	must(os.MkdirAll(filepath.Dir(path), 0o700))
	must(os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
}

// copy writes the first files of a log as a rotation names them.
func (n *machine) copy(to string, files int) {
	for i, lines := range n.files[:files] {
		name := to
		if age := files - 1 - i; age > 0 {
			name = fmt.Sprintf("%s.%d", to, age)
		}
		store(name, lines)
	}
}

// mixed are the lines of all nodes in any order, some of them several times.
func (w *past) mixed(most int) (all []string) {
	for _, n := range w.nodes {
		for _, l := range whole(slices.Concat(n.files...)) {
			for range 1 + w.rng.IntN(most) {
				all = append(all, l)
			}
		}
	}
	w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// cut cuts some lines, but not before a byte. They may be sent again.
func (w *past) cut(dir string, least int, again bool) {
	w.each(dir, func(n *machine, to string) {
		all := slices.Concat(n.files...)
		for i, l := range all {
			if w.rng.IntN(15) == 0 {
				all[i] = l[:min(len(l)-1, least+w.rng.IntN(len(l)/2))]
			}
		}
		store(to, all)
		if again {
			store(to+".again", slices.Concat(n.files...))
		}
	})
}

// FuzzRead: repeated lines change nothing, and leases end after they begin.
func FuzzRead(f *testing.F) {
	w := newPast(1)
	w.play()
	for _, n := range w.nodes {
		text := strings.Join(n.files[0], "\n")
		f.Add([]byte(text[:min(len(text), 3000)]))
	}
	f.Add([]byte(`{"time":"2026-11-24T14:00:00Z","event":"clock","booted":"2026-11-24T12:00:00Z","instance":"i-1"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		leases := func(times int) (all []Lease) {
			r := newReader()
			for range times {
				r.readFile(logFile{path: "log", name: "log"}, func(f func(int, []byte) error) error {
					return eachLineOf(bytes.NewReader(text), f)
				})
			}
			h := r.newHistory()
			addrs := map[netip.Addr]bool{{}: true}
			for _, n := range h.nodes {
				for _, s := range n.series {
					for a := range s.linesOf {
						addrs[a] = true
					}
				}
			}
			for a := range addrs {
				for _, l := range h.LeasesOf(a) {
					if l.Address != a {
						t.Fatalf("%v is among the leases of %v", l, a)
					}
					if !l.End.IsZero() && l.End.Before(l.Begin) {
						t.Fatalf("it ends before it begins: %+v", l)
					}
					h.Sure(a, l.Begin, l.End)
					all = append(all, *l)
				}
			}
			slices.SortFunc(all, func(a, b Lease) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			return all
		}
		if once, twice := leases(1), leases(2); !slices.Equal(once, twice) {
			t.Fatalf("once:  %+v\ntwice: %+v", once, twice)
		}
	})
}

// told are leases as text.
func told(ls []*Lease) (text string) {
	for _, l := range ls {
		text += fmt.Sprintf("%s %q from %s to %s\n", l.Instance, l.Container, l.Begin.Format(time.TimeOnly),
			l.End.Format(time.TimeOnly))
	}
	return text
}
