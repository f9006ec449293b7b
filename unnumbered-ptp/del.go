// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp/legacy"
)

// del deletes the pair and all objects that belong to the node's end. One netlink message deletes the pair together
// with the slave, which the DEL of ipvlan would delete next. del needs neither the namespace nor prevResult, and a
// missing object counts as deleted.
//
// del fails only because of an object on the node. For an object in the pod, del only logs the error. The object ends
// with the namespace, and a program in the pod could make the deletion fail for ever.
func del(ctx context.Context, r *request) error {
	pod, err := r.nodeNS.OpenOther("pod", r.NetNS)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var eni nl.Link // the pod's link to the VPC; the zero Link if the pod has no such link
	ownNS := pod    // nil if the namespace may have objects of another attachment
	if pod != nil {
		defer pod.Close()
		eni, _ = pod.LinkByName(r.IfName)
		if hasOtherFirst(r, pod, eni) {
			ownNS = nil
		}
	}
	veth := VethName(r.Network, r.Attachment)
	var failed error
	if _, err := r.nodeNS.LinkByName(veth); err != nil { // there is no such link, or the kernel did not answer
		failed = errors.Join(delUnnamed(r), legacy.Del(ctx, r.nodeNS, ownNS, legacy.Pod{Network: r.Network,
			ContainerID: r.ContainerID, Link: r.Config.ContainerInterface, Prev: r.Prev, Veth: veth}))
	}
	failed = errors.Join(failed, r.nodeNS.DelRules(veth))
	if pod != nil {
		delPod(r, pod, ownNS, eni)
	}
	// most often the pair is gone already, because delPod has deleted the group of the pod's end
	return errors.Join(failed, nl.Wiring{{NS: r.nodeNS, Object: nl.Veth{Name: veth}}}.Del())
}

// hasOtherFirst reports whether another attachment may be the first attachment of the pod in this namespace. If so,
// only our links and the routing tables of our NICs belong to our attachment. Another attachment may be the first in
// two cases:
//
//   - The DEL is for a further attachment of the pod.
//   - The path of the namespace, for example "/proc/1234/ns/net", now leads to another pod.
//
// If our ADD has succeeded, and the pod still has our link with the group of a first attachment, no other attachment is
// the first.
func hasOtherFirst(r *request, pod *nl.NS, eni nl.Link) bool {
	group := nl.PodGroup(r.Digest())
	if nl.Attachment(eni.Group) == nl.FurtherGroup(group) {
		return true
	}
	if nl.Attachment(eni.Group) == group && r.Prev != nil {
		return false
	}
	links, err := pod.Links()
	return err != nil || nl.OtherFirst(links, group)
}

// delPod deletes our links in the pod. If ownNS is not nil, delPod also deletes our other objects there.
func delPod(r *request, pod, ownNS *nl.NS, eni nl.Link) {
	group := nl.PodGroup(r.Digest())
	var err error
	if r.Prev == nil || plugin.Several(r.Prev) || nl.Attachment(eni.Group) == nl.FurtherGroup(group) {
		// Call DelFurther before DelGroup deletes the link eni: only this link shows that there may be a further NIC.
		err = pod.DelFurther(group)
	}
	gone := pod.DelGroup(group)
	// The group may have no link: an older release has made the pod, the attachment is a further attachment, or an
	// earlier DEL has deleted the links.
	if errors.Is(gone, fs.ErrNotExist) {
		gone = pod.DelGroup(nl.FurtherGroup(group))
	}
	if !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	if ownNS != nil {
		err = errors.Join(err, remainingObjects(r, ownNS, eni).Del())
	}
	if err != nil {
		slog.Warn("DEL could not remove everything in the pod. The kernel removes the rest with the pod's "+
			"namespace", "error", err)
	}
}

func remainingObjects(r *request, pod *nl.NS, eni nl.Link) nl.Wiring {
	w := append(nl.Wiring{{NS: pod, Object: nl.Table{Family: "inet", Name: nl.OwnTable}}},
		nl.Steps(pod, callerRules(r))...)
	if eni.Name != "" && eni.Group != nl.PodGroup(r.Digest()) { // another plugin, or an older release, made the link
		w = append(w, nl.Step{NS: pod, Object: nl.Splice{ENI: r.IfName, Veth: r.Config.ContainerInterface}})
		w = append(w, nl.Steps(pod, r.Config.RuntimeConfig.Bandwidth.objects(r.podLinks()))...)
	}
	return append(w, objectsBesideLinks(r, pod)...)
}

// objectsBesideLinks lists our objects that remain in a pod when our links are deleted. These are routes without a
// link. If the pod still has its link to the VPC, the list also has the routes and filters of this link. In most pods,
// nothing remains, and then objectsBesideLinks does not read the routes from the kernel.
func objectsBesideLinks(r *request, pod *nl.NS) (w nl.Wiring) {
	if r.Prev != nil && r.Config.DefaultRoute != byVPC && len(blockedAddrs(r, pair{addrs: r.addrs})) == 0 {
		return nil
	}
	w = append(w, nl.Step{NS: pod, Object: nl.Forbid{Devs: r.podLinks()}})
	routes, err := pod.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	if err != nil {
		return w // the routes end with the namespace
	}
	for _, route := range routes {
		if route.Dev != r.Config.ContainerInterface && !nl.IsFurtherTable(route.Table) {
			w = append(w, nl.Step{NS: pod, Object: route})
		}
	}
	return w
}
