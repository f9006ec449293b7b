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

// Replace puts data, which may be in parts, into the file of that name in an open directory. A reader sees the old
// file or the new one, also after a crash of the machine.
//
// The caller holds a lock. So the new file has a fixed name until it replaces the old one. The
// next caller overwrites what a killed process has left there, and nothing stays for ever.
//
// If another process has deleted the directory, the error is fs.ErrNotExist. Nothing is written then,
// neither there nor into a directory that has its path now.
func Replace(dir *os.Root, name string, mode fs.FileMode, data ...[]byte) (err error) {
	next := name + ".new"
	// With O_NONBLOCK, package os does not ask whether the kernel can poll the file. That saves four system calls.
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
