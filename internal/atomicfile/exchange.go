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
	"unsafe"

	"golang.org/x/sys/unix"
)

// Old is the suffix of the name under which Exchange keeps the replaced file.
const Old = ".old"

// Exchange does what [Replace] does, but is faster for a large file that changes often. It keeps the replaced file, and
// the next Exchange writes the new content into the kept file. So the kernel need not free and allocate pages.
//
// The argument "modified" is the new modification time of the file. If this time is zero, or if the file system cannot
// store it, the kernel determines the modification time.
//
// A process that has opened the old file still reads the whole old content: see isUnshared.
//
// Exchange does not use os.Root, because os.Root would make more system calls.
func Exchange(dir *os.File, name string, mode fs.FileMode, modified time.Time, data ...[]byte) error {
	at, old := int(dir.Fd()), name+Old
	fd, size, err := openKept(at, old, mode)
	if err != nil {
		return &fs.PathError{Op: "open", Path: old, Err: err}
	}
	err = writeParts(fd, size, data)
	if err == nil && !modified.IsZero() {
		_ = setTime(fd, modified) // some file systems cannot store the time
	}
	if err = errors.Join(err, unix.Fsync(fd), unix.Close(fd)); err != nil {
		return &fs.PathError{Op: "write", Path: old, Err: err}
	}
	if err = exchangeNames(at, old, name); err != nil {
		return &fs.PathError{Op: "rename", Path: old, Err: err}
	}
	return nil
}

// openKept opens the kept file for writing, without truncating it, and returns its size. If isUnshared returns false,
// openKept deletes the kept file and creates a new one, so that no other process can read what the caller writes.
func openKept(dir int, name string, mode fs.FileMode) (fd int, size int64, err error) {
	for again := false; ; again = true {
		fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC,
			uint32(mode))
		if err == nil {
			var st unix.Stat_t
			if err = unix.Fstat(fd, &st); err == nil && (again || st.Size == 0 || isUnshared(fd, st)) {
				return fd, st.Size, nil
			}
			unix.Close(fd)
			// EAGAIN means that there is still a lease on the file. A killed process requested this lease, and a child
			// of that process still has the file open
		} else if errors.Is(err, unix.EAGAIN) && !again {
			err = nil
		}
		if err == nil {
			err = unix.Unlinkat(dir, name, 0)
		}
		if err != nil {
			return -1, 0, err
		}
	}
}

// isUnshared reports whether only this process can read what it writes into the file: the file has only one name, and
// no other process has it open. A process may have opened the file before Exchange replaced it. So isUnshared requests
// a write lease, which the kernel grants only if no other process has the file open (fcntl(2)). A later open(2) of
// another process waits until this process ends the lease.
//
// Linux before 6.1 does not notice a reader whose open(2) is under way ("locks: fix TOCTOU race when granting write
// lease"). So readers must detect half-written texts.
func isUnshared(fd int, st unix.Stat_t) bool {
	if st.Nlink != 1 {
		return false
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	return err == nil
}

// writeParts writes the parts of data, one after another, as the new content of the file. The argument "size" is the
// file's old size. At the end, writeParts ends this process's lease on the file.
func writeParts(fd int, size int64, data [][]byte) error {
	var all int64
	for _, part := range data {
		all += int64(len(part))
		for len(part) > 0 {
			n, err := unix.Write(fd, part)
			if err != nil && err != unix.EINTR {
				return err
			}
			part = part[max(n, 0):]
		}
	}
	if all < size {
		if err := unix.Ftruncate(fd, all); err != nil {
			return err
		}
	}
	// This call ends the lease at once. A close(2) ends the lease only if no child process has the file open. A child
	// process that another goroutine has forked has the file open until the child executes its program.
	unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return nil
}

// setTime sets the access time and the modification time of an open file to t. Like futimens(3), setTime calls
// utimensat(2) without a path.
func setTime(fd int, t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	times := [2]unix.Timespec{ts, ts}
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// exchangeNames exchanges the names of two files. If no file has the second name, or if the file system cannot exchange
// names, exchangeNames gives the second name to the first file.
func exchangeNames(dir int, old, name string) error {
	if unix.Renameat2(dir, old, dir, name, unix.RENAME_EXCHANGE) == nil {
		return nil
	}
	return unix.Renameat(dir, old, dir, name)
}

// Room returns how many bytes the next Exchange can write even if the file system is full. Exchange then uses the space
// that the kept file already has.
func Room(dir, name string) int64 {
	fi, err := os.Lstat(filepath.Join(dir, name+Old))
	if err != nil || !fi.Mode().IsRegular() {
		return 0
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink != 1 { // the next Exchange creates a new file
		return 0
	}
	const block = 512 // the unit of st_blocks on all file systems, see inode(7)
	return st.Blocks * block
}
