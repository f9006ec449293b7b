// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// sightings is the file that remembers since when an ENI was seen to leak. Losing it
// costs time: every leak is then seen for the first time.
type sightings struct{ file string }

func sightingsAt(file string) sightings {
	return sightings{cmp.Or(file, filepath.Join(registry.Dir(), "eni-gc.json"))}
}

func (s sightings) read() (map[string]time.Time, error) {
	b, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var seen map[string]time.Time
	if err := json.Unmarshal(b, &seen); err != nil {
		return nil, hinted{fmt.Errorf("%s: %w", s.file, err), "remove the file: what leaks will be seen again"}
	}
	return seen, nil
}

func (s sightings) write(seen map[string]time.Time) error {
	b, err := json.Marshal(seen)
	if err != nil {
		return err
	}
	return replaceFile(s.file, append(b, '\n'), 0o600)
}

// replaceFile puts data at path, whole or not at all. The caller holds a lock, so the new
// file always has the same name, and one that a killed process has left is overwritten.
func replaceFile(path string, data []byte, mode fs.FileMode) error {
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
