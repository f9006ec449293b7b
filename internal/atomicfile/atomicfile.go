// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package atomicfile replaces the content of a file, whole or not at all.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Replace replaces the content of a file in an open directory. The arguments "data" are the parts of the new content,
// in this order. A reader sees the whole old content or the whole new content, even after a crash of the machine.
//
// Replace first writes a second file, which has a fixed name. So the caller must hold a lock that excludes other
// callers. The next Replace overwrites a second file that a killed process has left.
//
// If another process has deleted the open directory, Replace returns fs.ErrNotExist, even if there is a new directory
// with the same path.
func Replace(dir *os.Root, name string, mode fs.FileMode, data ...[]byte) (err error) {
	next := name + ".new"
	// O_NONBLOCK saves four system calls, with which package os would find out whether the kernel can poll the file.
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
