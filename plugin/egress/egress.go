// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package egress is a plugin: the packets of chosen pods leave with chosen addresses. Firewalls of partners then see
// few addresses, and these stay the same.
//
// There are two kinds of pods. A client sends its packets to some destinations through a tunnel (IP in UDP: foo over
// UDP, FOU, ip-fou(8)) to a router. A router gives them its own address of the VPC, and sends them out by its ENI. So
// the route table of the router's subnet decides the public address: a NAT gateway's address, or the router's Elastic
// IP address. A router is an ordinary pod, whose containers may do nothing.
//
// The far end of a client's tunnel is the ClusterIP of a Service whose endpoints are the routers. For a client,
// kube-proxy chooses the router, and keeps it (sessionAffinity) until the router is no endpoint any more. So no process
// of ours watches pods. The answers go straight to the client's address. A tunnel has no remote address: see
// [nl.Tunnel]. So a router has one link for all clients, and knows none of them.
//
// The outer addresses of all packets are the pods' own, as EC2's source check wants it.
//
// The files: client.go and router.go are what the two kinds get, and pod.go is what both need to know. What leaves by
// a tunnel is in destinations.go, and which pod may use it in role.go. DEL is in end.go, and CHECK in check.go.
//
// The invariants: if a pod is neither client nor router, the plugin changes nothing. Everything is in the pod's
// namespace. Only connections that the pod begins use the tunnel. If a part of the egress is missing, packets for the
// tunnel are dropped. No packet to a destination leaves by the address of the client, or of a node.
package egress

//go:generate go run ../../internal/codec/gen

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Commands are the commands of the egress plugin. GC has nothing to do: all that it makes ends
// with the pod's namespace.
func Commands() plugin.Commands[Config] {
	return plugin.Commands[Config]{Add: add, Del: del, Check: check, Status: status}
}

func add(ctx context.Context, r *plugin.Request[Config]) (*types100.Result, error) {
	role, err := r.Config.role(r.Pod)
	if err != nil {
		return nil, err
	}
	if r.Prev == nil {
		return nil, plugin.Errorf(plugin.CodeInvalid, "put it after the plugins that give the pod its address",
			"must be called as chained plugin")
	}
	if role.none() {
		return r.Prev, nil
	}
	return r.Prev, nl.InPod(ctx, r.NetNS, func(_, pod *nl.NS) error {
		p, err := readPod(r, pod)
		if err != nil || p == nil {
			return err
		}
		w, err := p.wiring(r, role)
		if err == nil {
			err = w.Add()
		}
		return unavailable(err)
	})
}

// unavailable gives a hint to the error of a kernel that lacks something.
func unavailable(err error) error {
	if !errors.Is(err, nl.ErrNoFOU) && !errors.Is(err, nl.ErrNoTunnel) && !errors.Is(err, nl.ErrNoModule) {
		return err
	}
	return plugin.Errorf(plugin.CodeNotAvailable,
		"load the modules fou, fou6, ipip and ip6_tunnel when the node boots, see modules-load.d(5); "+
			"on some distributions they are in the package linux-modules-extra or kernel-modules-extra; Linux 5.10 is "+
			"too old for an egress", "egress: %w", err)
}

// del deletes what the pod has, if its configuration may give it anything. What cannot be deleted
// does not fail DEL, because it ends with the namespace.
func del(ctx context.Context, r *plugin.Request[Config]) error {
	if !r.Config.concerns(r.Pod) {
		return nil
	}
	err := nl.InPod(ctx, r.NetNS, func(_, pod *nl.NS) error {
		if err := end(pod, r.IfName, nl.PodGroup(r.Digest())); err != nil {
			slog.Warn("DEL could not remove the pod's egress: the kernel removes it with the pod's "+
				"namespace", "error", err)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) { // the namespace is gone
		return nil
	}
	return err
}

// status fails if pods of the node may get a tunnel, and the kernel has none.
func status(ctx context.Context, r *plugin.Request[Config]) error {
	if len(r.Config.Egresses) == 0 {
		return nil
	}
	node, err := nl.NodeOf(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	return unavailable(nl.FOU{}.Supported(node))
}

// Supported makes a tunnel of a family in a namespace that ends after that (see [nl.Scratch]). Its
// error names what the kernel lacks.
func Supported(n *nl.NS, f nl.Family) error {
	local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if f == nl.IPv6 {
		local = netip.IPv6Loopback()
	}
	return nl.Wiring{
		{NS: n, Object: nl.Up{Dev: "lo"}},
		{NS: n, Object: nl.FOU{Local: local, Port: DefaultPort}},
		{NS: n, Object: nl.Tunnel{Name: linkName(f), Local: local, Port: DefaultPort, MTU: 1280}},
	}.Add()
}
