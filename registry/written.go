// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"os"
	"time"
)

// The last member of the registry's file is a time. The process that writes the file also sets the file's modification
// time to this time. When another program or a person writes the file later, the kernel sets a new modification time
// (inode(7)), and the two times differ. They also differ after the original plugin or an earlier release has written
// the file. An earlier release does not know the member, so it copies the member with the old time to the new file. So
// if the two times are equal, a process of this suite has checked and written the file. In this case, a process that
// needs one lease does not parse the other leases. Some file systems store times with less precision. On these file
// systems, the two times always differ, and each process parses the whole file.
//
// In earlier releases, the last member was a checksum of all bytes. On a large node, an Update needed a third of its
// time for the checksum. The checksum also found errors of the memory, which the modification time does not find.
//
// This release trusts a file whose last member has the name "written". So this release does not notice if it misreads a
// lease of a later release, for example a lease that does not begin with its key. A later release that changes the form
// of leases must give the last member another name.

// writtenMember is the beginning of the last member, up to the time.
const writtenMember = `,"written":"`

// sealText returns the text at the end of a registry's file with this modification time. This text has the last member,
// the closing brace and a newline.
func sealText(written time.Time) []byte {
	b := written.UTC().AppendFormat([]byte(writtenMember), time.RFC3339Nano)
	return append(b, "\"}\n"...)
}

// isSealed reports whether the text ends with the result of sealText for this modification time.
func isSealed(b []byte, written time.Time) bool { return bytes.HasSuffix(b, sealText(written)) }

// readContent reads an open file and its modification time, and closes the file. The arguments are the results of
// os.OpenFile or a similar function: the open file and an error. During a write(2), the kernel first changes the
// modification time, and then the text. So readContent reads the time after the text. If this time differs from the
// time before the text, the text may be from two writers, and readContent returns the zero time.
func readContent(f *os.File, err error) (b []byte, written time.Time, _ error) {
	if err != nil {
		return nil, written, err
	}
	defer f.Close()
	began, err := f.Stat()
	if err != nil {
		return nil, written, err
	}
	// the buffer has room for MinRead more bytes, so that ReadFrom finds the end of the file without another allocation
	buf := bytes.NewBuffer(make([]byte, 0, began.Size()+bytes.MinRead))
	if _, err = buf.ReadFrom(f); err != nil {
		return nil, written, err
	}
	ended, err := f.Stat()
	if err == nil && ended.ModTime().Equal(began.ModTime()) {
		written = ended.ModTime()
	}
	return buf.Bytes(), written, err
}

// readSteady returns the content of the registry's file for a process that does not hold the lock. It reads the file up
// to five times. It stops when the text is sealed, or when two successive reads give the same text and the same
// modification time.
//
// Usually, a writer writes into a file only if no other process has the file open: see [atomicfile.Exchange]. But Linux
// before 6.1 does not always notice that a reader opens the file. In this case, the reader may read a half-written
// text. This text may even be valid JSON.
func readSteady(open func() (*os.File, error)) (b []byte, written time.Time, err error) {
	const tries = 5
	for i := range tries {
		last, when := b, written
		b, written, err = readContent(open())
		same := i > 0 && !written.IsZero() && written.Equal(when) && bytes.Equal(b, last)
		if err != nil || isSealed(b, written) || same {
			break
		}
	}
	return b, written, err
}
