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

// Read reads logs: files, and all files in directories and below. The order of the paths does not
// matter. unread is the number of lines that are no lines of a log, as after a full disk.
func Read(paths ...string) (h *History, unread int, err error) {
	files, err := list(paths)
	if err != nil {
		return nil, 0, err
	}
	h = &History{nodes: map[string]*node{}}
	for _, f := range files {
		n, err := h.read(f.path)
		if err != nil {
			return nil, 0, err
		}
		unread += n
	}
	h.finish()
	return h, unread, nil
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
func list(paths []string) (files []logFile, err error) {
	for _, path := range paths {
		err := filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !d.Type().IsRegular() && file != path {
				return err
			}
			first, ok, err := firstLine(file)
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
		if t, ok := begun[f.name]; !ok || f.first.Before(t) {
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
	err = eachLine(path, func(text []byte) error {
		if empty = false; n == few {
			return io.EOF
		}
		n++
		if first, ok = parse(text); ok {
			return io.EOF
		}
		return nil
	})
	if errors.Is(err, bufio.ErrTooLong) {
		return first, false, nil // no text
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return first, ok || empty, err
}

func (h *History) read(path string) (unread int, err error) {
	err = eachLine(path, func(text []byte) error {
		line, ok := parse(text)
		if !ok {
			unread++
			return nil
		}
		id := cmp.Or(line.Instance, filepath.Dir(path)) // before the first lease, a node may not know who it is
		n := h.nodes[id]
		if n == nil {
			n = &node{leases: map[netip.Addr][]*Lease{}, open: map[netip.Addr]*Lease{}}
			h.nodes[id] = n
		}
		n.add(line)
		return nil
	})
	return unread, err
}

func parse(text []byte) (line registry.Line, ok bool) {
	err := json.Unmarshal(text, &line)
	return line, err == nil && line.Event != "" && !line.Time.IsZero()
}

// eachLine calls f with each line of a file that is not empty, until f fails.
func eachLine(path string, f func([]byte) error) error {
	in, err := Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if text := bytes.TrimSpace(lines.Bytes()); len(text) > 0 {
			if err := f(text); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
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
