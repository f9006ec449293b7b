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

// mostUnwritten is the maximum number of lines that wait in the registry if the log cannot be written. The registry
// drops the oldest lines. If the end of a lease is lost in this way, a later snapshot shows that the lease has ended.
const mostUnwritten = 256

// An appending has the lines that a change appends to the log after the change has replaced the registry's file.
type appending struct {
	file *os.File
	text []byte
	off  func() // writes the last line of a log that the configuration no longer has
}

// prepareLog opens the log if the change has lines for it, and puts the lines into the registry. Without a log,
// prepareLog does nothing. In the usual case, a log costs an open(2), an fstat(2), a write(2) and a close(2).
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
		last := s.LogLines[max(0, len(s.LogLines)-mostUnwritten):] // a disk may be full for days: keep the limit
		s.events = append(slices.Clip(last), s.events...)
	}
	if size > 0 && broken && !endsLine(f, size) {
		text = append([]byte("\n"), text...)
	}
	s.LogLines, s.Log.Size = s.events, size+len(text)
	w.file, w.text = f, text
	return w
}

// logText returns the text that the change appends. A log is broken if it is empty or may lack lines. Then the text
// begins with the lines of the last change. A reader that has these lines already recognizes them.
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

// postpone keeps the lines of this change in the registry, because the log cannot be opened.
func (s *State) postpone(err error) {
	warnLog(s.Log.File, err)
	s.LogLines = append(s.LogLines, s.events...)
	s.LogLines = s.LogLines[max(0, len(s.LogLines)-mostUnwritten):]
	s.Log.Size = -1
}

// Unwritten returns how many lines wait in the registry because the log cannot be written. Then the size of the log
// differs from the size in the registry.
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

// append appends the text to the log, and writes the last line of a log that the change has switched off. No other
// process can append at the same time, because the caller has the registry's lock.
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
		slog.Warn("the lease log has no last line, so cni-tool whois shows its last leases as current", "file",
			s.left.File, "because", err)
	}
}

// openLog opens a log for appending, and creates it if there is none. It refuses a file that is not regular, such as a
// pipe, because a write to it could stop all ADDs of the node.
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

// rotate adds the number 1 to the name of the log's file, and creates a new file. Each older file gets the next number,
// up to the first number that has no file. There may be such a number because a killed process has already renamed some
// files. rotate deletes the oldest files, so that at most MaxFiles files stay.
func (l LeaseLog) rotate() (*os.File, error) {
	named := func(n int) string {
		if n == 0 {
			return l.File
		}
		return fmt.Sprintf("%s.%d", l.File, n)
	}
	most := max(l.MaxFiles, 1)
	n := most
	for has(named(n)) { // MaxFiles may have been larger before
		n++
	}
	for n--; n >= most; n-- { // the last file first, so that a killed process leaves no gap
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

// has reports whether there is a file with this path.
func has(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// endsLine reports whether the file ends with a whole line. A killed process, or a full disk, may have left only the
// beginning of a line.
func endsLine(f *os.File, size int) bool {
	var last [1]byte
	_, err := f.ReadAt(last[:], int64(size-1))
	return err == nil && last[0] == '\n'
}

func appendLines(text []byte, lines []Line) []byte {
	for i := range lines {
		text, _ = codec.Write(text, lines[i].describe) // describe cannot fail here
		text = append(text, '\n')
	}
	return text
}

// now is the time of a line, without the reading of the monotonic clock.
func now() time.Time { return time.Now().UTC().Round(0) }
