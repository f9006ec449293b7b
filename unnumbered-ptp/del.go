// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"context"
	"errors"
	"io/fs"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// del deletes the pair, what hangs on its host end, and, while it is at it, the link
// that the ipvlan plugin has made: a DEL is for the whole chain, and comes to ipvlan
// next. It needs neither the namespace nor prevResult, and what it does not find is
// deleted already.
func del(ctx context.Context, r *plugin.Request[Config]) error {
	host, err := nl.Host()
	if err != nil {
		return err
	}
	defer host.Close()
	pod, err := nl.Open("pod", r.NetNS)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if pod != nil {
		defer pod.Close()
	}
	veth := vethName(r.Network, r.Attachment)
	var failed error
	if _, err := host.LinkByName(veth); errors.Is(err, fs.ErrNotExist) {
		failed = delOriginal(ctx, host, pod, r)
	}
	failed = errors.Join(failed, host.DelRules(veth))
	if pod != nil {
		failed = errors.Join(failed, delPod(r, pod))
	}
	// Most often it is gone with the group.
	return errors.Join(failed, nl.Wiring{{NS: host, Object: nl.Veth{Name: veth}}}.Del())
}

// delPod deletes what the pod has of ours.
func delPod(r *plugin.Request[Config], pod *nl.NS) error {
	err := pod.DelGroup(r.LinkGroup())
	if errors.Is(err, fs.ErrNotExist) { // the pod is from before there were groups, or this is the second DEL
		err = nil
	}
	w := append(nl.Wiring{{NS: pod, Object: nl.Table{Family: "inet", Name: nl.OwnTable}}}, callerRules(r, pod)...)
	if _, gone := pod.LinkByName(r.IfName); gone == nil { // another plugin's, or as old
		w = append(w, nl.Step{NS: pod, Object: nl.Splice{ENI: r.IfName, Veth: r.Config.ContainerInterface}})
		for _, o := range r.Config.RuntimeConfig.Bandwidth.objects(r) {
			w = append(w, nl.Step{NS: pod, Object: o})
		}
	}
	return errors.Join(err, append(w, beyondPair(r, pod)...).Del())
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
