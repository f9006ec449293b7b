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

// Old is the end of the name under which Exchange keeps the file that it has replaced.
const Old = ".old"

// Exchange is [Replace] for a large file that changes often, in an open directory. Exchange keeps the replaced file,
// and the next Exchange writes into the kept file. Allocating pages and freeing others takes the kernel longer than
// copying the text.
//
// The file has the given modification time, if that is not zero, and if the file system can.
//
// A process that has opened a file still reads it whole: see alone.
//
// Exchange makes its system calls itself. Package os opens each file once more, and asks whether the kernel can poll
// it.
func Exchange(dir *os.File, name string, mode fs.FileMode, modified time.Time, data ...[]byte) error {
	at, old := int(dir.Fd()), name+Old
	fd, size, err := spare(at, old, mode)
	if err != nil {
		return &fs.PathError{Op: "open", Path: old, Err: err}
	}
	err = fill(fd, size, data)
	if err == nil && !modified.IsZero() {
		_ = setTime(fd, modified) // if the file system can
	}
	if err = errors.Join(err, unix.Fsync(fd), unix.Close(fd)); err != nil {
		return &fs.PathError{Op: "write", Path: old, Err: err}
	}
	if err = swap(at, old, name); err != nil {
		return &fs.PathError{Op: "rename", Path: old, Err: err}
	}
	return nil
}

// spare opens the file of that name to write, as it is, and returns its size. If another process may see what is
// written, it makes a new one.
func spare(dir int, name string, mode fs.FileMode) (fd int, size int64, err error) {
	for again := false; ; again = true {
		fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC,
			uint32(mode))
		if err == nil {
			var st unix.Stat_t
			if err = unix.Fstat(fd, &st); err == nil && (again || st.Size == 0 || alone(fd, st)) {
				return fd, st.Size, nil
			}
			unix.Close(fd)
		} else if errors.Is(err, unix.EAGAIN) && !again { // a process that was killed has left its lease to a child
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

// alone reports whether no other process has the file, neither open nor by another name. A process may have opened the
// file when it had its other name, and read slowly. The kernel gives a write lease only if there is no other open file,
// see fcntl(2). A process that opens the file later waits until it is closed here.
//
// Linux before 6.1 counts a reader only after it has looked for leases ("locks: fix TOCTOU race when granting write
// lease"). So a reader that opens the file by its other name, and is slow, may see what is written. A reader must
// notice that.
func alone(fd int, st unix.Stat_t) bool {
	if st.Nlink != 1 {
		return false
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	return err == nil
}

// fill writes data into a file of that size, and gives the lease back.
func fill(fd int, size int64, data [][]byte) error {
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
	// A process that is being started may have the open file until it executes its program: the lease would stay as
	// long.
	unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return nil
}

// setTime is futimens(3), which the kernel has as utimensat(2) without a path.
func setTime(fd int, t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	times := [2]unix.Timespec{ts, ts}
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// swap exchanges the files of two names. If there is no second one, or if the file system cannot exchange, the first
// gets the second name.
func swap(dir int, old, name string) error {
	if unix.Renameat2(dir, old, dir, name, unix.RENAME_EXCHANGE) == nil {
		return nil
	}
	return unix.Renameat(dir, old, dir, name)
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
