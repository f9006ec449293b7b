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

// pins is the directory where systemd, and other programs that use BPF, mount the file system for BPF objects. The name
// of a pinned object identifies its content. So all pods share the objects, and only the first pod waits until the
// kernel has verified a program.
const pins = "/sys/fs/bpf"

// unpinned makes an object without pinning it, so no other process gets it.
func unpinned(_ string, open func() (int, error)) (int, error) { return open() }

// canPin reports whether the file system for BPF objects is mounted.
func canPin() bool {
	var s unix.Statfs_t
	return unix.Statfs(pins, &s) == nil && s.Type == unix.BPF_FS_MAGIC
}

// pinned returns the file descriptor of the object that is pinned under a name. If there is no such object, pinned
// makes it by open, and pins it if the file system is mounted.
func pinned(name string, open func() (int, error)) (int, error) {
	if fd, err := objCommand(unix.BPF_OBJ_GET, name, 0); err == nil {
		return fd, nil
	}
	fd, err := open()
	if err != nil {
		return -1, err
	}
	if _, err := objCommand(unix.BPF_OBJ_PIN, name, fd); errors.Is(err, fs.ErrExist) {
		// Another process was faster: use its object, as other processes do.
		if other, err := objCommand(unix.BPF_OBJ_GET, name, 0); err == nil {
			return other, unix.Close(fd)
		}
	}
	return fd, nil
}

// unpin removes all our pinned objects. Programs at links stay as long as the links.
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

// mapID returns the kernel's number of a map. No two maps have the same number at the same time. The number is 0 if the
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
