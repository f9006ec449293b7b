// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// reviewNeighbours compares the file with the other files in its directory. It leaves out files that this file will
// replace. Networks with the same name share their leases, and all networks share the node's masquerading, its lease
// log and its ENIs (see reviewENIUse).
func (r *review) reviewNeighbours() {
	r.decodeIPAM()
	for _, f := range r.siblings.Files {
		if filepath.Base(f.Path) == filepath.Base(r.file) || replaces(filepath.Base(r.file), filepath.Base(f.Path)) {
			continue
		}
		r.against = f.Path
		for _, other := range f.Lists { // the review of f reports the mistakes in f
			r.reviewNeighbour(f.Path, other)
		}
		r.against = ""
	}
}

// reviewNeighbour compares the list with a list of another file. If the other list is a delegate of Multus, the two
// names may be equal, because the delegate is a copy of the list.
func (r *review) reviewNeighbour(f string, other List) {
	if other.Plugin(TypeIPAM) != nil && other.Name == r.Name && !other.Delegate {
		r.report("", "name: %s also has the network %q: want different names, because a DEL of one network also ends "+
			"an attachment to the other", f, r.Name)
	}
	mine, has := pairOf(r.List)
	if a, b := logOf(r.List), logOf(other); a != b && a.File != "" && b.File != "" {
		r.report("", "leaseLog: %s has another value: want the same value in both files. Otherwise each ADD of one "+
			"network ends the log of the other, and whois reads only the log of the last ADD", f)
	}
	r.reviewENIUse(f, other)
	theirs, also := pairOf(other)
	if !has || !also {
		return
	}
	if mine.IPMasq != theirs.IPMasq {
		r.report("", "ipMasq: %s has another value: want the same value in both files. If one network masquerades, "+
			"the node also masquerades pods of the other", f)
	}
	if mine.KeepCaller && !theirs.KeepCaller {
		r.report("", "keepCaller: %s has another value: want the same value in both files. Otherwise the node "+
			"replaces the address of callers by its own, also for pods of this network", f)
	}
	if !mine.Loopless() && theirs.Loopless() {
		r.report("", `serviceLoop: %s has "none": want the same value in both files. Otherwise the node replaces the `+
			`address of callers of a NodePort by its own, also for pods of this network`, f)
	}
}

// reviewENIUse compares how the list and another list use ENIs. The plugins of this release and of earlier releases
// accept lists that use ENIs differently. So these mistakes do not stop an installation.
func (r *review) reviewENIUse(f string, other List) {
	if r.IPAM == nil || other.IPAM == nil {
		return
	}
	none := lease.ProvisionNone
	mine, theirs := r.IPAM.Policies()[0], other.IPAM.Policies()[0]
	if (mine.Provision == none) != (theirs.Provision == none) {
		r.reportTolerated("provision: %s has %q, and this network has %q: want %q in both networks, or in "+
			"neither network. After a boot, a network with %[4]q trusts metadata, which may still show addresses "+
			"that another network has released",
			f, theirs.Provision, mine.Provision, none)
	}
	if mine.Provision == none && !mine.Pools && theirs.Pools {
		r.reportTolerated("pools: %s has pools or requests, and this network has neither: want pools or "+
			`requests in both networks, or in neither network. Otherwise, with "provision": "none", the node uses `+
			"ENIs before it knows their tags, so pods may get addresses of all pools", f)
	}
}

// replaces reports whether a program will probably rename the file newName to oldName. For example,
// 10-pods.conflist.new and .10-pods.conflist.swp replace 10-pods.conflist. If runtimes read the file newName, this file
// replaces no other file, because runtimes then read both files.
func replaces(newName, oldName string) bool {
	target := strings.TrimPrefix(strings.TrimSuffix(newName, filepath.Ext(newName)), ".")
	return !isRead(newName) && (target == oldName || target == strings.TrimSuffix(oldName, filepath.Ext(oldName)))
}

// logOf returns the settings of a list's lease log, with defaults. It returns the zero value if there is no log, or if
// ipam's configuration has a mistake.
func logOf(c List) registry.LeaseLog {
	if c.IPAM == nil {
		return registry.LeaseLog{}
	}
	return c.IPAM.Policies()[0].Log
}

// pairOf returns the configuration of the veth pair in a list, and reports whether the list has this configuration.
func pairOf(c List) (p ptp.Config, has bool) {
	raw := c.Plugin(TypePTP)
	has = raw != nil && json.Unmarshal(raw, &p) == nil
	return p, has
}
