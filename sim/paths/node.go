// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package paths

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// A Node is an instance for pods. Its methods call the plugins as a container runtime does.
type Node struct {
	*vpcsim.Instance
	Pods []*Pod // in the order of their creation; the caller of Add appends each pod that Add returns

	scene *Scene
	cni   *libcni.CNIConfig
}

// A Pod is a namespace that the plugins have connected.
type Pod struct {
	*vpcsim.Namespace
	Addrs []netip.Addr

	namespace   string // the Kubernetes namespace
	annotations map[string]string
}

// Addr returns the pod's address of a family; zero if the pod has no address of this family.
func (p *Pod) Addr(f Family) netip.Addr {
	if i := slices.IndexFunc(p.Addrs, func(a netip.Addr) bool { return nl.FamilyOf(a) == f }); i >= 0 {
		return p.Addrs[i]
	}
	return netip.Addr{}
}

func (s *Scene) newNode(i *vpcsim.Instance) *Node {
	return &Node{Instance: i, scene: s, cni: libcni.NewCNIConfigWithCacheDir([]string{s.options.Bin},
		i.StateDir+".libcni", &executor{instance: i})}
}

// Validate checks that the plugins support the version of the configuration, as a container runtime does. It also calls
// the verb STATUS: the plugins then check that the kernel has the necessary features.
func (n *Node) Validate(ctx context.Context) error {
	if _, err := n.cni.ValidateNetworkList(ctx, n.scene.list); err != nil {
		return err
	}
	return n.cni.GetStatusNetworkList(ctx, n.scene.list)
}

// Add creates a pod in a Kubernetes namespace. A server in the pod answers at Port. Several goroutines may add pods at
// once.
func (n *Node) Add(ctx context.Context, namespace, name string) (*Pod, error) {
	ns, err := n.scene.NewNamespace(name)
	if err != nil {
		return nil, err
	}
	p := &Pod{Namespace: ns, namespace: namespace, annotations: n.scene.options.Annotations[namespace]}
	r, err := n.cni.AddNetworkList(ctx, n.scene.list, p.runtimeConf())
	if err != nil {
		return nil, fmt.Errorf("ADD %s: %w", name, err)
	}
	result, err := types100.GetResult(r)
	if err != nil {
		return nil, fmt.Errorf("ADD %s: %w", name, err)
	}
	for _, ip := range result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		p.Addrs = append(p.Addrs, a.Unmap())
	}
	for _, f := range n.scene.options.Families {
		if !p.Addr(f).IsValid() || len(p.Addrs) != len(n.scene.options.Families) {
			return nil, fmt.Errorf("ADD %s: addresses %v, want one of each of %v", name, p.Addrs,
				n.scene.options.Families)
		}
	}
	return p, p.Answer(Port)
}

// Check calls the plugins with the verb CHECK for a pod.
func (n *Node) Check(ctx context.Context, p *Pod) error {
	if err := n.cni.CheckNetworkList(ctx, n.scene.list, p.runtimeConf()); err != nil {
		return fmt.Errorf("CHECK %s: %w", p.Name, err)
	}
	return nil
}

// Del deletes a pod as a runtime does: first the network of the pod, then its namespace.
func (n *Node) Del(ctx context.Context, p *Pod) error {
	if err := n.cni.DelNetworkList(ctx, n.scene.list, p.runtimeConf()); err != nil {
		return fmt.Errorf("DEL %s: %w", p.Name, err)
	}
	return p.Close()
}

func (p *Pod) runtimeConf() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: "container-of-" + p.Name, NetNS: p.Path, IfName: "eth0",
		CapabilityArgs: map[string]any{"io.kubernetes.cri.pod-annotations": p.annotations},
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.namespace},
			{"K8S_POD_NAME", p.Name}},
	}
}

// On returns the pods whose addresses are on the ENI with this device index, in the order of their creation.
func (n *Node) On(index int) []*Pod {
	var ps []*Pod
	for _, e := range n.ENIs() {
		for _, p := range n.Pods {
			if e.Index == index && slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return hasAddr(e, a) }) {
				ps = append(ps, p)
			}
		}
	}
	return ps
}

func hasAddr(e ec2sim.ENI, a netip.Addr) bool {
	return slices.Contains(slices.Concat(e.Addrs, e.IPv6Addrs), a) ||
		slices.ContainsFunc(slices.Concat(e.Prefixes, e.IPv6Prefixes),
			func(p netip.Prefix) bool { return p.Contains(a) })
}
