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

// pins is where systemd, and other programs with BPF, mount the file system for its
// objects. Ours have names that identify them. So they serve all pods, and only the first pod
// waits for the kernel to verify a program.
const pins = "/sys/fs/bpf"

// unpinned makes an object that no other process gets.
func unpinned(_ string, open func() (int, error)) (int, error) { return open() }

// canPin reports whether there is such a file system.
func canPin() bool {
	var s unix.Statfs_t
	return unix.Statfs(pins, &s) == nil && s.Type == unix.BPF_FS_MAGIC
}

// pinned returns the file of the object that is pinned under a name. If there is none it makes
// the object, and pins it if there is such a file system.
func pinned(name string, open func() (int, error)) (int, error) {
	if fd, err := objCommand(unix.BPF_OBJ_GET, name, 0); err == nil {
		return fd, nil
	}
	fd, err := open()
	if err != nil {
		return -1, err
	}
	if _, err := objCommand(unix.BPF_OBJ_PIN, name, fd); errors.Is(err, fs.ErrExist) {
		// Another process was faster: use its object, as others do.
		if other, err := objCommand(unix.BPF_OBJ_GET, name, 0); err == nil {
			return other, unix.Close(fd)
		}
	}
	return fd, nil
}

// unpin removes all pinned objects. Programs at links stay as long as the links.
func unpin() (err error) {
	files, _ := filepath.Glob(filepath.Join(pins, OwnTable+":*"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

// objCommand opens or pins an object, see bpf(2).
func objCommand(command uintptr, name string, fd int) (int, error) {
	file := append([]byte(pins+"/"+name), 0)
	attr := struct {
		path      *byte
		fd, flags uint32
	}{path: &file[0], fd: uint32(fd)}
	return bpfCommand(command, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// mapID is the kernel's number of a map. No two maps have the same number at the same time. The number is 0 if the
// kernel does not answer.
func mapID(fd int) uint32 {
	var info struct{ mapType, id uint32 } // the beginning of struct bpf_map_info
	attr := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(fd), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	return info.id
}
