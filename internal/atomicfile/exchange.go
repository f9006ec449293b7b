// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Old is the end of the name under which Exchange keeps the file that it has replaced.
const Old = ".old"

// Exchange is [Replace] for a large file that changes often. It keeps the replaced file, and the next
// Exchange writes into that one: to allocate pages and to free others takes the kernel longer than to copy the text.
//
// Who has opened a file still reads it whole: see alone.
func Exchange(dir *os.Root, name string, mode fs.FileMode, modified time.Time, data ...[]byte) error {
	old := name + Old
	f, size, err := spare(dir, old, mode)
	if err != nil {
		return err
	}
	for i := 0; i < len(data) && err == nil; i++ {
		_, err = f.Write(data[i])
		size -= int64(len(data[i]))
	}
	if err == nil && size > 0 {
		err = truncate(f)
	}
	// A process that is being started may have the open file until it executes its program: the lease would stay as long.
	unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	if err = finish(dir, old, f, modified, err); err != nil {
		return err
	}
	return swap(dir, old, name)
}

// spare opens the file of that name to write, as it is, and returns its size. If somebody else may see what is written, it
// makes a new one.
func spare(dir *os.Root, name string, mode fs.FileMode) (*os.File, int64, error) {
	for again := false; ; again = true {
		f, err := dir.OpenFile(name, os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, mode)
		if err == nil {
			fi, e := f.Stat()
			if err = e; err == nil && (again || fi.Size() == 0 || alone(f, fi)) {
				return f, fi.Size(), nil
			}
			f.Close()
		} else if errors.Is(err, syscall.EAGAIN) && !again { // a process that was killed has left its lease to a child
			err = nil
		}
		if err == nil {
			err = dir.Remove(name)
		}
		if err != nil {
			return nil, 0, err
		}
	}
}

// alone reports whether nobody else has the file, neither open nor by another name. A process may have opened the file when it
// had its other name, and read slowly. The kernel gives a write lease only if there is no other open file, see fcntl(2).
// Whoever opens the file later waits until it is closed here.
//
// Linux before 6.1 counts a reader only after it has looked for leases ("locks: fix TOCTOU race when granting write lease").
// So a reader that opens the file by its other name, and is slow, may see what is written. A reader must notice that.
func alone(f *os.File, fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink != 1 {
		return false
	}
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	return err == nil
}

// Room returns how many bytes the next Exchange of the file can write without more room on the file system.
func Room(dir, name string) int64 {
	fi, err := os.Lstat(filepath.Join(dir, name+Old))
	if err != nil || !fi.Mode().IsRegular() {
		return 0
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink != 1 { // the next one is a new file
		return 0
	}
	const block = 512 // of st_blocks, whatever the file system has, see inode(7)
	return st.Blocks * block
}

// truncate ends a file where it has been written to.
func truncate(f *os.File) error {
	at, err := f.Seek(0, 1)
	if err == nil {
		err = f.Truncate(at)
	}
	return err
}

// swap exchanges the files of two names. If there is no second one, or if the file system cannot exchange, the first gets the
// second name.
func swap(dir *os.Root, old, name string) error {
	d, err := dir.OpenFile(".", os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	fd := int(d.Fd())
	if unix.Renameat2(fd, old, fd, name, unix.RENAME_EXCHANGE) == nil {
		return nil
	}
	return dir.Rename(old, name)
}
