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

// A further NIC of a pod has its own routes and rules, from package ipvlan, so that answers leave through this NIC. The
// pair, the routes on the node, the service loop and keepCaller are only for the first NIC's addresses. Even calls of
// the node, and calls to a NodePort, reach a further NIC through the VPC.
//
// For further NICs, this plugin adds two kinds of objects. The first kind blocks the metadata service, because the
// NIC's default route leads to the VPC. This kind is missing if blockInstanceMetadata is false. The second kind is the
// bandwidth limits, which all links of an ADD share. If the ADDs of two attachments of a pod have the same limits, the
// links of both ADDs share the limits.
//
// A further attachment, see [nl.Further], gets only objects of these two kinds.

// isFurther reports whether the attachment is a further attachment of its pod. The link's group shows this. But the pod
// may have changed the group, or another plugin may have made the link. Then the attachment is a further attachment if
// it has no pair, and the pod's links show another first attachment.
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

// addFurther does the ADD of a further attachment. On a kernel without BPF, it adds no filters, and fails only if
// blockInstanceMetadata is true.
func (s *scene) addFurther() (*types100.Result, error) {
	var err error
	for _, loop := range []string{redirect, masquerade} {
		if err = nl.Steps(s.podNS, furtherObjects(s.request, loop)).Add(); !errors.Is(err, nl.ErrNoBPF) {
			break
		}
	}
	if err != nil {
		return nil, withModuleHint(err)
	}
	return s.Prev, nil
}

func (s *scene) checkFurther() (wrong error) {
	for _, f := range s.furtherFaults() {
		wrong = errors.Join(wrong, f)
	}
	return wrong
}

// furtherFaults returns the faults of a further attachment's objects. If only filters are missing, furtherFaults
// returns a fault only if blockInstanceMetadata is set: see addFurther.
func (s *scene) furtherFaults() []nl.Fault {
	faults := nl.Steps(s.podNS, furtherObjects(s.request, redirect)).Faults()
	if fewer := nl.Steps(s.podNS, furtherObjects(s.request, masquerade)).Faults(); len(fewer) == 0 {
		return nil
	}
	return faults
}

func furtherObjects(r *request, loop string) []nl.Object {
	limits := r.Config.RuntimeConfig.Bandwidth.objects(linkNames(r.nics))
	return append(metadataBlockFurther(r, r.nics, 0, loop), limits...)
}

// metadataBlockFurther lists the objects of [metadataBlock] for the NICs from the index firstNIC on. The prohibit route
// is in the NIC's own routing table.
func metadataBlockFurther(r *request, nics []plugin.NIC, firstNIC int, loop string) (objects []nl.Object) {
	if b := r.Config.BlockInstanceMetadata; b != nil && !*b {
		return nil
	}
	own := nl.PodGroup(r.Digest())
	for i := firstNIC; i < len(nics); i++ {
		var addrs []netip.Addr
		for _, a := range metadataAddrs {
			if nl.FirstAddr(nics[i].Addrs(), nl.FamilyOf(a)).IsValid() {
				addrs = append(addrs, a)
				objects = append(objects, nl.Route{Dst: nl.HostPrefix(a), Type: "prohibit",
					Table: nl.FurtherTable(own, i), Protocol: nl.RouteProtocol})
			}
		}
		if len(addrs) > 0 && needsFilters(r, loop) {
			objects = append(objects, nl.Forbid{Devs: []string{nics[i].Name}, Addrs: addrs})
		}
	}
	return objects
}

func linkNames(nics []plugin.NIC) (all []string) {
	for _, n := range nics {
		all = append(all, n.Name)
	}
	return all
}

// limitedLinks returns the links that share the bandwidth limits of a first attachment's ADD: the links of podLinks,
// and those of further NICs.
func (r *request) limitedLinks() []string {
	return slices.Concat(r.podLinks(), linkNames(r.nics[min(1, len(r.nics)):]))
}
