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
	r.programs(binDir)
	return r.mistakes
}

// programs looks for the plugins where runtimes do.
func (r *review) programs(dir string) {
	if dir == "" {
		return
	}
	for i, m := range r.Plugins {
		if m.Type == "" {
			continue // chain has found that
		}
		for _, name := range m.programs() {
			if slices.Contains(r.coming, name) {
				continue
			}
			r.program(i, filepath.Join(dir, name))
		}
	}
}

// program looks for one that a member needs.
func (r *review) program(i int, path string) {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && filepath.Base(path) != r.Plugins[i].Type:
		r.wrong(r.where(i), "there is no %s, which it executes to ask EC2: install it "+
			"(--bin-dir says where it is)", path)
	case errors.Is(err, fs.ErrNotExist):
		r.wrong(r.where(i), "there is no %s: install it (--bin-dir says where it is)", path)
	case err != nil:
		r.wrong(r.where(i), "%v", err)
	case fi.IsDir() || fi.Mode()&0o111 == 0:
		r.wrong(r.where(i), "%s is no program: want a file that may be executed", path)
	}
}
