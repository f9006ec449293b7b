// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// serviceBackends maps each Service to the place of its backend. A sibling is a pod on the ENI of pod1. A cousin is a
// pod on another ENI of the same node.
var serviceBackends = map[string]paths.Place{
	remoteService:  paths.PodOn(1, 1, 0),
	siblingService: paths.PodOn(0, 1, 1),
	cousinService:  paths.PodOn(0, 2, 0),
}

const (
	remoteService  = "172.20.0.10:80"
	siblingService = "172.20.0.11:80"
	cousinService  = "172.20.0.12:80"
)

var toServices = []paths.Path{
	{Name: "pod to a service, another node", From: pod1, To: serviceAt(remoteService), Seen: paths.Itself},
	{Name: "pod to a service, the same ENI", From: pod1, To: serviceAt(siblingService), Seen: paths.Itself},
	{Name: "pod to a service, the other ENI", From: pod1, To: serviceAt(cousinService), Seen: paths.Itself},
}

var pod1 = paths.PodOn(0, 1, 0)

// serviceAt returns the place of the Service with this ClusterIP and port.
func serviceAt(addr string) paths.Place {
	return func(*paths.Scene, paths.Family) (paths.End, error) {
		return paths.End{Addr: netip.MustParseAddrPort(addr)}, nil
	}
}

// checkPaths tries each path of the demo, and checks that the fabric has dropped no packet.
func (s *scene) checkPaths(ctx context.Context, out *output) (err error) {
	proxy, err := s.kubeProxy()
	if err != nil {
		return err
	}
	if err := proxy.Add(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, proxy.Del()) }()
	for _, p := range slices.Concat(paths.Daily, toServices) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		out.showProgress("checking: %s", p.Name)
		r := p.Try(s.Scene, paths.IPv4, paths.Quick)
		out.printVerdict(p.Name, pathText(r), r.Err)
	}
	drops, err := s.Drops()
	if err == nil && drops != (vpcsim.Drops{}) {
		err = errors.New(drops.String())
	}
	out.printVerdict("the fabric has dropped nothing", drops.String(), err)
	return s.Err()
}

func pathText(r paths.Result) string {
	to := r.To.Addr.Addr().String()
	if r.To.Namespace == nil {
		to = r.To.Addr.String()
	}
	return fmt.Sprintf("%-13s > %-14s %s, as %s", r.From.Addr.Addr(), to, strings.Join(r.Passed, ", "), r.Seen)
}

// kubeProxy returns nftables rules for the first node. The rules replace a ClusterIP by the address of the backend.
func (s *scene) kubeProxy() (nl.Wiring, error) {
	c := nl.Chain{Name: "services", Type: "nat", Hook: "prerouting", Priority: -100}
	for service, backend := range serviceBackends {
		addr := netip.MustParseAddrPort(service)
		b, err := backend(s.Scene, paths.IPv4)
		if err != nil {
			return nil, err
		}
		c.Rules = append(c.Rules, nl.NFRule{
			nl.DAddr(netip.PrefixFrom(addr.Addr(), 32)), nl.DPort("tcp", addr.Port(), addr.Port()), nl.DNAT(b.Addr)})
	}
	return nl.Wiring{{NS: s.Nodes[0].NS, Object: nl.Table{Family: "ip", Name: "kube-proxy", Chains: []nl.Chain{c}}}},
		nil
}
