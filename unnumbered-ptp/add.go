// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"errors"
	"io/fs"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

func add(r *request) (*types100.Result, error) {
	if err := checkChained(r); err != nil {
		return nil, err
	}
	s, err := openScene(r)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if s.further {
		return s.addFurther()
	}
	if err := s.node.checkFamilies(r); err != nil {
		return nil, err
	}
	if err := s.checkHooks(); err != nil {
		return nil, err
	}
	p, there := s.pair()
	// Another program may have removed the alternative name by which s.pair finds the pair.
	if s.linked && !there {
		p, there = s.findPair()
	}
	made, err := s.connect(p, there)
	if err == nil {
		return result(r, p), nil
	}
	if made && !there && (errors.Is(err, nl.ErrUnanswered) || !s.hasRouteTo(p)) {
		// If the kernel's answer to the last request was lost, the object of this request may exist. The node's rules,
		// and the objects that block the metadata service, do not end with the pair, so delete them, too.
		blocks := append(metadataBlock(r, p), metadataBlockFurther(r, r.nics, 1, p.loop)...)
		err = errors.Join(err, s.delPair(p), nl.Steps(s.podNS, blocks).Del())
	}
	return nil, s.explainDefaultRoute(withModuleHint(err))
}

// explainDefaultRoute adds the cause to the error of a failed ADD, if another plugin has made the pod's default route.
func (s *scene) explainDefaultRoute(err error) error {
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	routes, _ := s.podNS.Routes(nl.RouteFilter{Table: nl.MainTable})
	for _, r := range routes {
		if r.Dst.Bits() == 0 && r.Dst.Addr().Is4() && r.Dev != s.IfName && r.Dev != s.Config.ContainerInterface {
			return plugin.Errorf(plugin.CodeInvalid,
				"this plugin is for the first network of a pod. For a further network beside the network of another "+
					"plugin, chain only cni-ipvlan-vpc-k8s-ipam and cni-ipvlan-vpc-k8s-ipvlan",
				"the pod has a default route by %s, which belongs to another network: %w", r.Dev, err)
		}
	}
	return err
}

// hasRouteTo reports whether the node has a route to the pod through the pair p. The failed ADD has already removed its
// own route. So if there is a route, it is from another ADD of the attachment, and that ADD may also have made the
// pair. If the kernel does not answer, hasRouteTo returns true, and the pair stays until the DEL.
func (s *scene) hasRouteTo(p pair) bool {
	routes, err := s.nodeNS.Routes(nl.RouteFilter{Dev: p.veth.Name, Protocol: nl.RouteProtocol})
	return err != nil && !errors.Is(err, fs.ErrNotExist) || len(routes) > 0
}

// connect makes the pod's veth pair if it is missing, and all objects that belong to the pair. If connect fails,
// mayExist reports whether the pair may exist.
//
// connect makes the pair before it looks for the objects that serve all pods. A collection (registry-gc) that runs at
// the same time removes these objects if it finds no pairs, and then looks for pairs again (see [nl.NS.RemoveShared]).
// So the collection finds the new pair and puts the objects back, or connect finds that they are missing.
func (s *scene) connect(p pair, existed bool) (mayExist bool, err error) {
	w := nl.Wiring{{NS: s.nodeNS, Object: p.veth}}
	if p.unnamed {
		w = append(nl.Wiring{{NS: s.nodeNS, Object: p.veth.Alternative()}}, w...)
	}
	if err := w.Add(); err != nil {
		return errors.Is(err, nl.ErrUnanswered), s.explainTaken(p, err)
	}
	p.fresh = !existed
	if p.routed {
		return true, s.addRouted(p)
	}
	if !s.repeated || s.checkShared(p) != nil {
		if err := s.installNodeWiring(); err != nil {
			return true, err
		}
	}
	return true, s.addPodObjects(p, existed)
}

// addPodObjects adds all objects of the pod except the veth pair. The pair must exist, because the number of the pod's
// routing table follows from the index of the pair's end on the node.
func (s *scene) addPodObjects(p pair, existed bool) error {
	var err error
	for _, loop := range s.Config.loopsOfNewPod() {
		p.loop = loop
		table, failed := s.loopTable(p, existed)
		if failed = errors.Join(failed, s.delLoopless(p)); failed != nil {
			return failed
		}
		if existed || s.repeated {
			s.delOldCallerRules(p)
		}
		err = s.wiring(p, s.node, table).Add()
		if !errors.Is(err, nl.ErrNoBPF) {
			break
		}
	}
	return err
}

// checkChained fails if prevResult is missing or lacks a value that this plugin needs, or if both links of the pod
// would have the same name.
func checkChained(r *request) error {
	const hint = "put cni-ipvlan-vpc-k8s-ipam and cni-ipvlan-vpc-k8s-ipvlan before this plugin in the chain"
	switch {
	case r.Prev == nil:
		return plugin.Errorf(plugin.CodeInvalid, hint, "must be called as chained plugin")
	case len(r.addrs) == 0:
		return plugin.Errorf(plugin.CodeInvalid, hint, "got no container IPs")
	case r.Config.ContainerInterface == r.IfName && !r.isRoutedPod():
		return plugin.Errorf(plugin.CodeInvalid,
			"choose another name for the pod's end of the veth pair, for example eth1",
			"containerInterface: %q: the pod's link to the VPC has this name", r.IfName)
	}
	for _, a := range r.addrs {
		if r.Config.DefaultRoute == byVPC && !r.gateway(nl.FamilyOf(a)).IsValid() {
			return plugin.Errorf(plugin.CodeInvalid, hint, `defaultRoute "vpc": prevResult names no gateway for %s`, a)
		}
	}
	return nil
}

// result returns prevResult with both ends of the pair.
func result(r *request, p pair) *types100.Result {
	res := *r.Prev
	if p.routed {
		return routedResult(r, p)
	}
	res.Interfaces = append(res.Interfaces[:len(res.Interfaces):len(res.Interfaces)],
		&types100.Interface{Name: p.veth.Name, Mac: p.veth.MAC, Mtu: p.veth.MTU},
		&types100.Interface{Name: p.veth.Peer, Mac: p.veth.PeerMAC, Mtu: p.veth.MTU, Sandbox: r.NetNS})
	return &res
}
