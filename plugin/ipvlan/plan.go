// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
)

// planSlaves returns the slaves that an ADD makes, and the names of the slaves of other attachments in the pod.
func planSlaves(
	r *plugin.Request[Config], asked []nic.Request, masters []master, pod *nl.NS,
) (slaves []slave, others []string, err error) {
	links, err := pod.Links()
	if err != nil {
		return nil, nil, err
	}
	own := nl.PodGroup(r.Digest())
	further := nl.Further(links, own)
	names, err := linkNames(r, asked, len(masters), links)
	if err != nil {
		return nil, nil, err
	}
	for _, l := range links {
		if (l.Kind == "ipvlan" || nl.IsCard(l.Group)) && nl.Foreign(l.Group, own) {
			others = append(others, l.Name)
		}
	}
	for i, name := range names {
		s := slave{ips: r.Prev.IPs, mac: masters[i].mac, hasOthers: len(names) > 1 || len(others) > 0}
		s.link = nl.IPVlan{Name: name, Master: masters[i].name, NS: pod, Mode: r.Config.Mode,
			MTU: r.Config.MTU, Group: own}
		s.link.Fresh = !slices.ContainsFunc(links, func(l nl.Link) bool { return l.Name == name })
		if len(names) > 1 {
			s.ips = slices.DeleteFunc(slices.Clone(s.ips), func(c *types100.IPConfig) bool { return plugin.At(c) != i })
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

// A master is the link of an ENI on the node.
type master struct {
	name string
	mac  string // the ENI's MAC address if the pod gets the link itself; otherwise empty
}

// mastersOf returns the masters, one for each NIC: the master of the configuration, or the interfaces of prevResult. In
// the ipam plugin's result, an interface has a MAC address only if the pod gets the whole ENI.
func mastersOf(r *plugin.Request[Config], asked []nic.Request) ([]master, error) {
	const hint = "this plugin is the second of a chain: put cni-ipvlan-vpc-k8s-ipam before this plugin. The result " +
		"of cni-ipvlan-vpc-k8s-ipam names the master and the slave's addresses"
	if r.Prev == nil {
		return nil, plugin.Errorf(plugin.CodeInvalid, hint, "this plugin must be chained after another: there is no "+
			"prevResult")
	}
	if len(r.Prev.IPs) == 0 {
		return nil, plugin.Errorf(plugin.CodeInvalid, hint, "prevResult has no addresses")
	}
	var last int
	for _, c := range r.Prev.IPs {
		last = max(last, plugin.At(c))
	}
	if r.Config.Master != "" {
		if last > 0 {
			return nil, plugin.Errorf(plugin.CodeInvalid,
				"leave the key \"master\" out, because each interface has an ENI of its own",
				"master: %q: prevResult has addresses of %d interfaces", r.Config.Master, last+1)
		}
		masters := []master{{name: r.Config.Master}}
		return masters, checkAgreement(asked, masters)
	}
	var masters []master
	for i, link := range r.Prev.Interfaces {
		has := func(c *types100.IPConfig) bool { return plugin.At(c) == i }
		if link.Name == "" || i > 0 && (link.Sandbox != "" || !slices.ContainsFunc(r.Prev.IPs, has)) {
			return nil, plugin.Errorf(plugin.CodeInvalid, hint,
				"chained master failure: interfaces[%d] of prevResult is not a link of the node with a name and "+
					"addresses", i)
		}
		masters = append(masters, master{link.Name, link.Mac})
	}
	if len(masters) > 0 && last >= len(masters) {
		return nil, plugin.Errorf(plugin.CodeInvalid, hint,
			"chained master failure: an address of prevResult is for interfaces[%d], but prevResult has only %d", last,
			len(masters))
	}
	if len(masters) == 0 {
		return nil, plugin.Errorf(plugin.CodeInvalid, hint,
			"chained master failure. PrevResult lacks a single named interface")
	}
	return masters, checkAgreement(asked, masters)
}

// checkAgreement returns an error if this plugin and the ipam plugin disagree about the interfaces for which the pod
// gets a whole ENI. This happens if the runtime does not pass the same annotations to both plugins.
func checkAgreement(asked []nic.Request, masters []master) error {
	for i, m := range masters {
		if asksExclusive(asked, i) != (m.mac != "") {
			return plugin.Errorf(plugin.CodeInvalid, "declare the same capabilities for all plugins of the conflist",
				"interface %d: prevResult and the request of the pod disagree whether the pod gets the whole ENI "+
					"(link %s)",
				i+1, m.name)
		}
	}
	return nil
}

func asksExclusive(asked []nic.Request, i int) bool { return i < len(asked) && asked[i].Exclusive }
