// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package egress is a plugin that makes the packets of chosen pods leave with chosen addresses. So firewalls of
// partners see few addresses, and these addresses stay the same.
//
// There are two kinds of pods. A client has a tunnel to the routers (FOU, foo over UDP: IP in UDP, see ip-fou(8)). The
// configuration lists some destinations. The client sends its packets for these destinations through the tunnel to one
// router. The router writes its own VPC address into these packets as the source, and sends the packets out through its
// ENI. So the route table of the router's subnet decides the public address: a NAT gateway's address, or the router's
// Elastic IP address. A router is an ordinary pod. Its containers have nothing to do, because the kernel forwards the
// packets.
//
// The far end of a client's tunnel is the ClusterIP of a Service whose endpoints are the routers. kube-proxy chooses a
// router for each client, and keeps its choice (sessionAffinity) as long as this router is an endpoint. So this project
// needs no process that watches the routers. The router sends the answers straight to the client's address. The
// tunnel's link has no remote address: the kernel sends each tunnel packet to the next hop of the inner packet's route,
// see [nl.Tunnel]. So a router has one link for all clients, and needs no list of clients.
//
// Before a tunnel packet enters the VPC, kube-proxy replaces the ClusterIP by the router's address. So in the VPC, the
// outer source and destination are the pods' own addresses, as EC2's source check demands.
//
// The files: client.go has the objects of a client, router.go has the objects of a router, and pod.go has the code for
// both. destinations.go decides which packets leave through a tunnel, and role.go decides which pods may use a tunnel.
// DEL is in end.go, and CHECK is in check.go.
//
// The invariants: if a pod is neither client nor router, the plugin changes nothing. All objects of the plugin are in
// the pod's namespace. Only connections that the pod begins use the tunnel. If a part of the egress is missing, packets
// for the tunnel are dropped. If a client begins a connection to a destination, the destination never sees the address
// of the client or of a node.
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

// Commands returns the commands of the egress plugin. GC has nothing to do: all objects of the plugin end with the
// pod's namespace.
func Commands() plugin.Commands[Config] {
	return plugin.Commands[Config]{Add: add, Del: del, Check: check, Status: status}
}

func add(ctx context.Context, r *plugin.Request[Config]) (*types100.Result, error) {
	role, err := r.Config.roleOf(r.Pod)
	if err != nil {
		return nil, err
	}
	if r.Prev == nil {
		return nil, plugin.Errorf(plugin.CodeInvalid, "put this plugin after the plugins that give the pod its address",
			"must be called as chained plugin")
	}
	if role.isNone() {
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

// unavailable adds the code CodeNotAvailable and a hint to an error about a part that the kernel lacks. It returns all
// other errors unchanged.
func unavailable(err error) error {
	if !errors.Is(err, nl.ErrNoFOU) && !errors.Is(err, nl.ErrNoTunnel) && !errors.Is(err, nl.ErrNoModule) {
		return err
	}
	return plugin.Errorf(plugin.CodeNotAvailable,
		"load the modules fou, fou6, ipip and ip6_tunnel when the node boots, see modules-load.d(5); "+
			"on some distributions they are in the package linux-modules-extra or kernel-modules-extra; Linux 5.10 is "+
			"too old for an egress", "egress: %w", err)
}

// del deletes the objects of the pod's egress. If mayHaveRole shows that the pod has no role, del does nothing. If del
// cannot delete an object, it only logs the error, because the object ends with the namespace.
func del(ctx context.Context, r *plugin.Request[Config]) error {
	if !r.Config.mayHaveRole(r.Pod) {
		return nil
	}
	err := nl.InPod(ctx, r.NetNS, func(_, pod *nl.NS) error {
		if err := endEgress(pod, r.IfName, nl.PodGroup(r.Digest())); err != nil {
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

// status returns an error if the configuration has an egress, but the kernel has no FOU.
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

// Supported makes a tunnel of a family in the namespace n, to test the kernel. This namespace must end after the test
// (see [nl.Scratch]). The error names the part that the kernel lacks.
func Supported(n *nl.NS, f nl.Family) error {
	local := nl.ByFamily(f, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	return nl.Wiring{
		{NS: n, Object: nl.Up{Dev: "lo"}},
		{NS: n, Object: nl.FOU{Local: local, Port: DefaultPort}},
		{NS: n, Object: nl.Tunnel{Name: linkName(f), Local: local, Port: DefaultPort, MTU: 1280}},
	}.Add()
}
