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

// Egress returns the egresses of our networks. A network without an egress is not among them.
func (c *Conflists) Egress() ([]NetworkEgress, error) {
	if len(c.Ours()) == 0 {
		return nil, c.none()
	}
	return c.egresses, c.egressesFailed
}

func egressesOf(ours []List) (all []NetworkEgress, failed error) {
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
