// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package install installs the suite on a node, and can remove it again. It takes the files from the suite's container
// image, or from a directory that has the files at the same paths.
//
// An installation has this order: programs, units, conflist. The conflist is the last file, because the runtime reports
// the node as ready when the conflist is there. A removal has the reverse order. Each new file replaces the old one by
// a rename, so the runtime never starts half a program. A step does nothing if its result is there already. So the next
// run finishes the work of a killed run. A lock lets only one run work at a time.
//
// All paths are paths of the node. The process first opens the files of the image. Then it enters the node's root
// directory (chroot(2)), so that symbolic links lead to the node's files.
package install

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// programPrefix is the beginning of the names of all our programs. It is also the name of the plugin that does the work
// of all plugins.
const programPrefix = "cni-ipvlan-vpc-k8s"

// pluginPrograms are our plugins and GrowProgram, in the order of their installation. A plugin comes after the program
// that it executes.
var pluginPrograms = []string{conf.GrowProgram, conf.TypeIPAM, conf.TypeIPVlan, conf.TypePTP, conf.TypeEgress,
	conf.TypeAll}

// A Change says how install has changed a file, or would change it without Check.
type Change struct {
	Change string `json:"change"` // create, replace or remove
	Path   string `json:"path"`   // path on the node
}

// An Installation describes the files and units that a node must have.
type Installation struct {
	Place
	Source   *os.Root  // directory with the files to install, at the paths that they have in the image
	Conflist *Conflist // nil: an operator or another program installs a conflist
	Enable   []string  // units to enable and start
	Check    bool      // change nothing
	env      []string  // lines of environmentFile
	changes  []Change
}

// EnterRoot makes dir the root directory of this process (chroot(2)), so that all paths are paths of the node.
func EnterRoot(dir string) error {
	if dir == "/" {
		return nil
	}
	fi, err := os.Stat(dir)
	if err == nil && !fi.IsDir() {
		err = &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return cli.Hint(fmt.Errorf("open the node's root directory: %w", err),
			"mount / of the node at this directory, or give another directory with --root")
	}
	if err := syscall.Chroot(dir); err != nil {
		return fmt.Errorf("enter the node's root directory: chroot %s: %w", dir, err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// Do not use the container's PATH, because the programs of the node may be in other directories.
	return os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

// Install installs all parts. It returns the changes that it has made, also after an error.
func (i *Installation) Install(ctx context.Context) ([]Change, error) {
	files, err := i.nodeFiles()
	if err != nil {
		return nil, err
	}
	if i.Conflist != nil {
		if err := i.Conflist.checkMistakes(i.Place); err != nil { // check before the first change
			return nil, err
		}
	}
	i.warnOfEnabled(files)
	return i.runLocked(ctx, func() error {
		for _, f := range files {
			if err := i.putFile(f); err != nil {
				return err
			}
		}
		if err := i.putEnvironment(); err != nil {
			return err
		}
		if err := i.startUnits(ctx); err != nil {
			return err
		}
		if err := i.putConflist(); err != nil {
			return err
		}
		return i.startWarm(ctx)
	})
}

// runLocked calls the function "steps" under a lock, so that no other process installs at the same time. It returns the
// recorded changes.
func (i *Installation) runLocked(ctx context.Context, steps func() error) ([]Change, error) {
	if !i.Check {
		r, err := registry.Open(registry.Dir())
		if err != nil {
			return nil, err
		}
		unlock, err := r.Lock(ctx, "install")
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	err := steps()
	return i.changes, err
}
