// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"io/fs"
	"os"
)

// ReplaceFile puts data at path, whole or not at all. The caller holds a lock, so the new
// file always has the same name, and one that a killed process has left is overwritten.
func ReplaceFile(path string, data []byte, mode fs.FileMode) error {
	tmp := path + ".new"
	err := os.WriteFile(tmp, data, mode)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
	}
	return err
}
