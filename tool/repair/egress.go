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

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// The code in this file gives running clients and routers of egresses the present configuration. For each pod, repair
// needs the inputs of the pod's ADD: the annotations of the pod, and the answer of the plugins. Only the runtime keeps
// these inputs. Without the inputs, repair does not change the pod.

// An Outdated is a running client or router that differs from the configuration.
type Outdated struct {
	NetNS string
	Err   error // why repair cannot change the egress, or nil

	lease   registry.Lease
	request *plugin.Request[egress.Config]
	differs string
	role    string
}

// Owner names the pod.
func (o Outdated) Owner() string { return view.Owner(o.lease) }

// String says what differs.
func (o Outdated) String() string {
	if o.Err != nil {
		return o.Err.Error()
	}
	return o.differs
}

// OutdatedBy lists the running pods whose egress differs from the configuration of a network, routers first. A router
// refuses packets to a destination that it does not know yet, so it must get a new destination before its clients.
func OutdatedBy(host *nl.NS, n conf.NetworkEgress) (all []Outdated) {
	s, _ := readRegistry() // if another plugin gives addresses, there is no registry
	leased := leasesOf(n.List.Name, s)
	for at, t := range keptADDs(n.List.Name) {
		l := t.Lease()
		if known, is := leased[at]; is {
			l = known
		}
		added := t.addResult()
		if l.NetNS == "" || added == nil || len(added.IPs) == 0 {
			continue
		}
		c := n.Config
		t.fillConfig(n.Asks, &c.RuntimeConfig)
		o := Outdated{NetNS: l.NetNS, lease: l,
			request: &plugin.Request[egress.Config]{Network: n.List.Name, Attachment: l.Attachment, NetNS: l.NetNS,
				Pod: plugin.Pod{Namespace: l.PodNamespace, Name: l.PodName}, Config: c, Prev: added}}
		if o.Err = o.comparePod(host, func(*egress.Renewal) error { return nil }); o.Err != nil || o.differs != "" {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b Outdated) int {
		if a.role != b.role {
			return strings.Compare(b.role, a.role) // "router" comes before "client"
		}
		return strings.Compare(a.lease.Key.String(), b.lease.Key.String())
	})
	return all
}

// comparePod compares the pod with the configuration. If there are differences, comparePod calls "change" with them. A
// pod that has ended has no differences.
func (o *Outdated) comparePod(host *nl.NS, change func(*egress.Renewal) error) error {
	pod, err := host.OpenOther("pod", o.NetNS)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pod.Close()
	x, err := egress.Outdated(o.request, pod)
	if !hasOneAddr(pod, o.request.IfName, o.request.Prev) {
		return nil // the pod has ended, and another pod may have the namespace by now
	}
	if err != nil || x == nil || x.None() {
		return err
	}
	o.differs, o.role = x.String(), x.Role
	return change(x)
}

// Renew changes the pod's egress to the present configuration. It compares the pod again, because the pod may have
// ended.
func (o Outdated) Renew(host *nl.NS) (did string, err error) {
	if err = o.Err; err == nil {
		o.differs = ""
		err = o.comparePod(host, (*egress.Renewal).Apply)
	}
	if err != nil {
		return "", fmt.Errorf("the egress of %s cannot change to the present configuration, so delete the pod: %w",
			o.Owner(), err)
	}
	if o.differs == "" {
		return "", nil
	}
	slog.Info("changed a pod's egress to the present configuration", "pod", o.Owner(), "role", o.role,
		"differed", o.differs)
	return "egress of " + o.Owner(), nil
}

// Egress changes all running clients and routers of a network to the present configuration, and returns the changes.
func Egress(_ context.Context, host *nl.NS, n conf.NetworkEgress) (did []string, failed error) {
	for _, o := range OutdatedBy(host, n) {
		if errors.Is(o.Err, egress.ErrRole) {
			slog.Warn("the configuration now gives a pod another role in an egress, but a running pod keeps its role: "+
				"delete the pod",
				"pod", o.Owner(), "why", o.Err)
			continue
		}
		done, err := o.Renew(host)
		if failed = errors.Join(failed, err); done != "" {
			did = append(did, done)
		}
	}
	return did, failed
}
