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

// TestShipped: logs of several nodes, as shippers deliver them: lines twice, in another order, cut, in files that are damaged. Each
// answer is right, or unknown. Without a loss, no answer is unknown, unless the clock was set and the order is lost.
func TestShipped(t *testing.T) {
	const histories, questions = 11 * 10, 100
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
			got := ""
			for _, l := range h.At(a, at) {
				got += l.Container
			}
			switch {
			case !h.Sure(a, at, at.Add(1)):
				counts[how.name].unknown++
			case got != want:
				t.Fatalf("history %d, %s: at %v %s was that of %q, and the log says %q\n%s", seed, how.name, at.Format(time.TimeOnly), a, want, got, w.about(a))
			default:
				counts[how.name].right++
			}
		}
	}
	for _, how := range shippers {
		c := counts[how.name]
		t.Logf("%-28s %6d right, %6d unknown", how.name, c.right, c.unknown)
		if c.unknown > 0 && !how.loses {
			t.Errorf("%s: %d answers are unknown, and no line is lost", how.name, c.unknown)
		}
		if c.right == 0 && how.name != "the clock, and any order" {
			t.Errorf("%s: no answer is right", how.name)
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
	booted time.Time
	offset time.Duration // of its clock
	leases map[netip.Addr]registry.Line
	files  [][]registry.Line // the oldest first
}

// skew is the largest difference of a clock from the true time.
const skew = 3 * time.Second

func newPast(seed uint64) *past {
	w := &past{rng: rand.New(rand.NewPCG(seed, 36)), begun: time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC), truth: map[netip.Addr][]tenure{}}
	w.now = w.begun
	for i := range 3 {
		w.nodes = append(w.nodes, &machine{id: fmt.Sprintf("i-%d", i), booted: w.begun.Add(-time.Hour), leases: map[netip.Addr]registry.Line{},
			offset: time.Duration(w.rng.Int64N(int64(2*skew))) - skew})
	}
	for i := range 10 {
		w.addrs = append(w.addrs, netip.AddrFrom4([4]byte{10, 0, 97, byte(30 + i)}))
	}
	return w
}

func (w *past) play() {
	for i := range 250 {
		w.now = w.now.Add(time.Duration(10+w.rng.IntN(60))*time.Second + time.Duration(w.rng.IntN(1e9)))
		n := w.nodes[w.rng.IntN(len(w.nodes))]
		switch r := w.rng.IntN(100); {
		case len(n.files) == 0 || r < 3:
			n.rotate(w.now)
		case r < 5:
			w.reboot(n)
		case r < 50:
			w.begin(n, fmt.Sprintf("c%d", i))
		case r < 95:
			w.end(n)
		default:
			n.write(w.snapshot(n)...)
		}
	}
	w.now = w.now.Add(time.Hour)
}

func (n *machine) clock(at time.Time) time.Time { return at.Add(n.offset) }

func (n *machine) write(lines ...registry.Line) {
	last := len(n.files) - 1
	n.files[last] = append(n.files[last], lines...)
}

func (n *machine) rotate(now time.Time) {
	n.files = append(n.files, nil)
	n.write((&past{now: now}).snapshot(n)...)
}

func (w *past) snapshot(n *machine) []registry.Line {
	lines := []registry.Line{{Time: n.clock(w.now), Event: registry.Snapshot, Instance: n.id, Booted: n.clock(n.booted), Leases: len(n.leases)}}
	for _, l := range n.leases {
		l.Since, l.Time, l.Event = l.Time, n.clock(w.now), registry.Held
		lines = append(lines, l)
	}
	return lines
}

func (w *past) begin(n *machine, container string) {
	a := w.addrs[w.rng.IntN(len(w.addrs))]
	if ls := w.truth[a]; len(ls) > 0 && (ls[len(ls)-1].to.IsZero() || w.now.Sub(ls[len(ls)-1].to) < 2*skew && w.rng.IntN(2) == 0) {
		return
	}
	w.truth[a] = append(w.truth[a], tenure{container: container, from: w.now})
	n.leases[a] = registry.Line{Time: n.clock(w.now), Event: registry.Begin, Address: a, Network: "pods", Namespace: "shop", Pod: "p-" + container,
		Container: container, Interface: "eth0", ENI: "eni-1", Instance: n.id}
	n.write(n.leases[a])
}

func (w *past) end(n *machine) {
	for _, a := range w.addrs {
		l, ok := n.leases[a]
		if !ok || w.rng.IntN(2) == 0 {
			continue
		}
		l.Since, l.Time, l.Event = l.Time, n.clock(w.now), registry.End
		n.write(l)
		delete(n.leases, a)
		w.over(a)
		return
	}
}

func (w *past) over(a netip.Addr) { ls := w.truth[a]; ls[len(ls)-1].to = w.now }

// reboot ends all leases of a node without a line. Its first change writes a snapshot, and then what it is about.
func (w *past) reboot(n *machine) {
	for a := range n.leases {
		w.over(a)
	}
	clear(n.leases)
	n.booted = w.now
	w.now = w.now.Add(time.Minute)
	i := len(n.files) - 1
	before := len(n.files[i])
	w.begin(n, fmt.Sprintf("boot%d", w.now.Unix()))
	began := slices.Clone(n.files[i][before:])
	n.files[i] = n.files[i][:before]
	w.now = w.now.Add(5 * time.Millisecond)
	n.write(w.snapshot(n)...)
	n.write(began...)
}

// question returns an address, a time that is not near a change of it, and the container that had it.
func (w *past) question() (netip.Addr, time.Time, string) {
	for {
		a := w.addrs[w.rng.IntN(len(w.addrs))]
		at := w.begun.Add(time.Duration(w.rng.Int64N(int64(w.now.Sub(w.begun)))))
		near := func(t time.Time) bool { return !t.IsZero() && at.Sub(t).Abs() < 3*skew }
		if at.Before(w.logged()) || slices.ContainsFunc(w.truth[a], func(l tenure) bool { return near(l.from) || near(l.to) }) {
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

// logged is when all nodes had a log.
func (w *past) logged() (latest time.Time) {
	for _, n := range w.nodes {
		if first := n.files[0][0].Time; first.After(latest) {
			latest = first
		}
	}
	return latest
}

func (w *past) about(a netip.Addr) (text string) {
	for _, n := range w.nodes {
		for _, l := range slices.Concat(n.files...) {
			if !l.Address.IsValid() || l.Address == a {
				text += string(encoded(l))
			}
		}
	}
	return text
}

func encoded(l registry.Line) []byte {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	return append(b, '\n')
}

// A shipper puts the logs of nodes into a directory.
type shipper struct {
	name  string
	loses bool
	ship  func(w *past, dir string)
}

var shippers = []shipper{
	{"as it is", false, func(w *past, dir string) { w.each(dir, func(n *machine, to string) { n.copy(to, len(n.files)) }) }},
	{"hourly copies", false, func(w *past, dir string) {
		w.each(dir, func(n *machine, to string) {
			for hour := 1; hour <= len(n.files); hour++ {
				n.copy(fmt.Sprintf("%s.h%02d", to, hour), hour)
			}
		})
	}},
	{"an image", false, func(w *past, dir string) { // other nodes were made from a used one, and have its log
		for i, n := range w.nodes {
			store(filepath.Join(dir, n.id, "leases.log"), slices.Concat(slices.Concat(w.nodes[0].files...), slices.Concat(w.nodes[i].files...)))
		}
	}},
	{"twice, in any order", false, func(w *past, dir string) { store(filepath.Join(dir, "all"), w.mixed(3)) }},
	{"nearly in order", false, func(w *past, dir string) {
		w.each(dir, func(n *machine, to string) {
			all := slices.Concat(n.files...)
			for range len(all) {
				i := w.rng.IntN(len(all) - 1)
				all[i], all[i+1] = all[i+1], all[i]
			}
			store(to, append(all, all[len(all)/2:]...))
		})
	}},
	{"cut, and sent again", false, func(w *past, dir string) { w.cut(dir, true) }},
	{"cut", true, func(w *past, dir string) { w.cut(dir, false) }},
	{"held lines lost", true, func(w *past, dir string) {
		store(filepath.Join(dir, "all"), slices.DeleteFunc(w.mixed(1), func(l registry.Line) bool { return l.Event == registry.Held && w.rng.IntN(20) == 0 }))
	}},
	{"a broken gzip", true, func(w *past, dir string) {
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
	{"the clock", false, func(w *past, dir string) {
		w.each(dir, func(n *machine, to string) { n.step(w); n.copy(to, len(n.files)); n.copy(to+".again", len(n.files)) })
	}},
	{"the clock, and any order", true, func(w *past, dir string) {
		for _, n := range w.nodes {
			n.step(w)
		}
		store(filepath.Join(dir, "all"), w.mixed(1))
	}},
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
func store(path string, lines []registry.Line) {
	must(os.MkdirAll(filepath.Dir(path), 0o700))
	var text []byte
	for _, l := range lines {
		text = append(text, encoded(l)...)
	}
	must(os.WriteFile(path, text, 0o600))
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
func (w *past) mixed(most int) (all []registry.Line) {
	for _, n := range w.nodes {
		for _, l := range slices.Concat(n.files...) {
			for range 1 + w.rng.IntN(most) {
				all = append(all, l)
			}
		}
	}
	w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// cut cuts some lines. If they are sent again, they are whole then.
func (w *past) cut(dir string, again bool) {
	w.each(dir, func(n *machine, to string) {
		var text []byte
		for i, l := range slices.Concat(n.files...) {
			line := encoded(l)
			if i > 0 && w.rng.IntN(15) == 0 {
				least := 1
				if again {
					least = bytes.IndexByte(line, ',') + 60
				}
				line = append(line[:min(len(line)-2, least+w.rng.IntN(len(line))/2):len(line)-2], '\n')
			}
			text = append(text, line...)
		}
		must(os.MkdirAll(filepath.Dir(to), 0o700))
		must(os.WriteFile(to, text, 0o600))
		if again {
			store(to+".again", slices.Concat(n.files...))
		}
	})
}

// step is as if the clock of a node had been wrong by an hour at first: from the first boot until the middle of its first lines.
func (n *machine) step(w *past) {
	booted := n.files[0][0].Booted
	i := slices.IndexFunc(n.files[0], func(l registry.Line) bool { return !l.Booted.IsZero() && l.Booted != booted })
	if i < 0 {
		i = len(n.files[0])
	}
	middle := max(i/2, 1)
	for middle < len(n.files[0]) && n.files[0][middle].Event == registry.Held {
		middle++
	}
	by := time.Hour
	if w.rng.IntN(2) == 0 {
		by = -by
	}
	for k := range n.files[0][:middle] {
		l := &n.files[0][k]
		l.Time = l.Time.Add(by)
		for _, t := range []*time.Time{&l.Since, &l.Booted} {
			if !t.IsZero() {
				*t = t.Add(by)
			}
		}
	}
	at := n.files[0][middle-1].Time.Add(-by).Add(time.Millisecond)
	n.files[0] = slices.Insert(n.files[0], middle, registry.Line{Time: at, Event: registry.Clock, Instance: n.id, Booted: booted})
}

// FuzzRead wants lines that come twice to say what they say once, and leases that end after they begin.
func FuzzRead(f *testing.F) {
	w := newPast(1)
	w.play()
	for _, n := range w.nodes {
		var text []byte
		for _, l := range n.files[0] {
			text = append(text, encoded(l)...)
		}
		f.Add(text[:min(len(text), 3000)])
	}
	f.Add([]byte(`{"time":"2026-11-24T14:00:00Z","event":"clock","booted":"2026-11-24T12:00:00Z","instance":"i-1"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		leases := func(times int) (all []Lease) {
			r := reader{logs: map[string]*log{}, known: map[name]bool{}}
			for range times {
				x := extent{instances: map[string]bool{}}
				r.extent(&x, "log", extent{}, eachLineOf(bytes.NewReader(text), r.into(&x, "log")))
			}
			h := newHistory(r.nodes())
			for a, ls := range h.leases {
				for _, l := range ls {
					if l.Address != a {
						t.Fatalf("%v is among the leases of %v", l, a)
					}
					if !l.End.IsZero() && l.End.Before(l.Begin) {
						t.Fatalf("it ends before it begins: %+v", l)
					}
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
