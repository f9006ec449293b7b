// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
)

// A NetworkEgress has the egresses of a network.
type NetworkEgress struct {
	Network string
	egress.Config
}

// Egress reads the egresses of the networks of a conflist, or of all conflists in a directory. A network without an egress is not
// among them. For those with a mistake, it returns an error together with the others.
func Egress(path string) (all []NetworkEgress, failed error) {
	files, err := conflistsAt(path)
	if err != nil {
		return nil, err
	}
	ours, none := false, fmt.Errorf("%s: %w", path, ErrNone)
	for _, f := range files {
		list, err := Read(f)
		if err != nil || list.Plugin(TypeIPAM) == nil {
			none = errors.Join(none, err) // it may be ours
			continue
		}
		ours = true
		n := NetworkEgress{Network: list.Name}
		if raw := list.Plugin(TypeEgress); raw != nil {
			err = errors.Join(json.Unmarshal(raw, &n.Config), n.Validate())
		}
		switch {
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("%s: %w", f, err))
		case len(n.Egresses) > 0:
			all = append(all, n)
		}
	}
	if !ours {
		return nil, none
	}
	return all, failed
}
