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

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A Loss has the objects that a running pod has lost.
type Loss struct {
	Attachment
	ptp.Loss
}

// Owner names the pod.
func (l Loss) Owner() string { return view.Owner(l.lease) }

// LostBy lists what the running pods of a network have lost. It reads the node's rules and routes once for all pods.
// The second result has the links that barePairs returns.
func LostBy(host *nl.NS, n conf.Network, s *registry.State) (lost []Loss, unknown []nl.Link, failed error) {
	all, isUnknown, failed := attachmentsOf(host, n, s)
	if isUnknown == nil {
		return nil, nil, failed
	}
	forget, err := host.List("")
	if err != nil {
		return nil, nil, err
	}
	defer forget()
	for _, a := range all {
		l, err := a.findLoss(host)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", view.Owner(a.lease), err))
		} else if !l.None() {
			lost = append(lost, l)
		}
	}
	forget()
	unknown, err = barePairs(host, n, isUnknown)
	return lost, unknown, errors.Join(failed, err)
}

// UnknownPod is the fault of each pair in the second result of LostBy.
const UnknownPod = "the node has lost its routes to this pod, and repair cannot put them back. Neither the " +
	"registry nor the container runtime knows the pod's attachment"

// barePairs looks for pairs that have lost their routes, and whose pods no source knows. It returns the node's ends of
// these pairs. The pair of a pod that has just started may not have its routes yet. So barePairs reads the sources
// again. It then finds the lease of such a pod, because an ADD makes the lease before the pair.
func barePairs(host *nl.NS, n conf.Network, unclaimed func(nl.Link) bool) ([]nl.Link, error) {
	all, err := ptp.Bare(host, n.Name)
	known := func(l nl.Link) bool { return !unclaimed(l) }
	if all = slices.DeleteFunc(all, known); err != nil || len(all) == 0 {
		return nil, err
	}
	s, _ := readRegistry() // without a registry, the runtime's files are the source
	if _, unclaimed, err = attachmentsOf(host, n, s); unclaimed == nil {
		return nil, err
	}
	return slices.DeleteFunc(all, known), nil
}

// findLoss returns what the attachment has lost. A pod that has ended has lost nothing. A pod has ended if its
// namespace is gone, or if both its link to the VPC and its pair are gone. A DEL deletes both.
func (a Attachment) findLoss(host *nl.NS) (l Loss, err error) {
	l.Attachment = a
	pod, err := host.OpenOther("pod", a.lease.NetNS)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, err
	}
	defer pod.Close()
	_, err = pod.LinkByName(a.lease.IfName)
	if errors.Is(err, fs.ErrNotExist) {
		return l, a.withoutLink(host, pod, &l, err)
	}
	if err != nil {
		return l, err
	}
	var faults []nl.Fault
	if a.slave != nil {
		if faults, err = ipvlan.Faults(a.slave, host, pod); err != nil {
			return l, err
		}
	}
	if l.Loss, err = ptp.Missing(host, a.pair); err != nil {
		if _, gone := pod.LinkByName(a.lease.IfName); errors.Is(gone, fs.ErrNotExist) {
			return Loss{}, nil // a DEL has ended the pod
		}
		return l, err
	}
	l.Pod = append(faults, l.Pod...)
	if l.Unpaired && !a.hasAddr(pod) {
		return Loss{}, nil // another pod has the namespace by now
	}
	return l, nil
}

// withoutLink records in the loss l that the pod's link to the VPC is missing. If the pair is gone, too, the pod has
// ended, and withoutLink records nothing.
func (a Attachment) withoutLink(host, pod *nl.NS, l *Loss, missing error) error {
	links, err := host.Links()
	near, is := ptp.NearOf(links, a.pair.Network, a.pair.Attachment)
	if err == nil && (!is || !leadsTo(host, near, a.lease.NetNS)) {
		return nil
	}
	l.Veth = near.Name
	l.Pod = []nl.Fault{{Step: nl.Step{NS: pod, Object: nl.Up{Dev: a.lease.IfName}}, Wrong: missing}}
	return err
}

// hasAddr reports whether the pod has one of the attachment's addresses.
func (a Attachment) hasAddr(pod *nl.NS) bool { return hasOneAddr(pod, a.lease.IfName, a.pair.Prev) }

// hasOneAddr reports whether the pod's link has one of the addresses in the result of the pod's ADD.
func hasOneAddr(pod *nl.NS, link string, added *types100.Result) bool {
	found, _ := pod.Addrs(link) // if this fails, the pod has ended
	wanted := plugin.NIC{IPs: added.IPs}.Addrs()
	return slices.ContainsFunc(found, func(f nl.Addr) bool { return slices.Contains(wanted, f.Prefix.Addr()) })
}

// Pods puts back the objects that running pods of the network need, and that the node has lost. It returns these
// objects. If an object is lost in a pod's namespace, Pods only warns.
func Pods(ctx context.Context, host *nl.NS, n conf.Network) (did []string, failed error) {
	s, unread := readRegistry()
	lost, unknown, failed := LostBy(host, n, s)
	for _, l := range lost {
		repaired, err := l.Repair(ctx, host)
		did, failed = append(did, repaired...), errors.Join(failed, err)
		for _, f := range l.Pod {
			slog.Warn("a pod has lost a part of its network in its own namespace, and repair does not change that "+
				"namespace: delete the pod", "pod", l.Owner(), "lost", f.Error())
		}
	}
	for _, l := range unknown {
		failed = errors.Join(failed, fmt.Errorf("%s (%s): %s. Delete the pod", l.Name, l.Alias, UnknownPod))
	}
	if len(unknown) > 0 {
		failed = errors.Join(failed, unread)
	}
	return did, failed
}

// Repair puts back the lost objects on the node, and returns them. If the pair is gone, it repeats the ADD of the
// pair's plugin.
func (l Loss) Repair(ctx context.Context, host *nl.NS) (did []string, failed error) {
	pod := l.Owner()
	if l.Unpaired {
		if l.unlimited {
			slog.Warn("the runtime does not report the limits of a pod's bandwidth, so the pod's new veth pair has "+
				"no limits. If the pod needs limits, delete the pod", "pod", pod)
		}
		// The new pair has the name of the old pair. So the old pair's rules would lead packets of the new pair to the
		// old table.
		if _, err := ptp.RemoveDetached(host); err != nil {
			return nil, err
		}
		if err := ptp.Repeat(ctx, l.pair); err != nil {
			return nil, fmt.Errorf("%s has lost its veth pair %s, and repair cannot put the pair back, so delete the "+
				"pod: %w", pod,
				l.Veth, err)
		}
		slog.Info("put back a pod's veth pair with its routes and rules, because another program or an operator had "+
			"deleted the pair", "pod", pod)
		return []string{"veth pair of " + pod}, nil
	}
	done, err := ptp.Restore(host, l.Loss)
	for _, s := range done {
		did = append(did, Brief(s.Object)+" of "+pod)
		slog.Info("restored a removed object", "object", Brief(s.Object), "pod", pod)
	}
	if err = errors.Join(err, l.Changed); err != nil {
		err = fmt.Errorf("%s: the node has lost a part of this pod's network, and repair cannot put it back: %w",
			pod, err)
	}
	return did, err
}

func readRegistry() (*registry.State, error) {
	r, err := registry.Open(registry.Dir())
	if err != nil {
		return nil, err
	}
	return r.View()
}
