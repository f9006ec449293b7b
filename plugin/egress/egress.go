// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package egress is a plugin with which the packets of chosen pods leave with chosen addresses. So firewalls of
// partners see few addresses, which stay the same.
//
// There are two kinds of pods. A client has a tunnel to the routers (FOU, foo over UDP: IP in UDP, see ip-fou(8)). The
// client sends its packets for the destinations of the configuration through the tunnel to a router. The router
// replaces the packets' source by the router's own VPC address, and sends the packets out through the router's ENI. So
// the route table of the router's subnet decides the public address: a NAT gateway's address, or the router's Elastic
// IP address. A router is an ordinary pod, whose containers have nothing to do.
//
// The far end of a client's tunnel is the ClusterIP of a Service whose endpoints are the routers. kube-proxy chooses a
// router for each client, and keeps its choice as long as this router is an endpoint (sessionAffinity). So no process
// of ours watches the routers. The router sends the answers straight to the client's address. The tunnel's link has no
// remote address: each tunnel packet goes to the next hop of the inner packet's route, see [nl.Tunnel]. So a router has
// one link for all clients, and no list of clients.
//
// In the VPC, the tunnel packets have the pods' own addresses, as EC2's source check demands: kube-proxy has already
// replaced the ClusterIP by the router's address.
//
// The files: client.go has the objects of a client, router.go has the objects of a router, and pod.go has the code for
// both. destinations.go decides which packets leave through a tunnel, and role.go decides which pods may use a tunnel.
// DEL is in end.go, and CHECK is in check.go.
//
// The invariants: the plugin changes nothing for a pod that is neither client nor router. All objects of the plugin are
// in the pod's namespace. Only connections that the pod begins use the tunnel. If a part of the egress is missing,
// packets for the tunnel are dropped. A destination that a client calls never sees the address of the client or of a
// node.
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

// Commands returns the commands of the egress plugin. GC has nothing to do: all objects end with the pod's namespace.
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

// unavailable adds the code CodeNotAvailable and a hint to an error about a part that the kernel lacks, and returns all
// other errors unchanged.
func unavailable(err error) error {
	if !errors.Is(err, nl.ErrNoFOU) && !errors.Is(err, nl.ErrNoTunnel) && !errors.Is(err, nl.ErrNoModule) {
		return err
	}
	return plugin.Errorf(plugin.CodeNotAvailable, plugin.ModulesHint+". An egress needs the modules fou, fou6, ipip "+
		"and ip6_tunnel. Linux 5.10 is too old for an egress", "egress: %w", err)
}

// del deletes the objects of the pod's egress. It does nothing if the pod cannot have a role (mayHaveRole). If it
// cannot delete an object, it only logs the error, because the object ends with the namespace.
func del(ctx context.Context, r *plugin.Request[Config]) error {
	if !r.Config.mayHaveRole(r.Pod) {
		return nil
	}
	err := nl.InPod(ctx, r.NetNS, func(_, pod *nl.NS) error {
		if err := endEgress(pod, r.IfName, nl.PodGroup(r.Digest())); err != nil {
			slog.Warn("DEL could not remove the pod's egress. The kernel removes the egress with the pod's "+
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

// Supported makes a tunnel of a family in the namespace n, to test the kernel. n must end after the test (see
// [nl.Scratch]). The error names the part that the kernel lacks.
func Supported(n *nl.NS, f nl.Family) error {
	local := nl.ByFamily(f, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	return nl.Wiring{
		{NS: n, Object: nl.Up{Dev: "lo"}},
		{NS: n, Object: nl.FOU{Local: local, Port: DefaultPort}},
		{NS: n, Object: nl.Tunnel{Name: linkName(f), Local: local, Port: DefaultPort, MTU: 1280}},
	}.Add()
}
