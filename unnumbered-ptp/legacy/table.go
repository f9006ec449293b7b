// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package legacy

import (
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// tableOf is the name that earlier releases gave a network's table. If the names of two networks differed only in a
// dash, a dot or an underscore, they had the same table.
func tableOf(network string) string {
	return nl.OwnTableOf(strings.NewReplacer("_", "-", ".", "-").Replace(network))
}

// DelTable deletes the table that an earlier release made for a network, if the network has a table of another name
// now. DelTable keeps the older table if another network with pods has, or had, this table. others returns the networks
// with pods. DelTable does not see a network without pods. If such a network relies on the older table, and is about to
// get its first pod, Repair of package ptp must run for that network.
func DelTable(node *nl.NS, network string, others func() ([]string, error)) error {
	old, own := tableOf(network), nl.OwnTableOf(network)
	if old == own {
		return nil
	}
	tables, err := node.Tables()
	if err != nil || !slices.Contains(tables, "inet "+own) || !slices.Contains(tables, "inet "+old) {
		return err
	}
	networks, err := others()
	if err != nil || slices.ContainsFunc(networks, func(other string) bool {
		return other != network && tableOf(other) == old
	}) {
		return err
	}
	return nl.Wiring{{NS: node, Object: nl.Table{Family: "inet", Name: old}}}.Del()
}
