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

// TestShipped reads logs of several nodes as log shippers deliver them: with repeated, reordered and cut lines, and in
// damaged files. Each answer must be right or unknown. If no line is lost, an answer may be unknown only if the clock
// was set and the order of the lines is lost.
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
			// The address was found in use by an unknown pod.
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

// A past has the events on some nodes, and the logs that the nodes have written.
type past struct {
	rng   *rand.Rand
	now   time.Time // the true time
	begun time.Time
	nodes []*machine
	addrs []netip.Addr
	truth map[netip.Addr][]tenure
}

// A tenure is the time during which a container had an address.
type tenure struct {
	container string
	from, to  time.Time // if to is zero, the container still has the address
}

// A machine is a node that writes a log.
type machine struct {
	id     string
	booted time.Time     // the true time
	offset time.Duration // difference of the node's clock from the true time
	boots  int
	leases map[netip.Addr]registry.Line
	files  [][]string // lines of each file, the oldest file first
	series string
	number int
	after  string
	count  int // number of series
}

// skew is the largest difference between the true time and a clock that a program has set.
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

// offset returns the random offset of a clock that a program has set.
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
		w.step(n, w.offset()) // in the end, all clocks are right
	}
	w.now = w.now.Add(time.Hour)
}

func (w *past) stamp(n *machine) time.Time { return w.now.Add(n.offset) }

// begin begins a new series of the log.
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

// change writes a line about the change of a lease.
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

// mistake gives the clock of a booting node, in half of the cases, an offset of several hours. The offset stays until a
// program sets the clock.
func (n *machine) mistake(rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		n.offset = time.Duration(rng.IntN(20)-10) * time.Hour
	}
}

// reboot ends all leases of a node without a line in the log.
func (w *past) reboot(n *machine) {
	w.step(n, w.offset()) // first: only later lines of a series can correct the times of its earlier lines
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

// lose deletes and rebuilds the registry of a node. The new registry lacks the pods' names. One pod may end before the
// rebuild, so the new registry does not have its lease.
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

// step sets the clock of a node. The registry moves its recorded times by the same difference.
func (w *past) step(n *machine, offset time.Duration) {
	for a, l := range n.leases {
		l.Time = l.Time.Add(offset - n.offset)
		n.leases[a] = l
	}
	n.offset = offset
	n.begin()
	w.snapshot(n)
}

// killed cuts the last line of the log, as if a process was killed while it wrote this line. The next process writes
// the whole line again.
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

// question returns an address, a time, and the container that had the address at this time. The time is not near a
// change of the address's lease.
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

// logged returns a time from which all nodes have a log.
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

// A shipper copies the logs of the nodes into a directory, as a program or a fault delivers them.
type shipper struct {
	name string
	most int // maximum percentage of unknown answers
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
	{"an image", 1, func(w *past, dir string) { // nodes begin with the disk image of a used node, and so with its log
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
			last := len(all) - 1 // the last line stays, because no reader can know that a line is missing after it
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

// whole returns the lines that are complete.
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

// copy writes the first files of a log, with the names that logrotate gives them.
func (n *machine) copy(to string, files int) {
	for i, lines := range n.files[:files] {
		name := to
		if age := files - 1 - i; age > 0 {
			name = fmt.Sprintf("%s.%d", to, age)
		}
		store(name, lines)
	}
}

// mixed returns the lines of all nodes in random order. Each line occurs between 1 and most times.
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

// cut cuts some lines at a random byte, but not before the byte least. If again is true, the whole line may follow.
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

// FuzzRead checks two things: repeated lines do not change the result, and each lease ends after its begin.
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

// told returns leases as text.
func told(ls []*Lease) (text string) {
	for _, l := range ls {
		text += fmt.Sprintf("%s %q from %s to %s\n", l.Instance, l.Container, l.Begin.Format(time.TimeOnly),
			l.End.Format(time.TimeOnly))
	}
	return text
}
