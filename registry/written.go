// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"os"
	"time"
)

// The last member of the registry's file is a time. The process that writes the file also sets the file's modification
// time to this time. If both times are equal, a process of this suite has checked and written the file. Then a process
// that needs one lease does not parse the other leases. If the times differ, another program or a person has written
// the file since. The program may be the original plugin, or an earlier release, which keeps the member as an unknown
// field. With each write, the kernel sets another modification time, see inode(7). Some file systems store less exact
// times. There, the two times always differ, and each process parses the whole file.
//
// Earlier releases had a checksum of all bytes as the last member. On a large node, the checksum took a third of the
// time of a change. The checksum also showed broken memory, which the modification time does not.
//
// A later release may write leases that do not begin with their key, or that this release would misread. Such a release
// must give the member another name.

// member is the text before the time in the last member of the file.
const member = `,"written":"`

// seal returns the end of a file with this modification time: the member, the closing brace and the end of the line.
func seal(written time.Time) []byte {
	b := written.UTC().AppendFormat([]byte(member), time.RFC3339Nano)
	return append(b, "\"}\n"...)
}

// sealed reports whether the end of the file says that the file has this modification time.
func sealed(b []byte, written time.Time) bool { return bytes.HasSuffix(b, seal(written)) }

// content reads an open file and its modification time, and closes the file. In a write, the kernel changes the time
// before the text, so content reads the time last. If the time has changed during the read, the text may be from two
// writers. Then content returns the zero time.
func content(f *os.File, err error) (b []byte, written time.Time, _ error) {
	if err != nil {
		return nil, written, err
	}
	defer f.Close()
	began, err := f.Stat()
	if err != nil {
		return nil, written, err
	}
	buf := bytes.NewBuffer(make([]byte, 0, began.Size()+bytes.MinRead)) // room to see the file's end
	if _, err = buf.ReadFrom(f); err != nil {
		return nil, written, err
	}
	ended, err := f.Stat()
	if err == nil && ended.ModTime().Equal(began.ModTime()) {
		written = ended.ModTime()
	}
	return buf.Bytes(), written, err
}

// steady returns the content of the registry's file for a process that does not hold the lock. It reads again until the
// text is sealed, or until two reads give the same text, but at most five times.
//
// A writer writes into a file that no other process has open: see [atomicfile.Exchange]. But Linux before 6.1 may not
// notice that a reader opens the file. Then the reader may read a half-written file, and this text may even be valid.
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
