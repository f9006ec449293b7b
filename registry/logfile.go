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

// maxUnwritten is the maximum number of lines that wait in the registry while processes cannot write the log. If there
// are more lines, the oldest are lost. The log's next snapshot (see [Snapshot]) still shows which leases have ended.
const maxUnwritten = 256

// A logAppend has the text that an Update appends to the log after it has replaced the registry's file.
type logAppend struct {
	file      *os.File
	text      []byte
	endOldLog func() // writes the last line of the log that this Update has switched off
}

// prepareLog opens the log, and records the lines of this Update in the registry. It does nothing if the node has no
// log, or if there is nothing to write and nothing to check.
func (s *State) prepareLog() (w logAppend) {
	w.endOldLog = s.endOldLog
	if s.Log.File == "" || len(s.events) == 0 && !s.checkLog && !s.clockSet {
		return w
	}
	f, size, err := openLog(s.Log.File)
	begins := s.Log.Series == "" || s.clockSet
	if begins {
		s.Log.beginSeries(s.Instance.ID, f, size)
	}
	s.numberEvents()
	if err != nil {
		s.postponeLines(err)
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
		if f, err = s.Log.rotateFiles(); err != nil {
			s.postponeLines(err)
			return w
		}
		size, text = 0, s.logText(broken, true)
	}
	if broken {
		last := s.LogLines[max(0, len(s.LogLines)-maxUnwritten):] // drop older lines: a disk may be full for days
		s.events = append(slices.Clip(last), s.events...)
	}
	if size > 0 && broken && !endsLine(f, size) {
		text = append([]byte("\n"), text...)
	}
	s.LogLines, s.Log.Size = s.events, size+len(text)
	w.file, w.text = f, text
	return w
}

// logText returns the text that this Update appends to the log. If broken is true, the log is empty or may lack lines,
// so the text begins with the lines of the previous Update. If the log already has these lines, they are then in the
// log twice. A reader recognises them by their equal numbers.
func (s *State) logText(broken, snapshot bool) []byte {
	text := []byte{}
	if broken {
		text = appendLines(text, s.LogLines)
	}
	if snapshot {
		text = appendLines(text, s.snapshotLines())
	}
	return appendLines(text, s.events)
}

// postponeLines keeps the lines of this Update in the registry, because the log cannot be opened or rotated.
func (s *State) postponeLines(err error) {
	warnLog(s.Log.File, err)
	s.LogLines = append(s.LogLines, s.events...)
	s.LogLines = s.LogLines[max(0, len(s.LogLines)-maxUnwritten):]
	s.Log.Size = -1
}

// Unwritten returns how many lines wait in the registry because the last process could not write the log. If lines
// wait, the size of the log's file differs from Log.Size.
func (s *State) Unwritten() int {
	if fi, err := os.Stat(s.Log.File); s.Log.File == "" || err == nil && int(fi.Size()) == s.Log.Size {
		return 0
	}
	return len(s.LogLines)
}

func warnLog(file string, err error) {
	slog.Warn("the lease log cannot be written. Its new lines wait in the registry, and cni-tool whois does not see "+
		"these lines yet", "file", file, "because", err)
}

// appendText appends the text to the log. It also writes the last line of a log that this Update has switched off. The
// caller holds the registry's lock.
func (w logAppend) appendText() {
	if w.file != nil {
		_, err := w.file.Write(w.text)
		if err = errors.Join(err, w.file.Close()); err != nil {
			warnLog(w.file.Name(), err) // the next Update finds that the size of the file is wrong
		}
	}
	w.endOldLog()
}

// closeFile closes the log without a write, because the Update has failed.
func (w logAppend) closeFile() {
	if w.file != nil {
		w.file.Close()
	}
}

// endOldLog writes the last line of the log that this Update has switched off, if there is one.
func (s *State) endOldLog() {
	if s.oldLog.File == "" {
		return
	}
	f, _, err := openLog(s.oldLog.File)
	if err == nil {
		_, err = f.Write(appendLines([]byte{}, []Line{{Time: lineTime(), Event: Off, Series: s.oldLog.Series,
			Number: s.oldLog.Number, Instance: s.Instance.ID}}))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		slog.Warn("the lease log is switched off, but the line that says so cannot be written. So cni-tool whois "+
			"shows the leases that have no end in the log as current", "file", s.oldLog.File, "because", err)
	}
}

// openLog opens the log with this path for appending. If there is no file, openLog creates one. If the file is not
// regular, openLog returns an error, because a write to a pipe, for example, could block all ADDs of the node.
func openLog(path string) (f *os.File, size int, err error) {
	open := func() (*os.File, error) {
		return os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|noPollFlag, 0o640)
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

// rotateFiles begins a new file of the log. It first deletes the oldest files, so that at most MaxFiles files stay.
// Then it renames File.1 to File.2, and so on. If a killed process has left a gap in the numbers, the files after the
// gap keep their names. Finally, rotateFiles renames File to File.1, and creates a new File.
func (l LeaseLog) rotateFiles() (*os.File, error) {
	named := func(n int) string {
		if n == 0 {
			return l.File
		}
		return fmt.Sprintf("%s.%d", l.File, n)
	}
	most := max(l.MaxFiles, 1)
	n := most
	for fileExists(named(n)) { // if MaxFiles was larger before, there may be more than MaxFiles files
		n++
	}
	for n--; n >= most; n-- { // begin with the highest number, so that a killed process leaves no gap
		if err := os.Remove(named(n)); err != nil {
			return nil, err
		}
	}
	last := 1
	for ; last < l.MaxFiles-1; last++ {
		if !fileExists(named(last)) {
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

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// endsLine reports whether the file ends with a newline. If not, the last line is incomplete.
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

// lineTime returns the current time for a line of the log. The result has no reading of the monotonic clock.
func lineTime() time.Time { return time.Now().UTC().Round(0) }
