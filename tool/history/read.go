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
	r := reader{logs: map[string]*log{}, known: map[name]bool{}}
	files, err := r.list(paths)
	if err != nil {
		return nil, nil, err
	}
	for i, f := range files {
		var older extent // of the same log
		if i > 0 && files[i-1].name == f.name {
			older = r.last
		}
		r.read(f.path, older)
	}
	return newHistory(r.nodes()), r.damage, nil
}

// A reader reads the logs of nodes.
type reader struct {
	logs   map[string]*log // by the instance
	known  map[name]bool   // the lines that have been read
	last   extent          // the file that was read last
	files  []extent        // with damaged lines
	damage []Damage
}

// A log has the lines of a node, each once.
type log struct {
	lines []registry.Line
	seen  map[uint64]bool
}

// An extent is what a file with damaged lines is about.
type extent struct {
	instances   map[string]bool
	first, last time.Time
	fragments   []fragment
}

var seed = maphash.MakeSeed()

// nodes are the nodes of the logs, by their instances.
func (r *reader) nodes() map[string]*node {
	all := map[string]*node{}
	for id, l := range r.logs {
		sure := inTurn(l.lines)
		n := &node{leases: map[netip.Addr][]*Lease{}, open: map[netip.Addr]*Lease{}, gaps: r.gaps(id)}
		for _, line := range l.lines {
			n.add(line)
		}
		n.closeMissing()
		if !sure {
			n.doubt()
		}
		all[id] = n
	}
	return all
}

// gaps are what is lost of a node. A fragment of a line that another file has whole is no loss.
func (r *reader) gaps(id string) (gaps []gap) {
	for _, x := range r.files {
		if !x.instances[id] {
			continue
		}
		for _, f := range x.fragments {
			g := gap{addr: f.line.Address, from: f.line.Time, last: f.line.Time}
			switch {
			case f.rest:
				g.from, g.last = x.last.Add(-slack), x.last
			case f.line.Time.IsZero():
				g.from, g.last = x.first, x.last
			}
			if !f.names() || !r.known[nameOf(f.line)] {
				gaps = append(gaps, g)
			}
		}
	}
	return gaps
}

// read reads a file. If nothing of it can be read, it is about what the older file is about.
func (r *reader) read(path string, older extent) {
	x := extent{instances: map[string]bool{}}
	r.extent(&x, path, older, eachLine(path, r.into(&x, path)))
}

// into returns what reads a line of a file.
func (r *reader) into(x *extent, path string) func(number int, text []byte) error {
	return func(number int, text []byte) error {
		line, ok := parse(text)
		if !ok {
			r.damage = append(r.damage, Damage{path, number, errNoLine})
			x.fragments = append(x.fragments, newFragment(text))
			return nil
		}
		id := cmp.Or(line.Instance, filepath.Dir(path)) // before the first lease, a node may not know who it is
		x.add(id, line.Time)
		r.add(id, line)
		return nil
	}
}

// extent notes what a file is about, once it has been read.
func (r *reader) extent(x *extent, path string, older extent, err error) {
	if err != nil {
		r.damage = append(r.damage, Damage{File: path, Why: err})
		if len(x.instances) == 0 {
			*x = extent{instances: older.instances, first: older.last, last: older.last, fragments: x.fragments}
		}
		x.fragments = append(x.fragments, fragment{rest: true})
	}
	r.last = *x
	if len(x.fragments) > 0 {
		r.files = append(r.files, *x)
	}
}

var errNoLine = errors.New("it is no line of a lease log")

func (x *extent) add(id string, at time.Time) {
	x.instances[id] = true
	if x.first.IsZero() || at.Before(x.first) {
		x.first = at
	}
	if at.After(x.last) {
		x.last = at
	}
}

// add adds a line of a node, unless a shipper has sent it before.
func (r *reader) add(id string, line registry.Line) {
	l := r.logs[id]
	if l == nil {
		l = &log{seen: map[uint64]bool{}}
		r.logs[id] = l
	}
	hash := maphash.Comparable(seed, line)
	if l.seen[hash] {
		return
	}
	l.seen[hash] = true
	l.lines = append(l.lines, line)
	r.known[nameOf(line)] = true
}

// A logFile is a file of a log.
type logFile struct {
	path  string
	first time.Time // of its lines
	name  string    // of the log: the path without the number that a rotation has given
	age   int       // that number
}

// rotated finds the number that a rotation has put behind a name.
var rotated = regexp.MustCompile(`^(.*)\.(\d+)(?:\.gz)?$`)

func newLogFile(path string, first time.Time) logFile {
	f := logFile{path: path, first: first, name: strings.TrimSuffix(path, ".gz")}
	if m := rotated.FindStringSubmatch(path); m != nil {
		f.name = m[1]
		f.age, _ = strconv.Atoi(m[2])
	}
	return f
}

// list finds the logs. A file of a directory that does not begin as a log is none. Of the paths
// themselves, each must be one.
func (r *reader) list(paths []string) (files []logFile, err error) {
	for _, path := range paths {
		err := filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
			if err != nil && file != path {
				r.damage = append(r.damage, Damage{File: file, Why: err})
				return nil
			}
			if err != nil || d.IsDir() || !d.Type().IsRegular() && file != path {
				return err
			}
			first, ok, err := firstLine(file)
			if err != nil && !ok && file != path {
				if rotated.MatchString(file) {
					files = append(files, newLogFile(file, time.Time{}))
				} else {
					r.damage = append(r.damage, Damage{File: file, Why: err})
				}
				return nil
			}
			if ok {
				err = nil // to read the file finds it again
			}
			if err == nil && !ok && file == path {
				err = fmt.Errorf("%s is no lease log: no line of it has a time and an event", file)
			}
			if err == nil && ok {
				files = append(files, newLogFile(file, first.Time))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%q: there is no lease log", paths)
	}
	return inOrder(files), nil
}

// inOrder sorts files as they were written. Those of one log have numbers. Others may be of one
// node, too, and then their first lines tell.
func inOrder(files []logFile) []logFile {
	begun := map[string]time.Time{}
	for _, f := range files {
		if t, ok := begun[f.name]; !ok || t.IsZero() || f.first.Before(t) && !f.first.IsZero() {
			begun[f.name] = f.first
		}
	}
	slices.SortFunc(files, func(a, b logFile) int {
		return cmp.Or(begun[a.name].Compare(begun[b.name]), cmp.Compare(a.name, b.name), b.age-a.age, cmp.Compare(a.path, b.path))
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
	return line, err == nil && rank(line) >= 0 && !line.Time.IsZero()
}

// mostLine is how long a line may be.
const mostLine = 1 << 20

// eachLine calls f with each line of a file that is not empty, and its number, until f fails. Of a line that is too long, f gets the
// beginning.
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
