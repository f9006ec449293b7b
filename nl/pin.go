// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pins is where systemd, like whoever else uses BPF, mounts the file system for its objects.
// Ours are there under names that tell what they are. So they serve all pods, and only the
// first waits for the kernel to verify a program.
const pins = "/sys/fs/bpf"

// unpinned makes an object that nobody else is to have.
func unpinned(_ string, open func() (int, error)) (int, error) { return open() }

// canPin says whether there is such a file system.
func canPin() bool {
	var s unix.Statfs_t
	return unix.Statfs(pins, &s) == nil && s.Type == unix.BPF_FS_MAGIC
}

// pinned returns the file of the object that is kept under a name. If there is none it
// makes it, and keeps it if there is such a file system.
func pinned(name string, open func() (int, error)) (int, error) {
	if fd, err := objCommand(unix.BPF_OBJ_GET, name, 0); err == nil {
		return fd, nil
	}
	fd, err := open()
	if err != nil {
		return -1, err
	}
	if _, err := objCommand(unix.BPF_OBJ_PIN, name, fd); errors.Is(err, fs.ErrExist) {
		// Another was faster, and has the one that others use.
		if other, err := objCommand(unix.BPF_OBJ_GET, name, 0); err == nil {
			return other, unix.Close(fd)
		}
	}
	return fd, nil
}

// unpin gives up all that is kept. Programs that links have stay until those go.
func unpin() (err error) {
	files, _ := filepath.Glob(filepath.Join(pins, OwnTable+":*"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

// objCommand gets or keeps an object, see bpf(2).
func objCommand(command uintptr, name string, fd int) (int, error) {
	file := append([]byte(filepath.Join(pins, name)), 0)
	attr := struct {
		path      *byte
		fd, flags uint32
	}{path: &file[0], fd: uint32(fd)}
	r, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}

// mapID is the kernel's number of a map, which no other has at the same time; 0 if the
// kernel does not say.
func mapID(fd int) uint32 {
	var info struct{ mapType, id uint32 } // the beginning of struct bpf_map_info
	attr := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(fd), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	return info.id
}
