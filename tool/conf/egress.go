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
	nodes := load(path)
	if nodes.missing != nil {
		return nil, nodes.missing
	}
	ours := nodes.ours()
	if len(ours) == 0 {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, ErrNone), nodes.unread) // one of these may be ours
	}
	for _, l := range ours {
		n := NetworkEgress{Network: l.Name}
		var err error
		if raw := l.Plugin(TypeEgress); raw != nil {
			err = errors.Join(json.Unmarshal(raw, &n.Config), n.Validate())
		}
		switch {
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("%s: %w", l.File, err))
		case len(n.Egresses) > 0:
			all = append(all, n)
		}
	}
	return all, failed
}
