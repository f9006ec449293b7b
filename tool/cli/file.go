// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/atomicfile"
)

// WriteFile writes a file that a person has named. It follows symlinks, and replaces a regular file as ReplaceFile
// does. If path is a device, a pipe, or an open file of a process (such as /dev/stdout), WriteFile writes the data
// there. The caller must hold a lock that excludes other writers of the file (see [atomicfile.Replace]).
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	// Stat fails if the kernel forbids this process to follow a symlink: see protected_symlinks in proc_sys_fs(5).
	fi, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	to, ok := resolveLinks(path)
	if !ok || err == nil && !fi.Mode().IsRegular() {
		return os.WriteFile(path, data, mode)
	}
	return ReplaceFile(to, data, mode)
}

// resolveLinks follows the symlinks at path. It returns a path that is no symlink, and reports whether a program may
// create or replace a file there. In /proc, no program may do this, because links in /proc lead to open files and not
// to paths.
func resolveLinks(path string) (to string, ok bool) {
	const most = 40 // as in path_resolution(7)
	for range most {
		dir, name := filepath.Split(path)
		dir, err := filepath.EvalSymlinks(dir)
		if err != nil || strings.HasPrefix(dir, "/proc/") {
			return "", false
		}
		path = filepath.Join(dir, name)
		link, err := os.Readlink(path)
		if err != nil {
			return path, true
		}
		if !filepath.IsAbs(link) {
			link = dir + "/" + link // Join would remove "x/..", where x may be a symlink
		}
		path = link
	}
	return "", false
}

// ReplaceFile replaces the file at path, so that another process reads either the whole old content or the whole new
// content. If path is a symlink, the new file replaces the symlink. The caller must hold a lock (see
// [atomicfile.Replace]).
func ReplaceFile(path string, data []byte, mode fs.FileMode) error {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := atomicfile.Replace(dir, filepath.Base(path), mode, data); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
