// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package repair puts back what a node has lost of its pods' network: what serves all pods, and what belongs to one of
// them. It brings the egress of running pods to the present configuration. It knows what that was from the conflist,
// the registry, what the runtime keeps for the DEL, and the kernel. It asks neither EC2 nor the metadata service. It
// makes what an ADD would make, by the same lists.
package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// Node puts back what this node has lost, for each network of the configuration that has pods here, and
// returns what that was. It waits for no other process.
func Node(ctx context.Context, conflists *conf.Conflists) ([]string, error) {
	did := []string{}
	host, err := nl.Node()
	if err != nil {
		return did, err
	}
	defer host.Close()
	networks, failed := conflists.Networks()
	failed = errors.Join(failed, conflists.Unread())
	for _, n := range networks {
		for _, part := range []func(context.Context, *nl.NS, conf.Network) ([]string, error){Pods, shared} {
			repaired, err := part(ctx, host, n)
			did, failed = append(did, repaired...), errors.Join(failed, err)
		}
	}
	egresses, err := conflists.Egress()
	if !conf.Absent(err) {
		failed = errors.Join(failed, err)
	}
	seen := map[string]bool{} // of two networks with one name, the first one counts
	for _, n := range egresses {
		if seen[n.List.Name] {
			continue
		}
		seen[n.List.Name] = true
		repaired, err := Egress(ctx, host, n)
		did, failed = append(did, repaired...), errors.Join(failed, err)
	}
	repaired, err := Guards(host)
	return append(did, repaired...), errors.Join(failed, err)
}

// shared puts back what serves all pods of a network.
func shared(_ context.Context, host *nl.NS, n conf.Network) (did []string, failed error) {
	w, err := Shared(host, n)
	for _, s := range w {
		did = append(did, Brief(s.Object))
		slog.Info("restored what was removed", "object", Brief(s.Object))
	}
	if err != nil {
		err = fmt.Errorf("network %s: %w", n.Name, err)
	}
	return did, err
}

// Lost lists what a network's pods share and the node has lost.
func Lost(host *nl.NS, n conf.Network) (nl.Wiring, error) { return ptp.Lost(host, n.Name, n.Pair) }

// Shared puts back what serves all pods of a network, and returns what that was.
func Shared(host *nl.NS, n conf.Network) (nl.Wiring, error) { return ptp.Repair(host, n.Name, n.Pair) }

// Brief is the command that adds an object, of a table without what is in it.
func Brief(o nl.Object) string {
	if t, is := o.(nl.Table); is {
		return "nft table " + t.Family + " " + t.Name
	}
	return o.String()
}
