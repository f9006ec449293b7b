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

// del deletes the pair and everything attached to the node's end. It deletes the slave of the ipvlan plugin in the same
// request: a DEL is for the whole chain, and ipvlan is next. del needs neither the namespace nor prevResult. What it
// does not find is deleted already.
//
// del fails only if it cannot delete something on the node. What it cannot delete in the pod ends with the namespace.
// The pod may have caused the failure, and its DEL would then fail for ever.
func del(ctx context.Context, r *request) error {
	pod, err := r.nodeNS.OpenOther("pod", r.NetNS)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var eni nl.Link // if the pod has one
	own := pod      // nil if the namespace may have something of another attachment
	if pod != nil {
		defer pod.Close()
		eni, _ = pod.LinkByName(r.IfName)
		if shared(r, pod, eni) {
			own = nil
		}
	}
	veth := VethName(r.Network, r.Attachment)
	var failed error
	if _, err := r.nodeNS.LinkByName(veth); err != nil { // it is not there, or the kernel did not answer
		failed = errors.Join(delUnnamed(r), legacy.Del(ctx, r.nodeNS, own, legacy.Pod{Network: r.Network,
			ContainerID: r.ContainerID, Link: r.Config.ContainerInterface, Prev: r.Prev, Veth: veth}))
	}
	failed = errors.Join(failed, r.nodeNS.DelRules(veth))
	if pod != nil {
		delPod(r, pod, own, eni)
	}
	// The group most often contained it.
	return errors.Join(failed, nl.Wiring{{NS: r.nodeNS, Object: nl.Veth{Name: veth}}}.Del())
}

// shared reports whether a namespace has, or may have, another attachment that is the first of
// its pod. Then everything except our links and the tables of our NICs belongs to the other. Either
// this is about a further attachment, or the path now leads to another pod, as
// "/proc/1234/ns/net" may. If the ADD of a first attachment has succeeded and the pod still has
// its ENI, there is no other first one.
func shared(r *request, pod *nl.NS, eni nl.Link) bool {
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

// delPod deletes our links in the pod, and everything else of ours if the namespace is the
// pod's own.
func delPod(r *request, pod, own *nl.NS, eni nl.Link) {
	group := nl.PodGroup(r.Digest())
	var err error
	if r.Prev == nil || plugin.Several(r.Prev) || nl.Attachment(eni.Group) == nl.FurtherGroup(group) {
		err = pod.DelFurther(group) // before the link, which shows that there may be something
	}
	gone := pod.DelGroup(group)
	// the pod is from a release without groups, or the attachment is a further one, or this is the second DEL
	if errors.Is(gone, fs.ErrNotExist) {
		gone = pod.DelGroup(nl.FurtherGroup(group))
	}
	if !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	if own != nil {
		err = errors.Join(err, remains(r, own, eni).Del())
	}
	if err != nil {
		slog.Warn("DEL could not remove everything in the pod: the kernel removes the rest with the pod's "+
			"namespace", "error", err)
	}
}

// remains lists our objects in a pod, without the links of the group.
func remains(r *request, pod *nl.NS, eni nl.Link) nl.Wiring {
	w := append(nl.Wiring{{NS: pod, Object: nl.Table{Family: "inet", Name: nl.OwnTable}}},
		steps(pod, callerRules(r))...)
	if eni.Name != "" && eni.Group != nl.PodGroup(r.Digest()) { // of another plugin, or of an older release
		w = append(w, nl.Step{NS: pod, Object: nl.Splice{ENI: r.IfName, Veth: r.Config.ContainerInterface}})
		w = append(w, steps(pod, r.Config.RuntimeConfig.Bandwidth.objects(r.podLinks()))...)
	}
	return append(w, beyondPair(r, pod)...)
}

// beyondPair lists our objects in a pod that the deletion of a link does not delete. Such objects are routes without a
// link, and routes and filters of an ENI that the pod still has. Most pods have none, and need not be asked.
func beyondPair(r *request, pod *nl.NS) (w nl.Wiring) {
	if r.Prev != nil && r.Config.DefaultRoute != byVPC && len(blocked(r, pair{addrs: r.addrs})) == 0 {
		return nil
	}
	w = append(w, nl.Step{NS: pod, Object: nl.Forbid{Devs: r.podLinks()}})
	routes, err := pod.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	if err != nil {
		return w // they end with the namespace
	}
	for _, route := range routes {
		if route.Dev != r.Config.ContainerInterface && !nl.IsFurtherTable(route.Table) {
			w = append(w, nl.Step{NS: pod, Object: route})
		}
	}
	return w
}
