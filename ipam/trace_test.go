// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
)

// fileCalls has the system calls that change files on disk or the holder of a lock. The field path is the index of the
// argument with a path, or -1 if the first argument is a descriptor.
var fileCalls = map[uint64]struct {
	name string
	path int
}{
	unix.SYS_OPENAT:    {"openat", 1},
	unix.SYS_MKDIRAT:   {"mkdirat", 1},
	unix.SYS_UNLINKAT:  {"unlinkat", 1},
	unix.SYS_RENAMEAT:  {"renameat", 1},
	unix.SYS_RENAMEAT2: {"renameat2", 1},
	unix.SYS_WRITE:     {"write", -1},
	unix.SYS_FSYNC:     {"fsync", -1},
	unix.SYS_FTRUNCATE: {"ftruncate", -1},
	unix.SYS_FLOCK:     {"flock", -1},
	unix.SYS_CLOSE:     {"close", -1},
}

// onFiles returns a function that names a system call on a file in a directory; dir is its path. It returns an empty
// name for other system calls.
func onFiles(dir string) func(trace.Call) string {
	return func(c trace.Call) string {
		call, ok := fileCalls[c.Nr]
		if !ok {
			return ""
		}
		path := ""
		if call.path < 0 {
			path = c.File(0)
		} else {
			path = c.Text(call.path)
			if !filepath.IsAbs(path) { // the path is relative to an open directory
				path = filepath.Join(c.File(0), path)
			}
		}
		if path != dir && !strings.HasPrefix(path, dir+"/") {
			return ""
		}
		if call.name == "close" && !strings.HasSuffix(path, ".lock") {
			return "" // only the close of a lock's file changes something
		}
		if call.name == "openat" && path == dir {
			return ""
		}
		return call.name + " " + filepath.Base(path)
	}
}
