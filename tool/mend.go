// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A paired network is one whose pods get a veth pair of ours.
type paired struct {
	name     string
	pair     ptp.Config
	firewall bool // its chain has the plugin of that name, which lets each pod's address pass
}

// pairedNetworks reads those of a conflist, or of all in a folder, of which the first of a
// name counts. Of those that have a mistake it returns an error beside the others.
func pairedNetworks(path string) ([]paired, error) {
	files, err := conflistsAt(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // so there are no pods of ours
	}
	var all []paired
	seen := map[string]bool{}
	failed := err
	for _, f := range files {
		list, err := readConflist(f)
		if raw := list.plugin(typePTP); err == nil && raw != nil && !seen[list.Name] {
			n := paired{name: list.Name, firewall: list.chains("firewall")}
			seen[n.name] = true // with a mistake or not: the next one of its name is an old one
			if err = json.Unmarshal(raw, &n.pair); err == nil {
				err = n.pair.Validate()
			}
			if err == nil {
				all = append(all, n)
			} else {
				err = fmt.Errorf("%s: %w", f, err)
			}
		}
		failed = errors.Join(failed, err)
	}
	return all, failed
}

// mend puts back what the node has lost of what serves all pods of these networks, and
// says what that was.
func mend(host *nl.NS, path string) ([]string, error) {
	networks, failed := pairedNetworks(path)
	did := []string{}
	for _, n := range networks {
		w, err := ptp.Mend(host, n.name, n.pair)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("network %s: %w", n.name, err))
		}
		for _, s := range w {
			did = append(did, brieflyOf(s.Object))
		}
	}
	return did, failed
}

// brieflyOf is the command that adds an object, of a table without what is in it.
func brieflyOf(o nl.Object) string {
	if t, is := o.(nl.Table); is {
		return "nft table " + t.Family + " " + t.Name
	}
	return o.String()
}
