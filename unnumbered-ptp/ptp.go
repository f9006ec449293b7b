// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ptp is the third plugin of the chain, unnumbered-ptp. It puts a veth pair between the pod and the node. The
// node's end of the pair has no address.
//
// A pod reaches the VPC through its ENI. The pod reaches everything else through the veth pair: the node itself,
// Kubernetes Services, and the internet with the node's address. A packet to a Service needs both links. The pod sends
// it through the veth to the node, where kube-proxy changes its destination to a backend. If the backend is in the VPC,
// the packet must leave through the pod's ENI with the pod's address. The answer must return to the node, which
// remembers the change. See serviceloop.go.
//
// Some objects on the node serve all pods: sysctls, routing rules, and tables of nftables. An ADD checks and repairs
// them, and a DEL leaves them on the node.
//
// The invariants: all objects of a pod on the node belong to the node's end of its veth pair. A name of this link
// follows from the attachment alone, so DEL, CHECK and GC find it without other data. The plugin deletes only objects
// with our names or our protocol number, and objects of the original plugin: see package legacy.
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

// Commands returns the commands of the unnumbered-ptp plugin.
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

// Repeat does the ADD again for a running pod that has lost its pair. If the pod works with the node's present shared
// objects, Repeat does not change them: newer pods may need them, and the pod may have an older configuration.
func Repeat(ctx context.Context, r *plugin.Request[Config]) error {
	return onNode(ctx, r, func(r *request) error {
		r.repeated = true
		_, err := add(r)
		return err
	})
}

// command turns a function for this package's requests into a function for [plugin.Commands].
func command(f func(context.Context, *request) error) func(context.Context, *plugin.Request[Config]) error {
	return func(ctx context.Context, r *plugin.Request[Config]) error {
		return onNode(ctx, r, func(r *request) error { return f(ctx, r) })
	}
}

// A request is a command of CNI. It has the node's namespace, and the values of prevResult.
type request struct {
	*plugin.Request[Config]
	nodeNS *nl.NS

	// From prevResult:
	nics     []plugin.NIC   // of the attachment
	addrs    []netip.Addr   // of the first NIC, each once; gateways and routes are also the first NIC's
	gateways []netip.Addr   // the gateways of addrs
	routes   []netip.Prefix // destinations of the routes, each once

	eni    string     // the link of the ENI if the pod is routed, see routed.go; otherwise empty
	sender netip.Addr // the ENI's IPv4 address, from which the node asks for the VPC router by ARP

	repeated bool       // see [Repeat]
	others   []loopDsts // of other pods of the network, see reach.go
}

// onNode opens the node's namespace, and calls f with the request of a command.
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

func (r *request) gateway(f nl.Family) netip.Addr { return nl.FirstAddr(r.gateways, f) }

func (r *request) hasDefaultRoute(f nl.Family) bool { return slices.Contains(r.routes, f.Everywhere()) }

// podLinks returns the names of the pod's link to the VPC and of its end of the pair. A routed pod has only its end of
// the pair.
func (r *request) podLinks() []string {
	if r.isRoutedPod() {
		return []string{r.IfName}
	}
	return []string{r.IfName, r.Config.ContainerInterface}
}

// A scene has the facts that an ADD or a CHECK has read from the node and the pod.
type scene struct {
	*request
	podNS   *nl.NS
	node    node
	podMTU  int     // of the pod's link to the VPC; for a routed pod, of the ENI's link
	further bool    // the attachment is a further attachment of its pod
	eni     nl.Link // for a routed pod: the link of its ENI
	linked  bool    // the namespace of a routed pod already has a link with the name IfName

	repairs  bool // see hasWithAnyMTU
	unhooked bool // see [nl.Link.Unhooked]
}

// openScene opens the pod's namespace, and reads what an ADD or a CHECK must know about pod and node.
func openScene(r *request) (*scene, error) {
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
	if s.isRoutedPod() {
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
