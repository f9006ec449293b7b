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

// pinDir is the directory where systemd and other programs mount the BPF file system. We pin BPF objects there, under
// names that identify their content. So all pods share these objects, and only the first pod waits for the kernel's
// verifier.
const pinDir = "/sys/fs/bpf"

// makeUnpinned makes an object without pinning it, so that no other process uses it.
func makeUnpinned(_ string, makeObject func() (int, error)) (int, error) { return makeObject() }

// canPin reports whether the BPF file system is mounted.
func canPin() bool {
	var s unix.Statfs_t
	return unix.Statfs(pinDir, &s) == nil && s.Type == unix.BPF_FS_MAGIC
}

// openPinned returns the file descriptor of the object that is pinned under the given name. If there is no such object,
// openPinned makes it, and pins it if the BPF file system is mounted.
func openPinned(name string, makeObject func() (int, error)) (int, error) {
	if fd, err := objCommand(unix.BPF_OBJ_GET, name, 0); err == nil {
		return fd, nil
	}
	fd, err := makeObject()
	if err != nil {
		return -1, err
	}
	if _, err := objCommand(unix.BPF_OBJ_PIN, name, fd); errors.Is(err, fs.ErrExist) {
		// If another process has just pinned the same object, use the pinned object, as all other processes do.
		if other, err := objCommand(unix.BPF_OBJ_GET, name, 0); err == nil {
			return other, unix.Close(fd)
		}
	}
	return fd, nil
}

// removePins unpins all our objects. Programs that are attached to links stay attached.
func removePins() (err error) {
	files, _ := filepath.Glob(filepath.Join(pinDir, OwnTable+":*"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

// objCommand opens a pinned object (the command BPF_OBJ_GET), or pins the object fd (the command BPF_OBJ_PIN): see
// bpf(2).
func objCommand(command uintptr, name string, fd int) (int, error) {
	file := append([]byte(pinDir+"/"+name), 0)
	attr := struct {
		path      *byte
		fd, flags uint32
	}{path: &file[0], fd: uint32(fd)}
	return bpfCommand(command, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// mapID returns the ID of a map, or 0 if the kernel does not answer. No two maps have the same ID at the same time.
func mapID(fd int) uint32 {
	id, _ := progInfo(fd)
	return id
}
