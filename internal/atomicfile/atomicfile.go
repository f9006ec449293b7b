// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package atomicfile replaces a file, whole or not at all.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Replace puts data, which may be in parts, into the file with this name in an open directory. A reader sees the old
// file or the new file, even after a crash of the machine.
//
// The caller must hold a lock that excludes other callers. So the new file can have a fixed name until it replaces the
// old file. If a killed process has left such a new file, the next caller overwrites it.
//
// If another process has deleted the directory, the error is fs.ErrNotExist. Then Replace writes nothing, not even into
// a new directory with the same path.
func Replace(dir *os.Root, name string, mode fs.FileMode, data ...[]byte) (err error) {
	next := name + ".new"
	// With O_NONBLOCK, package os does not ask whether the kernel can poll the file: this saves four system calls.
	f, err := dir.OpenFile(next, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|syscall.O_NONBLOCK, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			dir.Remove(next)
		}
	}()
	for i := 0; i < len(data) && err == nil; i++ {
		_, err = f.Write(data[i])
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return dir.Rename(next, name)
}
