// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package repair

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// To compare a running pod with the objects that its ADD has made, repair needs the inputs of the ADD. They have three
// sources, the best one first:
//
//   - The file that the runtime keeps for the DEL (see [lease.KeptOf]). It has the configuration, the annotations and
//     the answer of this ADD. The runtime writes it after the ADD, so repair can compare even a pod that has just
//     started. The file stays if the registry is lost.
//   - The lease, and the present configuration. From both, repair computes the answer that our plugin ipam would now
//     give to the ADD. The ADD of a lease may be under way for five minutes, so repair uses only older leases.
//   - The alias of the node's end of the pair, together with a lease that does not name its attachment (a lease without
//     a key). The alias names the attachment, and the lease has the namespace and the addresses. If the registry was
//     rebuilt, and no runtime keeps a file, there is no other source.
//
// This package does not ask the pod, because a pod could name the addresses of another pod.

// settledAfter is the age of a lease after which its ADD has certainly ended: no runtime waits longer (containerd: 4
// minutes).
const settledAfter = 5 * time.Minute

// An Attachment is an attachment of a running pod, with the inputs of its ADD.
type Attachment struct {
	lease registry.Lease
	pair  *plugin.Request[ptp.Config]
	slave *plugin.Request[ipvlan.Config] // nil: no source has all inputs of this plugin, or the plugin was not called
	// unlimited means that the pod may have had limits of its bandwidth, but no source knows these limits.
	unlimited bool
}

// attachmentsOf lists the attachments of a network, the oldest first. Repairs are made in this order, so the youngest
// pod is the last. So objects that several pods share get the form that the youngest pod's ADD has given them. The
// function isUnknown gets the node's end of a pair. It returns true if no source knows the pod of this pair.
func attachmentsOf(host *nl.NS, n conf.Network, s *registry.State) (
	all []Attachment, isUnknown func(nl.Link) bool, failed error,
) {
	leased, told := leasesOf(n.Name, s), keptADDs(n.Name)
	links, err := host.Links()
	if err != nil {
		return nil, nil, err
	}
	known := map[string]bool{}
	add := func(l registry.Lease, a Attachment, err error) {
		known[ptp.VethName(n.Name, l.Attachment)] = true
		if err == nil {
			all = append(all, a)
		}
	}
	for at, t := range told {
		l, is := leased[at]
		if !is {
			l = t.Lease()
		}
		if a, complete := fromKept(n, t, l, s); complete {
			delete(leased, at)
			add(l, a, nil)
		}
	}
	for _, l := range leased {
		if time.Since(l.Since) < settledAfter {
			add(l, Attachment{}, errUnsettled)
			continue
		}
		a, err := fromLease(n, l, s.HeldBy(l.Key, 0), s, links)
		if err != nil {
			failed = fmt.Errorf("network %s: %w", n.Name, err)
		}
		add(l, a, err)
	}
	found := keylessOf(host, s)
	isKnown := func(near nl.Link) bool {
		l, is := leaseFromAlias(near, n.Name)
		return is && known[ptp.VethName(n.Name, l.Attachment)] ||
			slices.ContainsFunc(near.Names(), func(name string) bool { return known[name] })
	}
	for _, near := range links {
		if isKnown(near) {
			continue
		}
		if l, addrs, is := found.leaseAt(near, n.Name); is {
			a, err := fromLease(n, l, addrs, s, links)
			add(l, a, err)
		}
	}
	slices.SortFunc(all, func(a, b Attachment) int {
		return cmp.Or(a.lease.Since.Compare(b.lease.Since), strings.Compare(a.lease.Key.String(), b.lease.Key.String()))
	})
	isUnknown = func(near nl.Link) bool {
		_, named := leaseFromAlias(near, n.Name)
		return named && !isKnown(near)
	}
	return all, isUnknown, failed
}

// errUnsettled means that the ADD of an attachment may be under way.
var errUnsettled = errors.New("its ADD may be under way")

// leasesOf returns the leases of a network. The keys are the attachments. If a pod has several NICs, leasesOf returns
// only leases of the first NIC. It leaves out leases without a container.
func leasesOf(network string, s *registry.State) map[registry.Attachment]registry.Lease {
	all := map[registry.Attachment]registry.Lease{}
	if s == nil {
		return all
	}
	for _, l := range s.Leases.All() {
		if l.Network == network && l.NIC == 0 && l.ContainerID != "" {
			all[l.Attachment] = l
		}
	}
	return all
}

// fromKept returns an attachment with the inputs t from a runtime's file. It returns false if the file lacks a
// necessary value, or if another attachment now has one of the addresses.
func fromKept(n conf.Network, t keptADD, l registry.Lease, s *registry.State) (Attachment, bool) {
	l.NetNS = cmp.Or(l.NetNS, t.NetNS)
	added := t.addResult()
	if added == nil || l.NetNS == "" || len(added.IPs) == 0 {
		return Attachment{}, false
	}
	for _, c := range added.IPs {
		a, ok := plugin.Addr(c.Address.IP)
		if !ok || s != nil && isOthers(s, a, l.Key) {
			return Attachment{}, false
		}
	}
	if _, routed := plugin.Routed(added, l.IfName); routed && s != nil {
		lease.AddPrimary(added, s.ENIs[l.ENI]) // the final result of the ADD lacks the primary address of the ENI
	}
	n = t.networkAtADD(n)
	t.fillConfig(map[string]bool{"bandwidth": n.Limits}, &n.Pair.RuntimeConfig)
	a := Attachment{lease: l, pair: newRequest(n, l, n.Pair, added)}
	if n.Slave != nil {
		c := *n.Slave
		t.fillConfig(n.Asks, &c.RuntimeConfig)
		a.slave = newRequest(n, l, c, added)
	}
	return a, true
}

// isOthers reports whether a lease gives the address to an attachment with another key.
func isOthers(s *registry.State, a netip.Addr, key registry.Key) bool {
	l, leased := s.Leases.At(a)
	return leased && l.ContainerID != "" && l.Key != key
}

// fromLease returns the attachment of the lease l with the addresses addrs. After the ADD, the VPC may have got CIDRs
// to which the pod has no routes. Repair must not report routes to these CIDRs as lost. So the attachment's request for
// the ipvlan plugin has no routes. The argument links has links of the node. If the pod's pair is among these links,
// the group of the pair shows the pod's data path.
func fromLease(
	n conf.Network, l registry.Lease, addrs []netip.Addr, s *registry.State, links []nl.Link,
) (Attachment, error) {
	if n.Mistake != nil {
		return Attachment{}, n.Mistake
	}
	if n.IPAM == nil {
		return Attachment{}, fmt.Errorf("%s lacks the plugin %s, so repair does not know the routes of the pods",
			n.File, conf.TypeIPAM)
	}
	routed := func(configured bool) bool {
		near, is := ptp.NearOf(links, n.Name, l.Attachment)
		return !is && configured || is && nl.IsRouted(near.Group)
	}
	added, err := lease.Recall(s, l, addrs, n.IPAM, routed)
	if err != nil {
		return Attachment{}, err
	}
	a := Attachment{lease: l, pair: newRequest(n, l, n.Pair, added), unlimited: n.Limits}
	if n.Slave != nil && !l.Exclusive {
		links := *added
		links.Routes = nil
		a.slave = newRequest(n, l, *n.Slave, &links)
	}
	return a, nil
}

// leaseFromAlias returns a lease with the attachment and the pod that the alias of nearEnd names. The result "is" is
// true under two conditions: nearEnd is the node's end of a pair of the network, and a name or the MAC address of
// nearEnd fits the attachment.
func leaseFromAlias(nearEnd nl.Link, network string) (l registry.Lease, is bool) {
	words := strings.Fields(nearEnd.Alias)
	if !nl.IsPair(nearEnd.Group) || nearEnd.Kind != "veth" || len(words) < 4 || words[1] != network {
		return l, false
	}
	l.Key = registry.Key{Network: network, Attachment: registry.Attachment{ContainerID: words[2], IfName: words[3]}}
	if len(words) > 4 {
		l.PodNamespace, l.PodName, _ = strings.Cut(words[4], "/")
	}
	_, is = ptp.NearOf([]nl.Link{nearEnd}, network, l.Attachment)
	return l, is
}

// A keyless has the leases that do not name their attachment. A rebuilt registry has such leases. Leases of further
// NICs are left out. The keys of the maps are the paths of the leases' namespaces.
type keyless struct {
	paths nl.Namespaces
	lease map[string]registry.Lease
	addrs map[string][]netip.Addr
}

func keylessOf(host *nl.NS, s *registry.State) keyless {
	k := keyless{nl.Namespaces{}, map[string]registry.Lease{}, map[string][]netip.Addr{}}
	if s == nil {
		return k
	}
	for a, l := range s.Leases.All() {
		if l.ContainerID != "" || l.NIC != 0 || l.NetNS == "" {
			continue
		}
		if _, known := k.lease[l.NetNS]; !known {
			k.paths.Know(host, l.NetNS)
		}
		k.lease[l.NetNS], k.addrs[l.NetNS] = l, append(k.addrs[l.NetNS], a)
	}
	return k
}

// leaseAt returns the lease and the addresses of a pod. nearEnd is the node's end of the pod's pair, and the other end
// is in the namespace of the lease. The attachment of the lease comes from the alias of nearEnd.
func (k keyless) leaseAt(nearEnd nl.Link, network string) (l registry.Lease, addrs []netip.Addr, is bool) {
	named, is := leaseFromAlias(nearEnd, network)
	path := k.paths.At(nearEnd)
	if !is || path == "" {
		return l, nil, false
	}
	l = k.lease[path]
	l.Key, l.PodNamespace, l.PodName = named.Key, named.PodNamespace, named.PodName
	return l, k.addrs[path], true
}

// leadsTo reports whether the other end of a pair is in the namespace at path.
func leadsTo(host *nl.NS, near nl.Link, path string) bool {
	far, err := host.FarEnd(near)
	if err != nil {
		return false
	}
	pod, err := host.OpenOther("pod", path)
	if err != nil {
		return false
	}
	defer pod.Close()
	return host.IsPeer(near, pod, far.Index)
}

// newRequest returns a request of a plugin for the attachment of a lease. added is the result of the attachment's ADD.
func newRequest[C any](n conf.Network, l registry.Lease, config C, added *types100.Result) *plugin.Request[C] {
	return &plugin.Request[C]{Network: n.Name, Attachment: l.Attachment, NetNS: l.NetNS,
		Pod: plugin.Pod{Namespace: l.PodNamespace, Name: l.PodName}, Config: config, Prev: added}
}
