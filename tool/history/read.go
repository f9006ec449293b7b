// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package history

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A Damage is a file or a line of a log that cannot be read.
type Damage struct {
	File string
	Line int // 0: the file, from some line on
	Why  error
}

// Read reads logs: files, and all files in directories and below. The order of the paths does not
// matter. What is damaged is left out, and the rest counts.
func Read(paths ...string) (*History, []Damage, error) {
	r := newReader()
	files, err := r.list(paths)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		r.take(f, func(line func(int, []byte) error) error { return eachLine(f.path, line) })
	}
	return r.history(), r.damage, nil
}

// A reader reads the logs of nodes.
type reader struct {
	nodes     map[string]*node   // by the instance
	series    map[string]*series // by the instance and the name
	seen      map[uint64]bool    // lines, by their hashes
	logs      map[string]*content
	fragments map[string]map[int]netip.Addr // lines of which a part is left: by series and number, the address
	damage    []Damage
}

func newReader() *reader {
	return &reader{nodes: map[string]*node{}, series: map[string]*series{}, seen: map[uint64]bool{},
		logs: map[string]*content{}, fragments: map[string]map[int]netip.Addr{}}
}

// A content is what is in one file, or in the files of one log.
type content struct {
	nodes   map[string]*node
	last    map[string]int // the last number of each series
	line    registry.Line  // the last one
	id      string         // of its node
	mixed   bool           // the lines are in no order
	pending bool           // lines behind the last one are damaged, and nothing is left of them that names them
	named   []string       // series of which there are fragments
	torn    []func()       // each notes that a damaged line may be behind a series' last one
}

func newContent() *content { return &content{nodes: map[string]*node{}, last: map[string]int{}} }

// history is what the lines say, once all are read.
func (r *reader) history() *History {
	h, known := &History{known: map[netip.Addr]*tenancy{}}, map[string]bool{}
	for _, n := range r.nodes {
		for _, s := range n.series {
			s.lost = r.fragments[s.name]
			known[s.name] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.nodes)) {
		n := r.nodes[id]
		n.lost = slices.ContainsFunc(n.named, func(name string) bool { return !known[name] })
		n.finish()
		h.nodes = append(h.nodes, n)
	}
	return h
}

// take takes the lines of a file. If nothing of the file can be read, the file counts as part of the same history as
// the rest of its log.
func (r *reader) take(f logFile, each func(line func(number int, text []byte) error) error) {
	c := newContent()
	err := each(func(number int, text []byte) error {
		if line, ok := parse(text); ok {
			// before the first lease, a node may not know who it is
			r.add(c, cmp.Or(line.Instance, filepath.Dir(f.path)), line)
			return nil
		}
		r.damage = append(r.damage, Damage{f.path, number, errNoLine})
		r.addFragment(c, text)
		return nil
	})
	if err != nil {
		r.damage = append(r.damage, Damage{File: f.path, Why: err})
		c.pending = true
	}
	r.note(c)
	for _, n := range c.nodes {
		n.named = append(n.named, c.named...)
	}
	log := r.logs[f.name]
	if log == nil {
		log = newContent()
		r.logs[f.name] = log
	}
	maps.Copy(log.nodes, c.nodes)
	if c.pending = c.pending && len(c.nodes) == 0; c.pending || (c.mixed || len(c.nodes) > 1) && len(c.torn) > 0 {
		for _, n := range log.nodes {
			n.cut = true
		}
		return
	}
	for _, note := range c.torn {
		note()
	}
}

var errNoLine = errors.New("it is no line of a lease log")

// add adds a line of a node, unless a shipper has sent it before.
func (r *reader) add(c *content, id string, line registry.Line) {
	n := r.nodes[id]
	if n == nil {
		n = &node{}
		r.nodes[id] = n
	}
	c.nodes[id] = n
	follows := c.line.Series == line.Series && line.Number <= c.line.Number+1 && line.Series != ""
	if c.pending && follows {
		c.pending = false // the numbers show that nothing is lost there
	}
	r.note(c)
	c.line, c.id = line, id
	hash := maphash.Comparable(seed, line)
	if r.seen[hash] {
		return
	}
	r.seen[hash] = true
	if line.Series == "" {
		n.addOld(line)
		return
	}
	key := id + " " + line.Series
	c.mixed = c.mixed || line.Number < c.last[key]
	c.last[key] = line.Number
	s := r.series[key]
	if s == nil {
		s = newSeries(line.Series)
		r.series[key] = s
		n.series = append(n.series, s)
	}
	s.lines = append(s.lines, line)
}

// addFragment adds what is left of a line. A fragment that names a change shows of which address a line is lost, if it
// is lost.
func (r *reader) addFragment(c *content, text []byte) {
	f := fragment(text)
	if f.Series != "" {
		c.named = append(c.named, f.Series)
	}
	switch {
	case f.Series != "" && !changes(f): // the numbers show what a snapshot lacks
	case f.Series != "" && f.Number > 0 && changes(f):
		if r.fragments[f.Series] == nil {
			r.fragments[f.Series] = map[int]netip.Addr{}
		}
		r.fragments[f.Series][f.Number] = f.Address
	case c.id != "" && c.line.Series == "":
		r.nodes[c.id].lastOld().number++
	default:
		c.pending = true
	}
}

// note notes the damage behind the last line, which may be the end of a series.
func (r *reader) note(c *content) {
	if !c.pending || len(c.nodes) == 0 {
		return
	}
	c.pending = false
	if c.id == "" { // no line is before it: if it is lost, the number of the next line shows it
		c.torn = append(c.torn, func() {})
		return
	}
	s, number := r.series[c.id+" "+c.line.Series], c.line.Number+1
	if s == nil { // of an earlier release
		s = r.nodes[c.id].lastOld()
		number = s.number + 1
	}
	c.torn = append(c.torn, func() { s.number = max(s.number, number) })
}

// fragment reads the members that are left of a line.
func fragment(text []byte) (line registry.Line) {
	const most = 1 << 10 // what names a line is at its beginning
	text = text[:min(len(text), most)]
	for i := bytes.LastIndexByte(text, ','); i > 0; i = bytes.LastIndexByte(text[:i], ',') {
		if json.Unmarshal(append(slices.Clone(text[:i]), '}'), &line) == nil {
			return line
		}
		line = registry.Line{}
	}
	return line
}

var seed = maphash.MakeSeed()

// A logFile is a file of a log.
type logFile struct {
	path  string
	first time.Time // of its lines
	name  string    // of the log: the path without the number that a rotation has given
	age   int       // that number
}

// rotated finds the number that a rotation has put after a name.
var rotated = regexp.MustCompile(`^(.*)\.(\d+)(?:\.gz)?$`)

func newLogFile(path string, first time.Time) logFile {
	f := logFile{path: path, first: first, name: strings.TrimSuffix(path, ".gz")}
	if m := rotated.FindStringSubmatch(path); m != nil {
		f.name = m[1]
		f.age, _ = strconv.Atoi(m[2])
	}
	return f
}

// list finds the logs. A file of a directory that does not begin as a log is none, but what cannot be read may be a
// log. Of the paths themselves, each must be one.
func (r *reader) list(paths []string) (files []logFile, err error) {
	for _, path := range paths {
		err := filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
			switch {
			case err != nil && file != path:
				r.damage = append(r.damage, Damage{File: file, Why: err})
				return nil
			case err != nil || d.IsDir() || !d.Type().IsRegular() && file != path:
				return err
			}
			first, ok, err := firstLine(file)
			if file == path && err == nil && !ok {
				return fmt.Errorf("%s is no lease log: no line of it has a time and an event", file)
			}
			if ok || err != nil {
				files = append(files, newLogFile(file, first.Time))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if len(files) == 0 && len(r.damage) == 0 {
		return nil, fmt.Errorf("%q: there is no lease log", paths)
	}
	return inOrder(files), nil
}

// inOrder sorts files as they were written. The files of one log have numbers. Files of different logs may be of one
// node, too, and then their first lines tell.
func inOrder(files []logFile) []logFile {
	begun := map[string]time.Time{}
	for _, f := range files {
		if t, ok := begun[f.name]; !ok || t.IsZero() || f.first.Before(t) && !f.first.IsZero() {
			begun[f.name] = f.first
		}
	}
	slices.SortFunc(files, func(a, b logFile) int {
		return cmp.Or(begun[a.name].Compare(begun[b.name]), cmp.Compare(a.name, b.name), b.age-a.age,
			cmp.Compare(a.path, b.path))
	})
	return slices.CompactFunc(files, func(a, b logFile) bool { return a.path == b.path })
}

// firstLine returns the first line of a log. ok is whether the file has one among its first lines.
// An empty file counts as a log.
func firstLine(path string) (first registry.Line, ok bool, err error) {
	const few = 10
	empty, n := true, 0
	err = eachLine(path, func(_ int, text []byte) error {
		if empty = false; n == few {
			return io.EOF
		}
		n++
		if first, ok = parse(text); ok {
			return io.EOF
		}
		return nil
	})
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return first, ok || empty && err == nil, err
}

func parse(text []byte) (line registry.Line, ok bool) {
	err := json.Unmarshal(text, &line)
	for _, t := range []*time.Time{&line.Time, &line.Since, &line.Missing, &line.Booted} {
		*t = t.UTC() // so that equal times are the same
	}
	known := place(line) >= 0 || line.Event == registry.Clock
	return line, err == nil && known && !line.Time.IsZero() && line.Address.IsValid() == (changes(line) ||
		line.Event == registry.Held)
}

// mostLine is how long a line may be.
const mostLine = 1 << 20

// eachLine calls f with each line of a file that is not empty, and its number, until f fails. Of a line that is too
// long, f gets the beginning.
func eachLine(path string, f func(number int, text []byte) error) error {
	in, err := Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := eachLineOf(in, f); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

func eachLineOf(in io.Reader, f func(number int, text []byte) error) error {
	lines := bufio.NewReaderSize(in, mostLine)
	for number := 1; ; number++ {
		text, err := lines.ReadSlice('\n')
		if text = bytes.TrimSpace(text); len(text) > 0 {
			if err := f(number, text); err != nil {
				return err
			}
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = lines.ReadSlice('\n')
		}
		if errors.Is(err, io.EOF) { // and not io.ErrUnexpectedEOF
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Open opens a file, which gzip may have compressed.
func Open(path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	in := bufio.NewReader(f)
	if magic, _ := in.Peek(2); !bytes.Equal(magic, []byte{0x1f, 0x8b}) { // RFC 1952, section 2.3.1
		return opened{in, f}, nil
	}
	plain, err := gzip.NewReader(in)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return opened{plain, f}, nil
}

// opened reads from the one, and closes the other.
type opened struct {
	io.Reader
	io.Closer
}
