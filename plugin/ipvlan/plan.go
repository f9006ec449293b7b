// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"cmp"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// plan returns the slaves that an ADD makes, and the names of those that other attachments have in
// the pod.
func plan(r *plugin.Request[Config], masters []string, pod *nl.NS) (slaves []slave, others []string, err error) {
	links, err := pod.Links()
	if err != nil {
		return nil, nil, err
	}
	own := nl.PodGroup(r.Digest())
	further := nl.Further(links, own)
	names, err := names(r, len(masters), links)
	if err != nil {
		return nil, nil, err
	}
	for _, l := range links {
		if l.Kind == "ipvlan" && nl.Foreign(l.Group, own) {
			others = append(others, l.Name)
		}
	}
	for i, name := range names {
		s := slave{ips: r.Prev.IPs, alone: len(names) > 1 || len(others) > 0}
		s.link = nl.IPVlan{Name: name, Master: masters[i], NS: pod, Mode: r.Config.Mode, MTU: r.Config.MTU, Group: own}
		s.link.Fresh = !slices.ContainsFunc(links, func(l nl.Link) bool { return l.Name == name })
		if len(names) > 1 {
			s.ips = slices.DeleteFunc(slices.Clone(s.ips), func(c *types100.IPConfig) bool { return at(c) != i })
		}
		if further {
			s.link.Group = nl.FurtherGroup(own)
		}
		if further || i > 0 {
			s.table = nl.FurtherTable(own, i)
		}
		slaves = append(slaves, s)
	}
	return slaves, others, nil
}

// at is the index of the interface of an address.
func at(c *types100.IPConfig) int { return *cmp.Or(c.Interface, new(0)) }

// mastersOf returns the names of the masters, one for each NIC: the configured one, or the
// interfaces of prevResult.
func mastersOf(r *plugin.Request[Config]) ([]string, error) {
	const hint = "this plugin is the second of a chain: put cni-ipvlan-vpc-k8s-ipam before it, whose result names the master and the slave's addresses"
	if r.Prev == nil {
		return nil, plugin.Errorf(plugin.CodeInvalid, hint, "must be called as chained plugin: there is no prevResult")
	}
	if len(r.Prev.IPs) == 0 {
		return nil, plugin.Errorf(plugin.CodeInvalid, hint, "prevResult has no addresses")
	}
	var last int
	for _, c := range r.Prev.IPs {
		last = max(last, at(c))
	}
	if r.Config.Master != "" {
		if last > 0 {
			return nil, plugin.Errorf(plugin.CodeInvalid, "leave the key master out: the interfaces have ENIs of their own",
				"master: %q: prevResult has addresses of %d interfaces", r.Config.Master, last+1)
		}
		return []string{r.Config.Master}, nil
	}
	var masters []string
	for i, link := range r.Prev.Interfaces {
		has := func(c *types100.IPConfig) bool { return at(c) == i }
		if link.Name == "" || i > 0 && (link.Sandbox != "" || !slices.ContainsFunc(r.Prev.IPs, has)) {
			return nil, plugin.Errorf(plugin.CodeInvalid, hint, "chained master failure: interface %d of prevResult is not a named link of the node with addresses", i)
		}
		masters = append(masters, link.Name)
	}
	if len(masters) > 0 && last >= len(masters) {
		return nil, plugin.Errorf(plugin.CodeInvalid, hint, "chained master failure: prevResult has an address of interface %d, and %d interfaces", last, len(masters))
	}
	if len(masters) == 0 {
		return nil, plugin.Errorf(plugin.CodeInvalid, hint, "chained master failure. PrevResult lacks a single named interface")
	}
	return masters, nil
}
