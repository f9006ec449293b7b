// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A Network is a network whose pods get one of our veth pairs.
type Network struct {
	Name     string
	File     string // its conflist
	Pair     ptp.Config
	IPAM     json.RawMessage // ipam's configuration; nil where another plugin gives the addresses
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
		raw := l.Plugin(TypePTP)
		if raw == nil || seen[l.Name] {
			continue
		}
		n := Network{Name: l.Name, File: l.File, IPAM: l.Plugin(TypeIPAM), Firewall: l.Chains("firewall")}
		seen[n.Name] = true // with a mistake or not: the next one of its name is an old one
		var head struct {
			Capabilities map[string]bool `json:"capabilities"`
		}
		err := errors.Join(json.Unmarshal(raw, &head), json.Unmarshal(raw, &n.Pair))
		if n.Limits = head.Capabilities["bandwidth"]; err == nil {
			err = n.Pair.Validate()
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", l.File, err))
			continue
		}
		all = append(all, n)
	}
	return all, failed
}
