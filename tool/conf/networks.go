// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A Network is a network whose pods get one of our veth pairs.
type Network struct {
	Name     string
	File     string // its conflist
	Pair     ptp.Config
	IPAM     json.RawMessage // ipam's configuration; nil where another plugin gives the addresses
	Slave    *ipvlan.Config  // nil where another plugin makes the pods' links to the VPC, or with a mistake
	Asks     map[string]bool // the capabilities of the plugin that makes these links
	Firewall bool            // its chain has the plugin of that name, which lets each pod's address pass
	Limits   bool            // its pods get the limits of the bandwidth that their annotations have
}

// Networks reads the networks of a conflist, or of all conflists in a directory. If two have
// the same name, the first one counts. For those with a mistake, it returns an error together
// with the others.
func Networks(path string) ([]Network, error) {
	nodes := load(path)
	if errors.Is(nodes.missing, fs.ErrNotExist) && !isRead(path) {
		return nil, nil // without the directory there are no pods of ours
	}
	var all []Network
	seen := map[string]bool{}
	failed := nodes.failed()
	for _, l := range nodes.lists {
		if l.Plugin(TypePTP) == nil || seen[l.Name] {
			continue
		}
		seen[l.Name] = true // with a mistake or not: the next one of its name is an old one
		n, err := NetworkOf(l, l.File)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		all = append(all, n)
	}
	return all, failed
}

// NetworkOf returns the network of a conflist, which is in a file.
func NetworkOf(list List, file string) (Network, error) {
	n := Network{Name: list.Name, File: file, IPAM: list.Plugin(TypeIPAM), Firewall: list.Chains("firewall")}
	raw := list.Plugin(TypePTP)
	if raw == nil {
		return n, fmt.Errorf("%s: there is no %s", file, TypePTP)
	}
	var head, slave struct {
		Capabilities map[string]bool `json:"capabilities"`
	}
	err := errors.Join(json.Unmarshal(raw, &head), json.Unmarshal(raw, &n.Pair))
	if n.Limits = head.Capabilities["bandwidth"]; err == nil {
		err = n.Pair.Validate()
	}
	if err != nil {
		return n, fmt.Errorf("%s: %w", file, err)
	}
	var c ipvlan.Config
	if raw := list.Plugin(TypeIPVlan); raw != nil && json.Unmarshal(raw, &slave) == nil && json.Unmarshal(raw, &c) == nil && c.Validate() == nil {
		n.Slave, n.Asks = &c, slave.Capabilities
	}
	return n, nil
}
