// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"os"
	"time"
)

// The last member of the registry's file is a time. A process of this suite sets the file's modification time to this
// time. If the original plugin, an earlier release or another program writes the file later, the kernel sets a new
// modification time (inode(7)). Then the two times differ, even if the writer has copied the member. So if the two
// times are equal, a process of this suite has checked and written the file. A process that needs one lease then does
// not parse the other leases. On file systems that store times with less precision, the two times always differ.
//
// A later release that changes the form of leases must give the last member another name. This release trusts each file
// whose last member has the name "written". For example, it would misread a lease that does not begin with its key.

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
// os.OpenFile or a similar function. During a write(2), the kernel first changes the modification time, and then the
// text. So if the time changes while readContent reads, the text may be from two writers, and readContent returns the
// zero time.
func readContent(f *os.File, err error) (b []byte, written time.Time, _ error) {
	if err != nil {
		return nil, written, err
	}
	defer f.Close()
	began, err := f.Stat()
	if err != nil {
		return nil, written, err
	}
	// with MinRead more bytes, ReadFrom finds the end of the file without another allocation
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

// readSteady returns the content of the registry's file for a process that does not hold the lock. It reads the file
// until the text is sealed, or until two successive reads give the same text and modification time. It reads at most
// five times.
//
// Linux before 6.1 does not always notice that a reader opens the file (see [atomicfile.Exchange]). The reader may then
// read a half-written text, which may even be valid JSON.
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
