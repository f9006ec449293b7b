// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package repair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// settledAfter is how old a lease is whose ADD has ended, whatever became of it: no runtime
// waits longer (containerd: 4 minutes).
const settledAfter = 5 * time.Minute

// Unpaired lists the leases of a network's running pods that have lost their veth pair:
// somebody has deleted it. With it went the pod's default route, and its routes and rules on
// the node. Pods that the registry does not know by their containers are not among them:
// nobody knows how their pairs were called.
func Unpaired(host *nl.NS, n conf.Network, s *registry.State) (lost []registry.Lease, failed error) {
	for veth, l := range owners(n, s) {
		if time.Since(l.Since) < settledAfter {
			continue // an ADD may be about to make it
		}
		if _, err := host.LinkByName(veth); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		running, err := running(n, s, l)
		failed = errors.Join(failed, err)
		if running {
			lost = append(lost, l)
		}
	}
	slices.SortFunc(lost, func(a, b registry.Lease) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return lost, failed
}

// running reports whether the namespace of a lease is there, has an address of it on the
// attachment's link, and should have a pair. A pod without that link has had its DEL. A further
// attachment of a pod has no pair.
func running(n conf.Network, s *registry.State, l registry.Lease) (bool, error) {
	ns, err := nl.Open(l.NetNS, l.NetNS)
	if errors.Is(err, fs.ErrNotExist) || l.NetNS == "" {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer ns.Close()
	pairless, err := ptp.Pairless(ns, n.Name, l.Attachment)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || pairless {
		return false, err
	}
	addrs, err := ns.Addrs(l.IfName)
	held := s.HeldBy(l.Key, l.NIC)
	return slices.ContainsFunc(addrs, func(a nl.Addr) bool { return slices.Contains(held, a.Prefix.Addr()) }), err
}

// Pairs puts back the veth pairs of a network's running pods that somebody has deleted, with all that goes
// with them, and returns what that was. It is the pods' ADD again, as the registry and the configuration tell it.
func Pairs(ctx context.Context, host *nl.NS, n conf.Network) (did []string, failed error) {
	s, err := leases()
	if err != nil {
		return nil, nil // without a registry nobody knows; a step that needs it says so
	}
	lost, failed := Unpaired(host, n, s)
	for _, l := range lost {
		pod := view.Owner(l)
		if err := pair(ctx, n, s, l); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s has lost its veth pair %s, which cannot be put back: delete the pod: %w", pod, ptp.VethName(n.Name, l.Attachment), err))
			continue
		}
		did = append(did, "veth pair of "+pod)
		slog.Info("put back a pod's veth pair, and all that goes with it, which somebody had deleted", "pod", pod)
	}
	return did, failed
}

// pair is the ADD of the last plugin for a lease.
func pair(ctx context.Context, n conf.Network, s *registry.State, l registry.Lease) error {
	added, err := recall(n, s, l)
	if err != nil {
		return err
	}
	_, err = ptp.Commands().Add(ctx, &plugin.Request[ptp.Config]{Network: n.Name, Attachment: l.Attachment, NetNS: l.NetNS,
		Pod: plugin.Pod{Namespace: l.PodNamespace, Name: l.PodName}, Config: limited(n, l), Prev: added})
	return err
}
