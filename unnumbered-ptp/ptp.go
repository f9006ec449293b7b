// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ptp is the last plugin of the chain, unnumbered-ptp: it puts a veth
// pair without addresses between the pod and the node.
//
// By its ENI a pod reaches the VPC, and by the veth pair everything else: the
// node itself, Kubernetes services, and, with the node's address, the internet.
// A service is where the two meet: the pod sends to the service's address, by the
// veth; kube-proxy on the node rewrites that to the address of a backend in the
// VPC; and then the packet has to leave by the pod's ENI with the pod's address,
// and the answer to come back to where the rewriting is remembered. See loop.go.
//
// What serves all pods is on the node once: some sysctls, a rule for NodePorts,
// and one table of nftables. ADD checks it and repairs it; DEL leaves it.
//
// The invariants: all that belongs to one pod hangs on the host end of its veth
// pair, whose name follows from the attachment alone, so that DEL, CHECK and GC
// need nothing else to find it; and what bears neither our names nor our protocol
// number is never deleted.
package ptp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Commands are the commands of the unnumbered-ptp plugin.
func Commands() plugin.Commands[Config] {
	return plugin.Commands[Config]{Add: add, Del: del, Check: check, GC: gc, Status: status}
}

func add(_ context.Context, r *plugin.Request[Config]) (*types100.Result, error) {
	if err := chained(r); err != nil {
		return nil, err
	}
	s, err := open(r)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if first := nl.InGroup(s.links, r.Anothers); first != "" {
		return nil, r.SecondNetwork(first)
	}
	if err := s.node.meets(r); err != nil {
		return nil, err
	}
	if err := install(nodeWiring(r, s.node, s.host)); err != nil {
		return nil, unavailable(err)
	}
	p, there := s.pair(r)
	made, err := s.connect(r, p, there)
	if err == nil {
		return result(r, p), nil
	}
	if made && !there {
		err = errors.Join(err, delPair(s.host, p.veth.Name)) // with its rules: the last may be there without an answer
	}
	return nil, unavailable(err)
}

// connect makes the veth pair, unless it is there, and all that goes with it. If that fails,
// made tells whether the pair may be there.
func (s *scene) connect(r *plugin.Request[Config], p pair, there bool) (made bool, err error) {
	if err := (nl.Wiring{{NS: s.host, Object: p.veth}}).Add(); err != nil {
		return errors.Is(err, nl.ErrUnanswered), err
	}
	return true, s.wire(r, p, there)
}

// wire adds all but the veth pair, on whose index the number of the table depends.
func (s *scene) wire(r *plugin.Request[Config], p pair, there bool) error {
	var err error
	for _, loop := range r.Config.loops() {
		p.loop = loop
		table, failed := s.table(r, p, there)
		if failed = errors.Join(failed, s.supersede(p)); failed != nil {
			return failed
		}
		err = wiring(r, p, s.node, table, s.host, s.pod).Add()
		if !errors.Is(err, nl.ErrNoBPF) {
			break
		}
	}
	return err
}

// chained refuses what is not the last plugin of a chain, or does not fit what is before it.
func chained(r *plugin.Request[Config]) error {
	const hint = "put cni-ipvlan-vpc-k8s-ipam and cni-ipvlan-vpc-k8s-ipvlan before it in the chain"
	switch {
	case r.Prev == nil:
		return plugin.Errorf(plugin.CodeInvalid, hint, "must be called as chained plugin")
	case len(addrsOf(r.Prev)) == 0:
		return plugin.Errorf(plugin.CodeInvalid, hint, "got no container IPs")
	case r.Config.ContainerInterface == r.IfName:
		return plugin.Errorf(plugin.CodeInvalid, "it is the name of the pod's end of the veth pair, eth1 for example",
			"containerInterface: %q: that is the pod's link to the VPC", r.IfName)
	}
	for _, a := range addrsOf(r.Prev) {
		if r.Config.DefaultRoute == byVPC && !plugin.Gateway(r.Prev, a.Is6()).IsValid() {
			return plugin.Errorf(plugin.CodeInvalid, hint, `defaultRoute "vpc": prevResult names no gateway for %s`, a)
		}
	}
	return nil
}

// check looks for all that is ours alone. The routes in the pod, and the
// destinations of those on the node, a later plugin may have changed (CNI
// specification, CHECK).
func check(_ context.Context, r *plugin.Request[Config]) error {
	if err := chained(r); err != nil {
		return err
	}
	s, err := open(r)
	if err != nil {
		return err
	}
	defer s.close()
	p, _ := s.pair(r)
	if err := (nl.Wiring{{NS: s.host, Object: p.veth}}).Check(); err != nil {
		return err
	}
	if err := serves(r, s.node, s.host); err != nil {
		return err
	}
	n, err := s.whenMade(p)
	if err != nil {
		return err
	}
	// A pod that was made before an upgrade, or under another configuration, has
	// the other loop, which is as good, and may not know callers from others.
	return anyRight(r.Config.anyPair(p), func(p pair) error { return s.checkPod(r, p, n) })
}

// anyRight returns nil if one of the ways that a pod may be is right, and otherwise what is
// wrong with the first, unless that is only that the pod has a loop.
func anyRight(ways []pair, wrong func(pair) error) (first error) {
	for _, p := range ways {
		err := wrong(p)
		if err == nil {
			return nil
		}
		if first == nil || errors.Is(first, errLooped) {
			first = err
		}
	}
	return first
}

func (s *scene) checkPod(r *plugin.Request[Config], p pair, n node) error {
	table, err := s.table(r, p, true)
	if err != nil {
		return err
	}
	var w nl.Wiring
	for _, step := range wiring(r, p, n.primaries(), table, s.host, s.pod) {
		if route, is := step.Object.(nl.Route); !is || step.NS == s.host && (route.Table == 0 || route.Table == tableLoopless) {
			w = append(w, step)
		}
	}
	return slices.DeleteFunc(w, minor).Check()
}

// minor tells of a step whether a pod does without it, though not as well: it is a sysctl, but
// none that forwards, or a spare route, which pods of older releases have not.
func minor(s nl.Step) bool {
	switch o := s.Object.(type) {
	case nl.Sysctl:
		return !strings.HasSuffix(o.Key, "forward") && !strings.HasSuffix(o.Key, "forwarding")
	case nl.Route:
		return o.Metric > 0
	}
	return false
}

// A scene is what an ADD and a CHECK find.
type scene struct {
	host, pod *nl.NS
	node      node
	links     []nl.Link // of the pod
	podMTU    int       // of its link to the VPC
}

func open(r *plugin.Request[Config]) (*scene, error) {
	host, err := nl.Host()
	if err != nil {
		return nil, err
	}
	s := &scene{host: host}
	if s.node, err = readNode(host, r.Config); err != nil {
		s.close()
		return nil, err
	}
	if s.pod, err = host.OpenOther("pod", r.NetNS); err != nil {
		s.close()
		return nil, err
	}
	if s.links, err = s.pod.Links(); err != nil {
		s.close()
		return nil, err
	}
	i := slices.IndexFunc(s.links, func(l nl.Link) bool { return l.Name == r.IfName })
	if i < 0 {
		s.close()
		return nil, fmt.Errorf("pod: link %s: no such device", r.IfName)
	}
	s.podMTU = s.links[i].MTU
	return s, nil
}

func (s *scene) close() {
	s.host.Close()
	if s.pod != nil {
		s.pod.Close()
	}
}
