// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A Network is a network whose pods get one of our veth pairs.
type Network struct {
	List
	Pair   ptp.Config
	Slave  *ipvlan.Config  // nil: another plugin makes the pods' links to the VPC, or there is a mistake
	Asks   map[string]bool // the capabilities of the plugin that makes the pods' links to the VPC
	Limits bool            // its pods get the bandwidth limits of their annotations
}

// Networks returns the networks with our veth pairs. Of networks with the same name, only the first counts. If the
// directory of the conflists does not exist, there is no network, and no error.
func (c *Conflists) Networks() ([]Network, error) {
	if errors.Is(c.Unlisted, fs.ErrNotExist) && !isRead(c.Path) {
		return nil, nil
	}
	return slices.Clone(c.networks), errors.Join(c.Unlisted, c.networksFailed)
}

func networksOf(lists []List) (all []Network, failed error) {
	seen := map[string]bool{}
	for _, l := range lists {
		if l.Plugin(TypePTP) == nil || seen[l.Name] {
			continue
		}
		// Mark the name even if the list has a mistake, because only the first list with this name counts.
		seen[l.Name] = true
		n, err := NetworkOf(l)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		all = append(all, n)
	}
	return all, failed
}

// NetworkOf returns the network of a list.
func NetworkOf(list List) (Network, error) {
	pair, slave := list.member(TypePTP), list.member(TypeIPVlan)
	n := Network{List: list, Limits: pair.Capabilities["bandwidth"]}
	if pair.Raw == nil {
		return n, fmt.Errorf("%s: there is no plugin %s", list.File, TypePTP)
	}
	err := errors.Join(pair.mistake, json.Unmarshal(pair.Raw, &n.Pair))
	if err == nil {
		err = n.Pair.Validate()
	}
	if err != nil {
		return n, fmt.Errorf("%s: %w", list.File, err)
	}
	var c ipvlan.Config
	if slave.Raw != nil && slave.mistake == nil && json.Unmarshal(slave.Raw, &c) == nil && c.Validate() == nil {
		n.Slave, n.Asks = &c, slave.Capabilities
	}
	return n, nil
}
