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
	Line int // 0: the file cannot be read from some line on
	Why  error
}

// Read reads logs: files, and all files in directories and below. The order of the paths does not matter. Read leaves
// out damaged lines and files, and returns each of them as a Damage.
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
	series    map[string]*series // by the instance and the name of the series
	seen      map[uint64]bool    // hashes of the lines that were read
	logs      map[string]*content
	fragments map[string]map[int]netip.Addr // the addresses of damaged lines, by series and number
	damage    []Damage
	unread    bool // nothing is known of a file, so it may be the log of any node
}

func newReader() *reader {
	return &reader{nodes: map[string]*node{}, series: map[string]*series{}, seen: map[uint64]bool{},
		logs: map[string]*content{}, fragments: map[string]map[int]netip.Addr{}}
}

// A content is the state of the reader in one file, or in the files of one log.
type content struct {
	nodes   map[string]*node
	last    map[string]int // the last number of each series
	line    registry.Line  // the last line
	id      string         // the instance of the last line's node
	mixed   bool           // the lines of a series are not in the order of their numbers
	pending bool           // lines after the last line are damaged, and no fragment identifies them
	named   []string       // names of the series that have fragments
	torn    []func()       // each call notes that a damaged line may follow the last line of a series
}

func newContent() *content { return &content{nodes: map[string]*node{}, last: map[string]int{}} }

// history makes a History from the lines of all files. The caller must have read all files.
func (r *reader) history() *History {
	h, known := &History{unread: r.unread, known: map[netip.Addr]*tenancy{}}, map[string]bool{}
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

// take reads the lines of a file. If take cannot read any line, the nodes in the earlier files of the same log count as
// cut (see node). If there are no such nodes, the file may be the log of any node. The nodes also count as cut if take
// cannot assign damaged lines of a file to one series.
func (r *reader) take(f logFile, each func(line func(number int, text []byte) error) error) {
	c := newContent()
	err := each(func(number int, text []byte) error {
		if line, ok := parse(text); ok {
			// before the first lease, a node may not know its instance
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
		r.unread = r.unread || len(log.nodes) == 0
		return
	}
	for _, note := range c.torn {
		note()
	}
}

var errNoLine = errors.New("it is no line of a lease log")

// add adds a line of a node. It ignores a line that it has read before: a program that copies logs may have sent it
// twice.
func (r *reader) add(c *content, id string, line registry.Line) {
	n := r.nodes[id]
	if n == nil {
		n = &node{instance: line.Instance}
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

// addFragment adds the fragment that remains of a damaged line. If the line was a begin or an end of a lease,
// addFragment keeps the address of the line, because perhaps no other file has this line.
func (r *reader) addFragment(c *content, text []byte) {
	f := fragment(text)
	if f.Series != "" {
		c.named = append(c.named, f.Series)
	}
	switch {
	case f.Series != "" && !changes(f): // a line of a snapshot: the snapshot's number of leases shows the loss
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

// note adds a function to c.torn if damaged lines are pending. The function notes that a damaged line may follow the
// last line, in the series of the last line.
func (r *reader) note(c *content) {
	if !c.pending || len(c.nodes) == 0 {
		return
	}
	c.pending = false
	if c.id == "" { // no line is before the damage: the number of the next line shows a loss
		c.torn = append(c.torn, func() {})
		return
	}
	s, number := r.series[c.id+" "+c.line.Series], c.line.Number+1
	if s == nil { // the last line is of an earlier release
		s = r.nodes[c.id].lastOld()
		number = s.number + 1
	}
	c.torn = append(c.torn, func() { s.number = max(s.number, number) })
}

// fragment reads the JSON members that remain of a damaged line.
func fragment(text []byte) (line registry.Line) {
	const most = 1 << 10 // the members that identify a line are at its beginning
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
	first time.Time // the time of its first line
	name  string    // name of the log: the path without the number of the rotation
	age   int       // the number of the rotation
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

// Rotated reports whether a path is that of an older file of a log, perhaps compressed. Other programs may keep files
// with similar names beside the log, for example a shipper.
func Rotated(path, log string) bool { return path != log && newLogFile(path, time.Time{}).name == log }

// list finds the files of logs, and sorts them. In a directory, it leaves out files that do not begin like a log. It
// keeps a file that cannot be read, because the file may be a log. A path that is a file must be a log.
func (r *reader) list(paths []string) (files []logFile, err error) {
	for _, path := range paths {
		fi, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, err
		case fi.IsDir():
			path += "/" // otherwise WalkDir does not follow a symbolic link
		case !fi.Mode().IsRegular():
			return nil, fmt.Errorf("%s is no file: logs are read twice, so write this log to a file first", path)
		}
		err = filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
			switch {
			case err != nil && file != path:
				r.damage, r.unread = append(r.damage, Damage{File: file, Why: err}), true
				return nil
			case err != nil || d.IsDir() || !d.Type().IsRegular() && file != path:
				return err
			}
			first, ok, err := firstLine(file)
			if file == path && err == nil && !ok {
				return fmt.Errorf("%s is no lease log: none of its first ten lines has a time and an event", file)
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
		return nil, fmt.Errorf("there is no lease log in %q", paths)
	}
	return inOrder(files), nil
}

// inOrder sorts files in the order in which they were written. The files of one log have numbers. Different logs may
// also be of one node: the times of their first lines give their order.
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

// firstLine returns the first line of a log. ok reports whether one of the file's first ten lines is a line of a log.
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
		*t = t.UTC() // so that == is true for equal times
	}
	known := place(line) >= 0 || line.Event == registry.Clock
	return line, err == nil && known && !line.Time.IsZero() && line.Address.IsValid() == (changes(line) ||
		line.Event == registry.Held)
}

// mostLine is how many bytes a line may have.
const mostLine = 1 << 20

// eachLine calls f with the number and the text of each line that is not empty, until f fails. If a line is too long, f
// gets the beginning of the line.
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
		if errors.Is(err, io.EOF) { // io.ErrUnexpectedEOF is an error: the end of the file is missing
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

// opened reads from its Reader, and closes its Closer.
type opened struct {
	io.Reader
	io.Closer
}
