// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/atomicfile"
)

// ReplaceFile replaces the file at path by data: whole, or not at all. The caller must hold a lock (see
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
