// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// neighbours compares the file with the others in its directory. Two networks of one name share their leases, the node
// masquerades for the pods of all networks, and it has one lease log. The review does not compare the file with the
// file that it will replace.
func (r *review) neighbours() {
	r.decode()
	for _, f := range r.beside.Files {
		if filepath.Base(f.Path) == filepath.Base(r.file) || replaces(filepath.Base(r.file), filepath.Base(f.Path)) {
			continue
		}
		for _, other := range f.Lists { // its own review says what is wrong with it
			r.neighbour(f.Path, other)
		}
	}
}

// neighbour compares the list with another. Multus has copies of lists: only the copies must be of the same text.
func (r *review) neighbour(f string, other List) {
	if other.Plugin(TypeIPAM) != nil && other.Name == r.Name && !other.Delegate {
		r.wrong("", "name: %s has the network %q, too: an attachment to one ends with a DEL of the other", f, r.Name)
	}
	mine, has := pairOf(r.List)
	if a, b := logOf(r.List), logOf(other); a != b && a.File != "" && b.File != "" {
		r.wrong("", "leaseLog: %s has another: want the same in both; otherwise each ADD of one network ends the log "+
			"of the other, and whois reads only the last one", f)
	}
	theirs, also := pairOf(other)
	if !has || !also {
		return
	}
	if mine.IPMasq != theirs.IPMasq {
		r.wrong("", "%s has another ipMasq: if one network masquerades, the node also masquerades pods of the other",
			f)
	}
	if mine.KeepCaller && !theirs.KeepCaller {
		r.wrong("", "keepCaller: %s does not have it: the node replaces the address of callers by its own; it does "+
			"so for "+
			"the pods of this network, too", f)
	}
	if !mine.Loopless() && theirs.Loopless() {
		r.wrong("", `serviceLoop: %s has "none": the node replaces the address of callers of a NodePort by its own; `+
			`it does so for the pods of this network, too`, f)
	}
}

// replaces reports whether the file fresh is meant to replace the file old by a rename:
// 10-pods.conflist.new or .10-pods.conflist.swp replaces 10-pods.conflist. Runtimes read both
// if fresh has one of their endings, and then it replaces nothing.
func replaces(fresh, old string) bool {
	target := strings.TrimPrefix(strings.TrimSuffix(fresh, filepath.Ext(fresh)), ".")
	return !isRead(fresh) && (target == old || target == strings.TrimSuffix(old, filepath.Ext(old)))
}

// logOf returns the lease log that a list wants, with its defaults. logOf returns nothing if the list wants no log, or
// if ipam's configuration has a mistake.
func logOf(c List) registry.LeaseLog {
	if c.IPAM == nil {
		return registry.LeaseLog{}
	}
	return c.IPAM.Policies()[0].Log
}

// pairOf returns the configuration of the veth pair in a list, if it has one.
func pairOf(c List) (p ptp.Config, has bool) {
	raw := c.Plugin(TypePTP)
	has = raw != nil && json.Unmarshal(raw, &p) == nil
	return p, has
}
