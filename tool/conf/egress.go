// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
)

// A NetworkEgress has the egresses of a network.
type NetworkEgress struct {
	List List
	egress.Config
	Asks map[string]bool // the capabilities that the egress plugin declares
}

// Egress returns the networks that have an egress. In such a network, a plugin of another project may give the pods
// their addresses.
func (c *Conflists) Egress() ([]NetworkEgress, error) {
	if len(c.Ours()) == 0 && len(c.egresses) == 0 && c.egressesFailed == nil {
		return nil, c.noneError()
	}
	return c.egresses, c.egressesFailed
}

func egressesOf(lists []List) (all []NetworkEgress, failed error) {
	for _, l := range lists {
		n, err := EgressOf(l)
		switch {
		case err != nil:
			failed = errors.Join(failed, err)
		case len(n.Egresses) > 0:
			all = append(all, n)
		}
	}
	return all, failed
}

// EgressOf returns the egresses of one network. If the network has none, the result has no egresses.
func EgressOf(l List) (NetworkEgress, error) {
	m := l.member(TypeEgress)
	n := NetworkEgress{List: l, Asks: m.Capabilities}
	if m.Raw == nil {
		return n, nil
	}
	err := errors.Join(m.mistake, json.Unmarshal(m.Raw, &n.Config), n.Validate())
	if err != nil {
		err = fmt.Errorf("%s: %w", l.File, err)
	}
	return n, err
}

// PodAnnotations reports whether the egress plugin gets the annotations of pods.
func (n NetworkEgress) PodAnnotations() bool { return n.Asks[podAnnotations] }

// MayChoose reports whether pods of a Kubernetes namespace may choose their addresses.
func (n NetworkEgress) MayChoose(namespace string) bool {
	return n.List.IPAM != nil && slices.ContainsFunc(n.List.IPAM.Permissions, func(p lease.Permission) bool {
		return p.IPs && plugin.Namespaces(p.Namespaces).Has(namespace)
	})
}
