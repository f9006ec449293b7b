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
)

// del deletes the pair, what hangs on its host end, and, while it is at it, the link
// that the ipvlan plugin has made: a DEL is for the whole chain, and comes to ipvlan
// next. It needs neither the namespace nor prevResult, and what it does not find is
// deleted already.
//
// It fails only for what it cannot delete on the node. What it cannot delete in the pod
// ends with the namespace, and the pod may have seen to that: its DEL would fail for ever.
func del(ctx context.Context, r *plugin.Request[Config]) error {
	host, err := nl.Host()
	if err != nil {
		return err
	}
	defer host.Close()
	pod, err := host.OpenOther("pod", r.NetNS)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var eni nl.Link // if the pod has one
	own := pod      // nil where anything is another attachment's
	if pod != nil {
		defer pod.Close()
		eni, _ = pod.LinkByName(r.IfName)
		if shared(r, pod, eni) {
			own = nil
		}
	}
	veth := vethName(r.Network, r.Attachment)
	var failed error
	if _, err := host.LinkByName(veth); err != nil { // there is none, or nobody knows
		failed = delOriginal(ctx, host, own, r)
	}
	failed = errors.Join(failed, host.DelRules(veth))
	if pod != nil {
		delPod(r, pod, own, eni)
	}
	// Most often it is gone with the group.
	return errors.Join(failed, nl.Wiring{{NS: host, Object: nl.Veth{Name: veth}}}.Del())
}

// shared tells whether a namespace has a link of another attachment, or may have one. All
// but the links there is then another's: the path was the pod's, and is another pod's by
// now, as "/proc/1234/ns/net" may be; or this is about a second network, which an ADD has
// refused. Where one has succeeded, and the pod has its ENI still, there is no other.
func shared(r *plugin.Request[Config], pod *nl.NS, eni nl.Link) bool {
	if eni.Group == r.LinkGroup() && r.Prev != nil {
		return false
	}
	links, err := pod.Links()
	return err != nil || nl.InGroup(links, r.Anothers) != ""
}

// delPod deletes what the pod has of ours: the links, and if the namespace is its own the
// rest.
func delPod(r *plugin.Request[Config], pod, own *nl.NS, eni nl.Link) {
	err := pod.DelGroup(r.LinkGroup())
	if errors.Is(err, fs.ErrNotExist) { // the pod is from before there were groups, or this is the second DEL
		err = nil
	}
	if own != nil {
		err = errors.Join(err, remains(r, own, eni).Del())
	}
	if err != nil {
		slog.Warn("what DEL has to leave ends with the namespace", "error", err)
	}
}

// remains is what a pod may have of ours besides the links of the group.
func remains(r *plugin.Request[Config], pod *nl.NS, eni nl.Link) nl.Wiring {
	w := append(nl.Wiring{{NS: pod, Object: nl.Table{Family: "inet", Name: nl.OwnTable}}}, callerRules(r, pod)...)
	if eni.Name != "" && eni.Group != r.LinkGroup() { // another plugin's, or as old
		w = append(w, nl.Step{NS: pod, Object: nl.Splice{ENI: r.IfName, Veth: r.Config.ContainerInterface}})
		for _, o := range r.Config.RuntimeConfig.Bandwidth.objects(r) {
			w = append(w, nl.Step{NS: pod, Object: o})
		}
	}
	return append(w, beyondPair(r, pod)...)
}

// beyondPair is what a pod may have of ours that does not go with a link: routes by
// none, and, where it has kept its ENI, routes and filters there. Most pods have none,
// and need not be asked.
func beyondPair(r *plugin.Request[Config], pod *nl.NS) (w nl.Wiring) {
	if r.Prev != nil && r.Config.DefaultRoute != byVPC && len(blocked(r, pair{addrs: addrsOf(r.Prev)})) == 0 {
		return nil
	}
	w = append(w, nl.Step{NS: pod, Object: nl.Forbid{Devs: links(r)}})
	routes, err := pod.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	if err != nil {
		return w // they end with the namespace
	}
	for _, route := range routes {
		if route.Dev != r.Config.ContainerInterface {
			w = append(w, nl.Step{NS: pod, Object: route})
		}
	}
	return w
}
