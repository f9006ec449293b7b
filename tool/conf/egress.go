// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
)

// Egress reads the plugin egress' configuration from a file, or from the first file of a directory
// that has our plugins. It has no egress if the plugin is not in the list.
func Egress(path string) (*egress.Config, error) {
	files, err := conflistsAt(path)
	if err != nil {
		return nil, err
	}
	var unread error
	for _, f := range files {
		list, err := Read(f)
		if err != nil || list.Plugin(TypeIPAM) == nil {
			unread = errors.Join(unread, err)
			continue
		}
		c := new(egress.Config)
		if raw := list.Plugin(TypeEgress); raw != nil {
			if err := errors.Join(json.Unmarshal(raw, c), c.Validate()); err != nil {
				return nil, fmt.Errorf("%s: %w", f, err)
			}
		}
		return c, nil
	}
	return nil, errors.Join(fmt.Errorf("%s: %w", path, ErrNone), unread)
}
