// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package repair puts back objects of the pods' network that a node has lost, by the same wirings as an ADD. It also
// changes the egress of running pods to the present configuration. The conflist, the registry, and the runtime's files
// for the DEL show which objects pods need. Package repair asks neither EC2 nor the metadata service.
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

// Node puts back the objects that this node has lost, and returns these objects. It repairs each configured network
// that has pods on this node. It takes no lock, so it waits for no other process.
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
		for _, part := range []func(context.Context, *nl.NS, conf.Network) ([]string, error){Pods, repairShared} {
			repaired, err := part(ctx, host, n)
			did, failed = append(did, repaired...), errors.Join(failed, err)
		}
	}
	egresses, err := conflists.Egress()
	if !conf.Absent(err) {
		failed = errors.Join(failed, err)
	}
	seen := map[string]bool{} // if two networks have the same name, only the first one counts
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

// repairShared puts back objects that serve all pods of a network.
func repairShared(_ context.Context, host *nl.NS, n conf.Network) (did []string, failed error) {
	w, err := ptp.Repair(host, n.Name, n.Pair)
	for _, s := range w {
		did = append(did, Brief(s.Object))
		slog.Info("restored a removed object", "object", Brief(s.Object))
	}
	if err != nil {
		err = fmt.Errorf("network %s: %w", n.Name, err)
	}
	return did, err
}

// Brief returns the command that adds an object. For a table, it leaves out the contents.
func Brief(o nl.Object) string {
	if t, is := o.(nl.Table); is {
		return "nft table " + t.Family + " " + t.Name
	}
	return o.String()
}
