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

// Replace replaces the content of the file with this name in an open directory by the parts of data. A reader sees the
// whole old content or the whole new content, even after a crash of the machine.
//
// The caller must hold a lock that excludes other callers, because the new content is first written to a file with a
// fixed name. If a killed process has left that file, the next Replace overwrites it.
//
// If another process has deleted the directory, Replace returns fs.ErrNotExist and writes nothing, not even into a new
// directory with the same path.
func Replace(dir *os.Root, name string, mode fs.FileMode, data ...[]byte) (err error) {
	next := name + ".new"
	// With O_NONBLOCK, package os does not find out whether the kernel can poll the file: this saves four system calls.
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
