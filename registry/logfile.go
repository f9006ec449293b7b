// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// mostUnwritten is how many lines wait in the registry if the log cannot be written. The oldest go.
// Leases whose end is lost then end with a later snapshot.
const mostUnwritten = 256

// An appending has the lines that a change appends to the log after it has replaced the registry.
type appending struct {
	file *os.File
	text []byte
	off  func() // ends a log that the configuration has no more
}

// prepareLog opens the log if the change has lines for it, and puts the lines into the registry. Without a log,
// prepareLog does nothing. In the usual case it costs an open(2), an fstat(2), a write(2) and a close(2).
func (s *State) prepareLog() (w appending) {
	w.off = s.endLeft
	if s.Log.File == "" || len(s.events) == 0 && !s.checkLog && !s.stepped {
		return w
	}
	f, size, err := openLog(s.Log.File)
	begins := s.Log.Series == "" || s.stepped
	if begins {
		s.Log.begin(s.Instance.ID, f, size)
	}
	s.number()
	if err != nil {
		s.postpone(err)
		return w
	}
	broken := size == 0 || size != s.Log.Size
	if !broken && !begins && len(s.events) == 0 {
		f.Close()
		return w
	}
	text := s.logText(broken, broken || begins)
	if size > 0 && size+len(text) > s.Log.MaxSize<<20 {
		f.Close()
		if f, err = s.Log.rotate(); err != nil {
			s.postpone(err)
			return w
		}
		size, text = 0, s.logText(broken, true)
	}
	if broken {
		last := s.LogLines[max(0, len(s.LogLines)-mostUnwritten):] // the disk may be full for days
		s.events = append(slices.Clip(last), s.events...)
	}
	if size > 0 && broken && !endsLine(f, size) {
		text = append([]byte("\n"), text...)
	}
	s.LogLines, s.Log.Size = s.events, size+len(text)
	w.file, w.text = f, text
	return w
}

// logText is what the change appends. If the log is broken, because it is empty or may lack lines, that includes the
// lines of the last change. A reader that has these lines already recognizes them.
func (s *State) logText(broken, snapshot bool) []byte {
	text := []byte{}
	if broken {
		text = appendLines(text, s.LogLines)
	}
	if snapshot {
		text = appendLines(text, s.snapshot())
	}
	return appendLines(text, s.events)
}

// postpone keeps the lines in the registry, because the log cannot be opened.
func (s *State) postpone(err error) {
	warnLog(s.Log.File, err)
	s.LogLines = append(s.LogLines, s.events...)
	s.LogLines = s.LogLines[max(0, len(s.LogLines)-mostUnwritten):]
	s.Log.Size = -1
}

// Unwritten returns how many lines wait in the registry because the log cannot be written. Then the size of the log is
// not the one in the registry.
func (s *State) Unwritten() int {
	if fi, err := os.Stat(s.Log.File); s.Log.File == "" || err == nil && int(fi.Size()) == s.Log.Size {
		return 0
	}
	return len(s.LogLines)
}

func warnLog(file string, err error) {
	slog.Warn("the lease log cannot be written: its lines wait in the registry, and cni-tool whois does "+
		"not see them yet", "file", file, "because", err)
}

// append appends the lines. No other process can append at the same time, because the caller has the
// registry's lock.
func (w appending) append() {
	if w.file != nil {
		_, err := w.file.Write(w.text)
		if err = errors.Join(err, w.file.Close()); err != nil {
			warnLog(w.file.Name(), err) // the next change finds that the size is wrong
		}
	}
	w.off()
}

// drop closes the log, because the registry was not replaced.
func (w appending) drop() {
	if w.file != nil {
		w.file.Close()
	}
}

// endLeft writes the last line of a log that the change has switched off.
func (s *State) endLeft() {
	if s.left.File == "" {
		return
	}
	f, _, err := openLog(s.left.File)
	if err == nil {
		_, err = f.Write(appendLines([]byte{},
			[]Line{{Time: now(), Event: Off, Series: s.left.Series, Number: s.left.Number, Instance: s.Instance.ID}}))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		slog.Warn("the lease log has no last line: cni-tool whois takes its last leases for current ones", "file",
			s.left.File, "because", err)
	}
}

// openLog opens a log for appending, and creates it if there is none. A log that is no regular
// file, such as a pipe, could stop all ADDs of the node.
func openLog(path string) (f *os.File, size int, err error) {
	open := func() (*os.File, error) {
		return os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|quick, 0o640)
	}
	f, err = open()
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			f, err = open()
		}
	}
	if err != nil {
		return nil, 0, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, int(fi.Size()), nil
}

// rotate gives the file the number 1, and creates another. Each older file gets the next number,
// up to one that is missing: a killed process may have renamed some already.
func (l LeaseLog) rotate() (*os.File, error) {
	named := func(n int) string {
		if n == 0 {
			return l.File
		}
		return fmt.Sprintf("%s.%d", l.File, n)
	}
	most := max(l.MaxFiles, 1)
	n := most
	for has(named(n)) { // there may have been more files
		n++
	}
	for n--; n >= most; n-- { // the last one first, so that a killed process leaves no gap
		if err := os.Remove(named(n)); err != nil {
			return nil, err
		}
	}
	last := 1
	for ; last < l.MaxFiles-1; last++ {
		if !has(named(last)) {
			break
		}
	}
	if l.MaxFiles < 2 {
		last = 0
		if err := os.Remove(l.File); err != nil {
			return nil, err
		}
	}
	for n := last; n > 0; n-- {
		if err := os.Rename(named(n-1), named(n)); err != nil {
			return nil, err
		}
	}
	f, _, err := openLog(l.File)
	return f, err
}

// has reports whether there is such a file.
func has(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// endsLine reports whether the file ends with a whole line. A killed process, or a full disk, may
// have left the beginning of one.
func endsLine(f *os.File, size int) bool {
	var last [1]byte
	_, err := f.ReadAt(last[:], int64(size-1))
	return err == nil && last[0] == '\n'
}

func appendLines(text []byte, lines []Line) []byte {
	for i := range lines {
		text, _ = codec.Write(text, lines[i].describe) // it has no error
		text = append(text, '\n')
	}
	return text
}

// now is the time of a line, without the reading of the monotonic clock.
func now() time.Time { return time.Now().UTC().Round(0) }
