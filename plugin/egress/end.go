// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// endEgress deletes the egress of an attachment, and the links with the attachment's group. The order of the steps
// ensures that each packet of a client leaves with the same source address as before, or is dropped, even if the
// process is killed:
//
//   - First, it closes the UDP ports. So no packet of a client enters a router any more.
//   - Then it deletes the attachment's links in one request: the slave, the pair and the tunnels. The kernel sets them
//     all down before it removes a route. The link to the VPC may be in another group, for example if the pod has a
//     whole ENI. endEgress then sets this link down first.
//   - Last, it deletes the objects that have no effect without links.
//
// Other plugins made the slave and the pair, and their DELs accept that these links are gone. CNI_NETNS, the path of
// the namespace in the DEL, may now lead to another pod's namespace. The other pod's namespace has links of the other
// pod's first attachment. It has no link whose group is equal to the argument "group". So endEgress does nothing in the
// other pod's namespace.
func endEgress(ns *nl.NS, name string, group uint32) error {
	links, err := ns.Links()
	if err != nil {
		return err
	}
	ours := slices.DeleteFunc(slices.Clone(links), func(l nl.Link) bool { return nl.Attachment(l.Group) != group })
	if len(ours) == 0 && nl.OtherFirst(links, group) {
		return nil
	}
	failed := udpPortsOf(ns, ours).Del()
	if i := slices.IndexFunc(links, func(l nl.Link) bool { return l.Name == name && l.Group != group }); i >= 0 &&
		len(ours) > 0 {
		failed = errors.Join(failed, ns.SetDown(name))
	}
	if err := ns.DelGroup(group); !errors.Is(err, fs.ErrNotExist) {
		failed = errors.Join(failed, err)
	}
	return errors.Join(failed, remainingObjects(ns).Del())
}

func udpPortsOf(ns *nl.NS, links []nl.Link) (w nl.Wiring) {
	for _, l := range links {
		if local, port, is := l.Tunnel(); is {
			w = append(w, nl.Step{NS: ns, Object: nl.FOU{Local: local, Port: port}})
		}
	}
	return w
}

// remainingObjects lists the objects that remain in a pod when the links of its egress are deleted.
func remainingObjects(ns *nl.NS) (w nl.Wiring) {
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
			add(r) // throw routes and refusing routes have no link, and do not end with a link
		}
	}
	return w
}
