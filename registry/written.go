// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"os"
	"time"
)

// The last member of the file is the modification time that the file has. If it is right, we have
// checked and written the file, and a process that needs one lease does not parse the
// others. If it is wrong, somebody else has written the file since: the original, a person, or an
// earlier release of ours, which keeps the member as an unknown field. The kernel sets another time with each
// write, see inode(7). On a file system whose times are less exact, the time is never right: then all is parsed each time.
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

// content reads a file and its modification time. The kernel changes the time before the text. So the time is read last.
func content(f *os.File) (b []byte, written time.Time, err error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, written, err
	}
	buf := bytes.NewBuffer(make([]byte, 0, fi.Size()+bytes.MinRead)) // no allocation more to see the end
	if _, err = buf.ReadFrom(f); err == nil {
		fi, err = f.Stat()
	}
	if err != nil {
		return nil, written, err
	}
	return buf.Bytes(), fi.ModTime(), nil
}
