// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Missing lists the programs that the list needs and that a runtime cannot execute.
func (c List) Missing(binDir string) []Mistake {
	r := &review{List: c, file: c.File}
	r.reviewPrograms(binDir)
	return r.mistakes
}

// reviewPrograms looks in the directory dir for the programs that the plugins need. If dir is empty, it does nothing.
func (r *review) reviewPrograms(dir string) {
	if dir == "" {
		return
	}
	for i, m := range r.Plugins {
		if m.Type == "" {
			continue // review.positions reports the missing type
		}
		for _, name := range m.neededPrograms() {
			if slices.Contains(r.comingPrograms, name) {
				continue
			}
			r.reviewProgram(i, filepath.Join(dir, name))
		}
	}
}

// reviewProgram looks for one program that the plugin at position i needs.
func (r *review) reviewProgram(i int, path string) {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && filepath.Base(path) != r.Plugins[i].Type:
		r.report(r.nameOf(i), "there is no %s, which this plugin executes to ask EC2: install this program (--bin-dir "+
			"sets its directory)", path)
	case errors.Is(err, fs.ErrNotExist):
		r.report(r.nameOf(i), "there is no %s: install this program (--bin-dir sets its directory)", path)
	case err != nil:
		r.report(r.nameOf(i), "%v", err)
	case fi.IsDir() || fi.Mode()&0o111 == 0:
		r.report(r.nameOf(i), "%s is no program: want a file that may be executed", path)
	}
}
