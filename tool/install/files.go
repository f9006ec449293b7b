// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// The constants whose names begin with "from" are directories of the container image. The deb and rpm packages have the
// same directories. The other constants are for the node.
const (
	fromBin     = "opt/cni/bin"
	fromTool    = "usr/bin"
	fromSystemd = "usr/lib/systemd"
	cloudInit   = "etc/cloud" // the same directory on the node and in the image
	toSystemd   = "/etc/systemd"
	alias       = "cni-tool"
)

// fromHint is the hint if the files to install are missing.
const fromHint = "--from must be a directory that has the files of the container image at the same paths"

// A nodeFile is a file that the node must have: a copy of a file of the image, a text, or a symbolic link.
type nodeFile struct {
	path string
	mode fs.FileMode
	from string // path in the image; "": the content is text, or the file is a link
	text []byte
	link string // target of the symbolic link
}

// nodeFiles returns all files except the conflist, in the order of their installation.
func (i *Installation) nodeFiles() ([]nodeFile, error) {
	var all []nodeFile
	for _, p := range pluginPrograms {
		all = append(all, nodeFile{path: filepath.Join(i.BinDir, p), from: path.Join(fromBin, p), mode: 0o755})
	}
	if i.ToolDir != "" {
		all = append(all, i.toolFiles()...)
	}
	for _, f := range all {
		if _, err := i.Source.Stat(f.from); f.from != "" && err != nil {
			return nil, cli.Hint(fmt.Errorf("find the programs in --from: %w", err), fromHint)
		}
	}
	if !i.Systemd {
		return all, nil
	}
	units, err := i.unitFiles()
	if err != nil {
		return nil, err
	}
	settings, err := i.cloudInit()
	return slices.Concat(all, units, settings), err
}

// cloudInit returns our drop-ins for cloud-init. It returns none if the node has no cloud-init.
func (i *Installation) cloudInit() ([]nodeFile, error) {
	if !hasPath("/" + cloudInit + "/cloud.cfg")() {
		return nil, nil
	}
	from, err := fs.Glob(i.Source.FS(), cloudInit+"/cloud.cfg.d/*.cfg")
	var all []nodeFile
	for _, f := range from {
		all = append(all, nodeFile{path: "/" + f, from: f, mode: 0o644})
	}
	return all, err
}

// toolFiles returns the tool, and the symbolic link with the tool's short name. If the node gets units, toolFiles also
// returns the script of cni-links.service.
func (i *Installation) toolFiles() []nodeFile {
	tool := nodeFile{path: filepath.Join(i.ToolDir, cli.Program), from: path.Join(fromTool, cli.Program), mode: 0o755}
	files := []nodeFile{tool, {path: filepath.Join(i.ToolDir, alias), link: cli.Program}}
	if i.Systemd {
		files = append(files, i.linksScript())
	}
	return files
}

// putFile creates or replaces a file if needed, and records this change. If Check is set, putFile only records the
// change.
func (i *Installation) putFile(f nodeFile) error {
	if f.from != "" {
		text, err := i.Source.ReadFile(f.from)
		if err != nil {
			return err
		}
		f.text = text
	}
	change, err := f.neededChange()
	if err != nil || change == "" {
		return err
	}
	i.changes = append(i.changes, Change{change, f.path})
	if i.Check {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return err
	}
	if f.link != "" {
		return f.putLink()
	}
	return cli.ReplaceFile(f.path, f.text, f.mode)
}

// neededChange returns the change that puts the file on the node: create or replace. If the node has the file already,
// neededChange returns "".
func (f nodeFile) neededChange() (string, error) {
	fi, err := os.Lstat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "create", nil
	case err != nil:
		return "", err
	case fi.IsDir():
		return "", fmt.Errorf("%s is a directory: remove it", f.path)
	case f.link != "":
		if to, err := os.Readlink(f.path); err == nil && to == f.link {
			return "", nil
		}
		return "replace", nil
	case !fi.Mode().IsRegular() || fi.Mode().Perm() != f.mode || fi.Size() != int64(len(f.text)):
		return "replace", nil
	}
	has, err := os.ReadFile(f.path)
	if err != nil || bytes.Equal(has, f.text) {
		return "", err
	}
	return "replace", nil
}

// putLink creates the symbolic link. If there is a file at the link's path, the link replaces this file.
func (f nodeFile) putLink() error {
	next := f.path + unfinishedSuffix
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(f.link, next); err != nil {
		return err
	}
	return os.Rename(next, f.path)
}

// unfinishedSuffix is the end of the name of an unfinished file (see package atomicfile). A rename later gives the
// finished file its own name. The next run overwrites an unfinished file of a killed run.
const unfinishedSuffix = ".new"

// removeFile removes a file. If a killed run has left an unfinished file beside it, removeFile also removes the
// unfinished file. It records both changes. If Check is set, removeFile only records the changes.
func (i *Installation) removeFile(path string) error {
	for _, p := range []string{path, path + unfinishedSuffix} {
		if _, err := os.Lstat(p); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		i.changes = append(i.changes, Change{"remove", p})
		if i.Check {
			continue
		}
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// removeEmptyDir removes an empty directory if it is for drop-ins (.d), or for links that enable units (.wants). It
// does not remove other directories.
func (i *Installation) removeEmptyDir(dir string) {
	if !i.Check && (strings.HasSuffix(dir, ".d") || strings.HasSuffix(dir, ".wants")) {
		_ = os.Remove(dir) // ignore the error: other programs may have files in dir
	}
}
