// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// end deletes what a pod has by an attachment, whose links are in the group own. Wherever it is killed, no packet of a
// client leaves by another address than before. The reason is the order of its steps:
//
//   - First the UDP ports close. So nothing of a client comes into a router any more.
//   - Then all links of the attachment end, in one request: the ENI's, the pair and the tunnels. The kernel stops them
//     all before it removes a route of any. A link that is not in the group, such as a whole ENI, goes down before.
//   - The rest has no effect without links.
//
// The plugins that made the links find them deleted. If a namespace has the first attachment of another pod, it is not
// this pod's: the path may lead to a new namespace.
func end(ns *nl.NS, name string, own uint32) error {
	links, err := ns.Links()
	if err != nil {
		return err
	}
	ours := slices.DeleteFunc(slices.Clone(links), func(l nl.Link) bool { return nl.Attachment(l.Group) != own })
	if len(ours) == 0 && nl.OtherFirst(links, own) {
		return nil
	}
	failed := doorsOf(ns, ours).Del()
	if i := slices.IndexFunc(links, func(l nl.Link) bool { return l.Name == name && l.Group != own }); i >= 0 &&
		len(ours) > 0 {
		failed = errors.Join(failed, ns.SetDown(name))
	}
	if err := ns.DelGroup(own); !errors.Is(err, fs.ErrNotExist) {
		failed = errors.Join(failed, err)
	}
	return errors.Join(failed, rest(ns).Del())
}

// doorsOf are the UDP ports of the tunnels among links.
func doorsOf(ns *nl.NS, links []nl.Link) (w nl.Wiring) {
	for _, l := range links {
		if local, port, is := l.Tunnel(); is {
			w = append(w, nl.Step{NS: ns, Object: nl.FOU{Local: local, Port: port}})
		}
	}
	return w
}

// rest lists our objects in a pod that the deletion of a link does not delete.
func rest(ns *nl.NS) (w nl.Wiring) {
	add := func(o nl.Object) { w = append(w, nl.Step{NS: ns, Object: o}) }
	add(nl.Table{Family: "inet", Name: Table})
	for _, f := range nl.Families {
		for pref := prefPast; pref < prefPast+rules; pref++ {
			add(nl.Rule{Pref: pref, Family: f, Protocol: nl.RouteProtocol})
		}
	}
	routes, err := ns.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	for _, r := range routes {
		if err == nil && (r.Table == TableOut || r.Table == tableBack) {
			add(r) // a route that only throws, or refuses, has no link that would take it along
		}
	}
	return w
}
