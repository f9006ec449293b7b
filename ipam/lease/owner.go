// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A podNames finds the name of the pod that has an address, to show the name to people. Its sources are the aliases of
// the veth pairs on the node, and the files that runtimes keep for each ADD. It reads them at the first call of
// podWith. No decision of a process depends on a name.
type podNames struct {
	node  *nl.NS
	paths nl.Namespaces
	links []nl.Link
	kept  []Kept
	read  bool
}

// FoundLease returns a lease for an address that the kernel shows in use. The lease has no key. The argument path is
// routePlace, TheNode, or the path of a namespace. If FoundLease finds the pod's name, the lease has the name.
func (u Used) FoundLease(path string, a netip.Addr) (l registry.Lease) {
	l = registry.Lease{NetNS: path, Bound: true}
	if u.owners == nil || !filepath.IsAbs(path) {
		return l
	}
	l.PodNamespace, l.PodName = u.owners.podWith(path, a)
	return l
}

// podWith returns the pod that has an address in the namespace at path, if the sources name exactly one pod.
func (o *podNames) podWith(path string, a netip.Addr) (namespace, name string) {
	if !o.read {
		o.read, o.paths, o.kept = true, nl.Namespaces{}, KeptOf("")
		o.links, _ = o.node.Links() // after an error, only the runtimes' files are left
	}
	o.paths.Know(o.node, path)
	pods := map[[2]string]bool{{}: true}
	for _, near := range o.links {
		if near.Kind == "veth" && nl.IsPair(near.Group) && o.paths.At(near) == path {
			pods[podOfAlias(near.Alias)] = true
		}
	}
	if len(pods) > 1 { // an alias names a pod, so the files are not needed
		return onlyPod(pods)
	}
	for _, k := range o.kept {
		if l := k.Lease(); k.hasAddr(a) && (l.NetNS == "" || sameFile(l.NetNS, path)) {
			pods[[2]string{l.PodNamespace, l.PodName}] = true
		}
	}
	return onlyPod(pods)
}

// onlyPod returns the pod in pods, if there is exactly one. onlyPod ignores the empty name.
func onlyPod(pods map[[2]string]bool) (namespace, name string) {
	if delete(pods, [2]string{}); len(pods) == 1 {
		for pod := range pods {
			return pod[0], pod[1]
		}
	}
	return "", ""
}

// podOfAlias returns the pod whose name is in the alias of a veth pair. The words of an alias are the owner, the
// network, the container, the interface and the pod.
func podOfAlias(alias string) (pod [2]string) {
	const most = 255 // IFALIASZ-1: a longer alias is cut
	if words := strings.Fields(alias); len(words) > 4 && len(alias) < most {
		pod[0], pod[1], _ = strings.Cut(words[4], "/")
	}
	return pod
}

// sameFile reports whether two paths lead to the same namespace.
func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
