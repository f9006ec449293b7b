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

// A Damage is a file or a line of a log that Read cannot read.
type Damage struct {
	File string
	Line int // 0: Read cannot read the file, or the rest of the file
	Why  error
}

// Read reads logs. A path is a file, or a directory with logs at any depth. The order of the paths does not matter.
// Read leaves out damaged lines and files, and returns a Damage for each.
func Read(paths ...string) (*History, []Damage, error) {
	r := newReader()
	files, err := r.listFiles(paths)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		r.readFile(f, func(line func(int, []byte) error) error { return eachLine(f.path, line) })
	}
	return r.newHistory(), r.damage, nil
}

// A reader reads the logs of nodes.
type reader struct {
	nodes     map[string]*node              // by instance
	series    map[string]*series            // by instance and name of the series
	seen      map[uint64]bool               // hashes of the lines that the reader has read
	logs      map[string]*fileState         // by name of the log
	fragments map[string]map[int]netip.Addr // address of a damaged line, by its series and its number
	damage    []Damage
	hasUnread bool // Read can read no line of a file, so the file may be the log of any node
}

func newReader() *reader {
	return &reader{nodes: map[string]*node{}, series: map[string]*series{}, seen: map[uint64]bool{},
		logs: map[string]*fileState{}, fragments: map[string]map[int]netip.Addr{}}
}

// A fileState is the state of the reader in one file. The reader also has a fileState for each log, but uses only its
// field "nodes".
type fileState struct {
	nodes         map[string]*node
	last          map[string]int // the last number of each series
	line          registry.Line  // the last line
	id            string         // key of the node that wrote the last line
	mixed         bool           // lines of the same series are not in the order of their numbers
	hasTorn       bool           // after the last line, there are damaged lines without a readable series or number
	fragmentNames []string       // the series that damaged lines name
	tornNotes     []func()       // each function records that a damaged line may come after some line: see noteTorn
}

func newContent() *fileState { return &fileState{nodes: map[string]*node{}, last: map[string]int{}} }

// newHistory makes a History from the lines of all files. The caller must have read all files.
func (r *reader) newHistory() *History {
	h, known := &History{hasUnread: r.hasUnread, known: map[netip.Addr]*tenancy{}}, map[string]bool{}
	for _, n := range r.nodes {
		for _, s := range n.series {
			s.lostAddrs = r.fragments[s.name]
			known[s.name] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.nodes)) {
		n := r.nodes[id]
		n.lost = slices.ContainsFunc(n.fragmentNames, func(name string) bool { return !known[name] })
		n.findHoles()
		h.nodes = append(h.nodes, n)
	}
	return h
}

// readFile reads the lines of a file. forLines calls a given function for each line.
//
// In two cases, the number of lost lines is unknown: no line of the file can be read, or its damaged lines cannot be
// assigned to one series. Then readFile sets endLost for each node that has a line in this file or in an earlier file
// of the same log. If there is no such node, the file may be the log of any node, and readFile sets hasUnread.
func (r *reader) readFile(f logFile, forLines func(line func(number int, text []byte) error) error) {
	c := newContent()
	err := forLines(func(number int, text []byte) error {
		if line, ok := parseLine(text); ok {
			// Before its first lease, a node may not know its instance. Then the directory of the file stands for the
			// node.
			r.addLine(c, cmp.Or(line.Instance, filepath.Dir(f.path)), line)
			return nil
		}
		r.damage = append(r.damage, Damage{f.path, number, errNoLine})
		r.addFragment(c, text)
		return nil
	})
	if err != nil {
		r.damage = append(r.damage, Damage{File: f.path, Why: err})
		c.hasTorn = true
	}
	r.noteTorn(c)
	for _, n := range c.nodes {
		n.fragmentNames = append(n.fragmentNames, c.fragmentNames...)
	}
	log := r.logs[f.name]
	if log == nil {
		log = newContent()
		r.logs[f.name] = log
	}
	maps.Copy(log.nodes, c.nodes)
	if c.hasTorn = c.hasTorn && len(c.nodes) == 0; c.hasTorn || (c.mixed || len(c.nodes) > 1) && len(c.tornNotes) > 0 {
		for _, n := range log.nodes {
			n.endLost = true
		}
		r.hasUnread = r.hasUnread || len(log.nodes) == 0
		return
	}
	for _, note := range c.tornNotes {
		note()
	}
}

var errNoLine = errors.New("it is no line of a lease log")

// addLine adds a line of a node. id is the key of the node in r.nodes. addLine ignores a line that it has added before.
func (r *reader) addLine(c *fileState, id string, line registry.Line) {
	n := r.nodes[id]
	if n == nil {
		n = &node{instance: line.Instance}
		r.nodes[id] = n
	}
	c.nodes[id] = n
	follows := c.line.Series == line.Series && line.Number <= c.line.Number+1 && line.Series != ""
	if c.hasTorn && follows {
		c.hasTorn = false // the numbers show that no line is lost before this line
	}
	r.noteTorn(c)
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

// addFragment reads as much as possible of a damaged line. If the line was about the begin or the end of a lease,
// addFragment keeps the line's address. Perhaps no other file has the line undamaged.
func (r *reader) addFragment(c *fileState, text []byte) {
	f := parseFragment(text)
	if f.Series != "" {
		c.fragmentNames = append(c.fragmentNames, f.Series)
	}
	switch {
	case f.Series != "" && !isChange(f):
		// Do nothing for a line of a snapshot, because the snapshot's first line shows how many lines follow.
	case f.Series != "" && f.Number > 0 && isChange(f):
		if r.fragments[f.Series] == nil {
			r.fragments[f.Series] = map[int]netip.Addr{}
		}
		r.fragments[f.Series][f.Number] = f.Address
	case c.id != "" && c.line.Series == "":
		r.nodes[c.id].lastOld().tornNumber++
	default:
		c.hasTorn = true
	}
}

// noteTorn adds a function to c.tornNotes if c.hasTorn is true. The function records that a damaged line may come after
// c.line, in the same series. readFile may call the function after it has read the whole file.
func (r *reader) noteTorn(c *fileState) {
	if !c.hasTorn || len(c.nodes) == 0 {
		return
	}
	c.hasTorn = false
	if c.id == "" {
		// The damage is before the first readable line. The number of that line shows what is lost. The empty function
		// only tells readFile that there is damage.
		c.tornNotes = append(c.tornNotes, func() {})
		return
	}
	s, number := r.series[c.id+" "+c.line.Series], c.line.Number+1
	if s == nil { // an earlier release wrote the last line
		s = r.nodes[c.id].lastOld()
		number = s.tornNumber + 1
	}
	c.tornNotes = append(c.tornNotes, func() { s.tornNumber = max(s.tornNumber, number) })
}

// parseFragment decodes the JSON members at the beginning of a damaged line.
func parseFragment(text []byte) (line registry.Line) {
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

type logFile struct {
	path  string
	first time.Time // the time of its first line
	name  string    // name of the log: the path, without .gz and without the number of the rotation
	age   int       // the number of the rotation
}

// rotatedName matches the path of an older file of a log, which has a number at its end.
var rotatedName = regexp.MustCompile(`^(.*)\.(\d+)(?:\.gz)?$`)

func newLogFile(path string, first time.Time) logFile {
	f := logFile{path: path, first: first, name: strings.TrimSuffix(path, ".gz")}
	if m := rotatedName.FindStringSubmatch(path); m != nil {
		f.name = m[1]
		f.age, _ = strconv.Atoi(m[2])
	}
	return f
}

// Rotated reports whether the file at path is an older file of a log. The older file may be compressed. The argument
// "log" is the path of the log's newest file. Other programs may keep files with similar names beside a log.
func Rotated(path, log string) bool { return path != log && newLogFile(path, time.Time{}).name == log }

// listFiles returns the log files at the paths, in the order of sortFiles. In a directory, listFiles leaves out files
// that do not begin like a log. It keeps files that it cannot read, because they may be logs. A path that is no
// directory must be a log.
func (r *reader) listFiles(paths []string) (files []logFile, err error) {
	for _, path := range paths {
		fi, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, err
		case fi.IsDir():
			path += "/" // otherwise WalkDir does not follow a symbolic link
		case !fi.Mode().IsRegular():
			return nil, fmt.Errorf("%s is no regular file: this command reads each log twice, so write this log to a "+
				"file first", path)
		}
		err = filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
			switch {
			case err != nil && file != path:
				r.damage, r.hasUnread = append(r.damage, Damage{File: file, Why: err}), true
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
	return sortFiles(files), nil
}

// sortFiles sorts files by the time at which they were written. Within one log, the numbers in the names of the files
// show the order. Several logs are in the order of their first lines' times.
func sortFiles(files []logFile) []logFile {
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

// firstLine returns the first line of a log, and reports whether the file is a log. A log is empty, or one of its first
// ten lines is a line of a log.
func firstLine(path string) (first registry.Line, ok bool, err error) {
	const few = 10
	empty, n := true, 0
	err = eachLine(path, func(_ int, text []byte) error {
		if empty = false; n == few {
			return io.EOF
		}
		n++
		if first, ok = parseLine(text); ok {
			return io.EOF
		}
		return nil
	})
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return first, ok || empty && err == nil, err
}

func parseLine(text []byte) (line registry.Line, ok bool) {
	err := json.Unmarshal(text, &line)
	for _, t := range []*time.Time{&line.Time, &line.Since, &line.Missing, &line.Booted} {
		*t = t.UTC() // so that == is true for equal times
	}
	known := eventOrder(line) >= 0 || line.Event == registry.Clock
	return line, err == nil && known && !line.Time.IsZero() && line.Address.IsValid() == (isChange(line) ||
		line.Event == registry.Held)
}

// mostLine is the greatest length of a line, in bytes. The reader ignores the rest of a longer line.
const mostLine = 1 << 20

// eachLine calls f with the number and the text of each line that is not empty, until f returns an error. If a line is
// longer than mostLine, f gets only the beginning of the line.
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
		if errors.Is(err, io.EOF) { // not io.ErrUnexpectedEOF, which means that the file's end is missing
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
		return openedFile{in, f}, nil
	}
	plain, err := gzip.NewReader(in)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return openedFile{plain, f}, nil
}

// An openedFile is an open file. If the file is compressed, the Reader decompresses it.
type openedFile struct {
	io.Reader
	io.Closer
}
