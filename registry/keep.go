// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"os"
	"path/filepath"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/atomicfile"
)

// Keep writes a file with this name into the registry's directory, whole or not at all. The file may be lost, so use
// Keep only for data that a process can find out again. The caller must hold a lock that excludes other writers. If
// another process has deleted the directory, Keep fails.
func (r *Registry) Keep(name string, content []byte) error {
	dir, err := os.OpenRoot(r.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return atomicfile.Replace(dir, name, 0o600, content)
}

// Kept returns the content of the file that Keep has written with this name.
func (r *Registry) Kept(name string) ([]byte, error) { return os.ReadFile(filepath.Join(r.dir, name)) }

// Drop deletes the file that Keep has written with this name, if there is one.
func (r *Registry) Drop(name string) { os.Remove(filepath.Join(r.dir, name)) }
