// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"os"
	"time"
)

// The last member of the file is the modification time that the file has. If it is right, we have checked and written
// the file, and a process that needs one lease does not parse the others. If it is wrong, another program or a person
// has written the file since. The program may be the original, or an earlier release of ours, which keeps the member as
// an unknown field. The kernel sets another time with each write, see inode(7). On a file system whose times are less
// exact, the time is never right: then all is parsed each time.
//
// Earlier releases had a sum of all bytes as the last member. To compute it for a large node took a third of a change.
// The sum also showed broken memory.
//
// A release needs another name for the member if its leases do not begin with their key, or if this release would
// misread them.

// member begins the end of a file.
const member = `,"written":"`

// seal returns the end of a file with that modification time. Of the file, all else lacks only the closing
// brace.
func seal(written time.Time) []byte {
	b := written.UTC().AppendFormat([]byte(member), time.RFC3339Nano)
	return append(b, "\"}\n"...)
}

// sealed reports whether the file has that modification time by its end.
func sealed(b []byte, written time.Time) bool { return bytes.HasSuffix(b, seal(written)) }

// content reads an open file and its modification time, and closes it. The kernel changes the time before the text. So
// the time is read last. The time is zero if it has changed meanwhile: the text may be of two writers.
func content(f *os.File, err error) (b []byte, written time.Time, _ error) {
	if err != nil {
		return nil, written, err
	}
	defer f.Close()
	began, err := f.Stat()
	if err != nil {
		return nil, written, err
	}
	buf := bytes.NewBuffer(make([]byte, 0, began.Size()+bytes.MinRead)) // no allocation more to see the end
	if _, err = buf.ReadFrom(f); err != nil {
		return nil, written, err
	}
	ended, err := f.Stat()
	if err == nil && ended.ModTime().Equal(began.ModTime()) {
		written = ended.ModTime()
	}
	return buf.Bytes(), written, err
}

// steady returns the content for a process that does not hold the lock. It reads again until the text is ours, or until
// two reads give the same text.
//
// A writer writes into a file that no other process has open: see [atomicfile.Exchange]. But Linux before 6.1 counts a
// reader too late. Then it may read a half-written file, and this file may even be valid.
func steady(open func() (*os.File, error)) (b []byte, written time.Time, err error) {
	const tries = 5
	for i := range tries {
		last, when := b, written
		b, written, err = content(open())
		same := i > 0 && !written.IsZero() && written.Equal(when) && bytes.Equal(b, last)
		if err != nil || sealed(b, written) || same {
			break
		}
	}
	return b, written, err
}
