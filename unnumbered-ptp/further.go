// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"errors"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A further NIC of a pod answers by itself: package ipvlan adds its routes and rules. It has no part in the pair, in
// the routes on the node, in the service loop and in keepCaller. All of these are for the addresses of the pod's first
// NIC. A caller of the address of a further NIC, the node and a NodePort included, calls it by the VPC.
//
// This plugin adds two things for further NICs. Their default routes lead to the VPC, so it keeps
// the pod from the metadata service by them, unless blockInstanceMetadata is false. And the
// limits of the bandwidth of an ADD are for all of its links together. If two attachments of a
// pod have the same limits, they share them.
//
// A further attachment, see [nl.Further], gets only these two.

// isFurther reports whether the attachment is a further one of its pod. The group of its link
// shows it. The pod may have changed the group, and other plugins give none. Then the attachment is a further one if it
// has no pair, and another has links in the pod.
func (s *scene) isFurther(eni nl.Link) (bool, error) {
	own, group := nl.PodGroup(s.Digest()), nl.Attachment(eni.Group)
	if group == own || group == nl.FurtherGroup(own) {
		return group != own, nil
	}
	if _, err := s.nodeNS.LinkByName(VethName(s.Network, s.Attachment)); err == nil {
		return false, nil
	}
	links, err := s.podNS.Links()
	return nl.Further(links, own), err
}

// addFurther is the ADD of a further attachment. A kernel without BPF has no filters.
func (s *scene) addFurther() (*types100.Result, error) {
	var err error
	for _, loop := range []string{redirect, masquerade} {
		if err = steps(s.podNS, furtherObjects(s.request, loop)).Add(); !errors.Is(err, nl.ErrNoBPF) {
			break
		}
	}
	if err != nil {
		return nil, unavailable(err)
	}
	return s.Prev, nil
}

// checkFurther is the CHECK of a further attachment.
func (s *scene) checkFurther() (wrong error) {
	for _, f := range s.furtherFaults() {
		wrong = errors.Join(wrong, f)
	}
	return wrong
}

// furtherFaults are what a further attachment lacks: the filters, too, if it has some of them.
func (s *scene) furtherFaults() []nl.Fault {
	faults := steps(s.podNS, furtherObjects(s.request, redirect)).Faults()
	if fewer := steps(s.podNS, furtherObjects(s.request, masquerade)).Faults(); len(fewer) == 0 {
		return nil
	}
	return faults
}

// furtherObjects are all that a further attachment gets.
func furtherObjects(r *request, loop string) []nl.Object {
	return append(metadataBlockFurther(r, r.nics, 0, loop), r.Config.RuntimeConfig.Bandwidth.objects(names(r.nics))...)
}

// metadataBlockFurther is [metadataBlock] for NICs from a number on. The route that refuses is in
// the table of each NIC.
func metadataBlockFurther(r *request, nics []plugin.NIC, from int, loop string) (objects []nl.Object) {
	if b := r.Config.BlockInstanceMetadata; b != nil && !*b {
		return nil
	}
	own := nl.PodGroup(r.Digest())
	for i := from; i < len(nics); i++ {
		var addrs []netip.Addr
		for _, a := range metadata {
			if _, has := first(nics[i].Addrs(), nl.FamilyOf(a)); has {
				addrs = append(addrs, a)
				objects = append(objects, nl.Route{Dst: single(a), Type: "prohibit", Table: nl.FurtherTable(own, i),
					Protocol: nl.RouteProtocol})
			}
		}
		if len(addrs) > 0 && filters(r, loop) {
			objects = append(objects, nl.Forbid{Devs: []string{nics[i].Name}, Addrs: addrs})
		}
	}
	return objects
}

// names are the links of NICs.
func names(nics []plugin.NIC) (all []string) {
	for _, n := range nics {
		all = append(all, n.Name)
	}
	return all
}

// limited are the links that share the limits of the bandwidth of a pod with a pair.
func (r *request) limited() []string {
	return slices.Concat(r.podLinks(), names(r.nics[min(1, len(r.nics)):]))
}
