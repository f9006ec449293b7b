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

// Old is the end of the name of the file that Exchange has replaced and keeps.
const Old = ".old"

// Exchange is [Replace] for a large file that changes often, in an open directory. Exchange keeps the replaced file,
// and the next Exchange writes into the kept file. This is faster, because the kernel needs more time to free and
// allocate pages than to copy the text.
//
// Exchange sets the file's modification time to modified. If modified is zero, or if the file system cannot store the
// time, Exchange does not set it.
//
// A process that has opened the old file still reads the whole old text: see alone.
//
// Exchange does not use package os, which would open each file once more, and ask whether the kernel can poll it.
func Exchange(dir *os.File, name string, mode fs.FileMode, modified time.Time, data ...[]byte) error {
	at, old := int(dir.Fd()), name+Old
	fd, size, err := spare(at, old, mode)
	if err != nil {
		return &fs.PathError{Op: "open", Path: old, Err: err}
	}
	err = fill(fd, size, data)
	if err == nil && !modified.IsZero() {
		_ = setTime(fd, modified) // some file systems cannot store the time
	}
	if err = errors.Join(err, unix.Fsync(fd), unix.Close(fd)); err != nil {
		return &fs.PathError{Op: "write", Path: old, Err: err}
	}
	if err = swap(at, old, name); err != nil {
		return &fs.PathError{Op: "rename", Path: old, Err: err}
	}
	return nil
}

// spare opens the file with this name for writing, keeps its content, and returns its size. If another process could
// see what the caller writes, spare makes a new file instead.
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
		} else if errors.Is(err, unix.EAGAIN) && !again { // the lease of a killed process lives on in a child process
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

// alone reports whether no other process has the file open, and the file has no other name. A process may have opened
// the file when the file had its other name, and may still read the file. So alone asks the kernel for a write lease,
// which the kernel grants only if the file is open nowhere else, see fcntl(2). A process that opens the file later
// waits until this process ends the lease.
//
// When a process opens a file, Linux before 6.1 first looks for leases. It counts the process as a reader only
// afterwards ("locks: fix TOCTOU race when granting write lease"). So a slow reader that opens the file by its other
// name may see a half-written text. A reader must notice such a text.
func alone(fd int, st unix.Stat_t) bool {
	if st.Nlink != 1 {
		return false
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	return err == nil
}

// fill writes data into a file that had this size, and ends the lease.
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
	// A new child process may have the file open until the child executes its program. Without this call, the lease
	// would last until then.
	unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return nil
}

// setTime does what futimens(3) does. The kernel offers this as utimensat(2) without a path.
func setTime(fd int, t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	times := [2]unix.Timespec{ts, ts}
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// swap exchanges the files of two names. If no file has the second name, or if the file system cannot exchange, swap
// gives the first file the second name.
func swap(dir int, old, name string) error {
	if unix.Renameat2(dir, old, dir, name, unix.RENAME_EXCHANGE) == nil {
		return nil
	}
	return unix.Renameat(dir, old, dir, name)
}

// Room returns how many bytes the next Exchange of the file can write into the space that the kept file already has.
func Room(dir, name string) int64 {
	fi, err := os.Lstat(filepath.Join(dir, name+Old))
	if err != nil || !fi.Mode().IsRegular() {
		return 0
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink != 1 { // the next Exchange makes a new file
		return 0
	}
	const block = 512 // the unit of st_blocks on all file systems, see inode(7)
	return st.Blocks * block
}
