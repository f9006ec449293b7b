// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ptp is the last plugin of the chain, unnumbered-ptp. It puts a veth pair without
// addresses between the pod and the node.
//
// A pod reaches the VPC by its ENI. The pod reaches everything else by the veth pair: the node itself, Kubernetes
// Services, and the internet with the node's address. A service needs both ways. The pod sends to the service's address
// by the veth. kube-proxy on the node changes that address to the address of a backend in the VPC. The packet must then
// leave by the pod's ENI with the pod's address. The answer must return to the node, which remembers what kube-proxy
// has changed. See serviceloop.go.
//
// Some things on the node serve all pods: sysctls, a rule for NodePorts, and one table of
// nftables. ADD checks and repairs them. DEL leaves them.
//
// The invariants: everything of one pod is attached to the node's end of its veth pair. A name of that link follows
// from the attachment alone, so DEL, CHECK and GC find it without further knowledge. The plugin never deletes an object
// without our names or our protocol number.
package ptp

//go:generate go run ../internal/codec/gen

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Commands are the commands of the unnumbered-ptp plugin.
func Commands() plugin.Commands[Config] {
	return plugin.Commands[Config]{
		Add: func(ctx context.Context, r *plugin.Request[Config]) (res *types100.Result, err error) {
			err = onNode(ctx, r, func(r *request) error {
				res, err = add(r)
				return err
			})
			return res, err
		},
		Del:    command(del),
		Check:  command(func(_ context.Context, r *request) error { return check(r) }),
		GC:     command(func(_ context.Context, r *request) error { return gc(r) }),
		Status: command(func(_ context.Context, r *request) error { return status(r) }),
	}
}

// command adapts a function to CNI's requests.
func command(f func(context.Context, *request) error) func(context.Context, *plugin.Request[Config]) error {
	return func(ctx context.Context, r *plugin.Request[Config]) error {
		return onNode(ctx, r, func(r *request) error { return f(ctx, r) })
	}
}

// A request is a command of CNI with the node's namespace and with prevResult, both opened
// and parsed once.
type request struct {
	*plugin.Request[Config]
	nodeNS *nl.NS

	// What prevResult says. The plugin passes prevResult itself on, and reads it no more.
	nics     []plugin.NIC   // of the attachment
	addrs    []netip.Addr   // of its first NIC, each once; the rest is about that NIC, too
	gateways []netip.Addr   // of these addresses
	routes   []netip.Prefix // destinations of its routes, each once

	eni    string     // the link of the ENI if the pod is routed, see routed.go; otherwise empty
	sender netip.Addr // the ENI's address of IPv4 with which the node asks for the VPC router
}

// onNode calls f with the request of a command in the node's namespace.
func onNode(ctx context.Context, r *plugin.Request[Config], f func(*request) error) error {
	node, err := nl.NodeOf(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	return f(newRequest(node, r))
}

func newRequest(node *nl.NS, r *plugin.Request[Config]) *request {
	q := &request{Request: r, nodeNS: node}
	if r.Prev == nil {
		return q
	}
	q.nics = plugin.NICs(r.Prev, r.IfName)
	q.addrs = q.nics[0].Addrs()
	if eni, is := plugin.Routed(r.Prev, r.IfName); is {
		q.eni, q.sender = eni, senderOf(r.Prev, q.addrs)
	}
	for _, c := range q.nics[0].IPs {
		if a, ok := plugin.Addr(c.Gateway); ok {
			q.gateways = append(q.gateways, a)
		}
	}
	for _, route := range r.Prev.Routes {
		if dst, ok := plugin.Prefix(route.Dst); ok && !slices.Contains(q.routes, dst.Masked()) {
			q.routes = append(q.routes, dst.Masked())
		}
	}
	return q
}

// gateway is the first of a family; the zero address if there is none.
func (r *request) gateway(f nl.Family) netip.Addr {
	a, _ := first(r.gateways, f)
	return a
}

// routed reports whether prevResult has a default route of the family.
func (r *request) routed(f nl.Family) bool { return slices.Contains(r.routes, f.Everywhere()) }

// podLinks are the names of the pod's two links. A routed pod has one.
func (r *request) podLinks() []string {
	if r.routedPod() {
		return []string{r.IfName}
	}
	return []string{r.IfName, r.Config.ContainerInterface}
}

// first is the first address of a family.
func first(addrs []netip.Addr, f nl.Family) (netip.Addr, bool) {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return nl.FamilyOf(a) == f })
	if i < 0 {
		return netip.Addr{}, false
	}
	return addrs[i], true
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// A scene is what an ADD and a CHECK find.
type scene struct {
	*request
	podNS   *nl.NS
	node    node
	podMTU  int     // of the pod's link to the VPC; of a routed pod, that of the ENI
	further bool    // the attachment is a further one of its pod
	eni     nl.Link // of a routed pod's ENI
	linked  bool    // a routed pod has a link of the name that its pair has

	unhooked bool // see [nl.Link.Unhooked]
}

// open opens the pod's namespace, and reads what a command must know of pod and node.
func open(r *request) (*scene, error) {
	s := &scene{request: r}
	err := s.read()
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *scene) read() (err error) {
	if s.node, err = readNode(s.nodeNS, &s.Config); err != nil {
		return err
	}
	if s.podNS, err = s.nodeNS.OpenOther("pod", s.NetNS); err != nil {
		return err
	}
	if s.routedPod() {
		return s.readRouted()
	}
	eni, err := s.podNS.SeenLink(s.IfName)
	if err != nil {
		return fmt.Errorf("pod: %w", err)
	}
	s.podMTU, s.unhooked = eni.MTU, eni.Unhooked()
	s.further, err = s.isFurther(eni)
	return err
}

func (s *scene) close() {
	if s.podNS != nil {
		s.podNS.Close()
	}
}

// steps are steps in one namespace.
func steps(ns *nl.NS, objects []nl.Object) nl.Wiring {
	w := make(nl.Wiring, 0, len(objects))
	for _, o := range objects {
		w = append(w, nl.Step{NS: ns, Object: o})
	}
	return w
}
