// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/values"
)

// A Config is the plugin's part of a network configuration.
//
//codec:describe exported
type Config struct {
	Egresses map[string]Egress `json:"egress"`     // by name
	Port     *int              `json:"egressPort"` // UDP port of all tunnels; nil: 5555

	RuntimeConfig struct {
		Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations"`
	} `json:"runtimeConfig"` // the runtime writes this part for one pod

	port uint16
}

// An Egress describes destinations, the clients that reach these destinations through routers, and the routers.
//
//codec:describe
type Egress struct {
	// the ClusterIPs of the routers' Service, at most one of each family
	Gateways     []string `json:"gateways"`
	Destinations []string `json:"destinations"` // CIDRs that clients reach through a router
	Except       []string `json:"except"`       // CIDRs within destinations: clients reach these without a router
	MTU          int      `json:"mtu"`          // of the packets in the tunnel; 0: as large as the links allow

	// Kubernetes namespaces whose pods are clients: names, or the beginning of a name and a *
	Namespaces []string `json:"namespaces"`
	Selectable []string `json:"selectable"` // further namespaces, whose pods may ask to be clients
	Routers    []string `json:"routers"`    // namespaces whose pods are routers
	// CIDRs of the clients' addresses. For IPv4, the default is the VPC: the destinations of the routes in the router's
	// prevResult, without default routes. IPv6 has no default.
	Clients []string `json:"clients"`

	// CIDRs of the routers' addresses: a client accepts tunnel packets only from these; the default is all addresses
	RouterCIDRs []string `json:"routerCidrs"`

	gateways     []netip.Addr
	routerCIDRs  []netip.Prefix
	destinations []netip.Prefix
	except       []netip.Prefix
	clients      []netip.Prefix
}

// DefaultPort is the UDP port of the tunnels if egressPort is left out.
const DefaultPort = 5555

// Validate sets the defaults and returns all mistakes together.
func (c *Config) Validate() error {
	var v validation
	port := *cmp.Or(c.Port, new(DefaultPort))
	if port < 1 || port >= nl.SpliceFirst {
		v.Wrong("egressPort: %d: want a port from 1 to %d, because pods use higher ports for their calls to Services",
			port, nl.SpliceFirst-1)
	}
	c.port = uint16(port)
	for _, name := range slices.Sorted(maps.Keys(c.Egresses)) {
		v.Within = "egress: " + name + ": "
		c.Egresses[name] = v.parseEgress(c.Egresses[name])
		if name == "" || strings.ContainsAny(name, ", ") {
			v.Wrong("want a name without commas and spaces, because pods choose egresses by a list of names")
		}
	}
	v.Within = ""
	v.checkConflicts(c.Egresses)
	return v.Err()
}

// UDPPort returns the UDP port of the tunnels. The Config must be validated.
func (c *Config) UDPPort() int { return int(c.port) }

type validation struct{ values.Mistakes }

// parseEgress parses the values of an egress, and returns the egress with the parsed values.
func (v *validation) parseEgress(e Egress) Egress {
	e.gateways = v.parseGateways(e.Gateways)
	e.destinations = v.Prefixes("destinations", e.Destinations)
	e.except = v.Prefixes("except", e.Except)
	e.clients = v.Prefixes("clients", e.Clients)
	e.routerCIDRs = v.Prefixes("routerCidrs", e.RouterCIDRs)
	if len(e.Destinations) == 0 {
		v.Wrong(`destinations must be specified, for example ["203.0.113.0/24"], or ["0.0.0.0/0"] for the whole ` +
			"internet")
	}
	v.MTU(e.MTU, 1280, "the MTU that the links allow") // RFC 8200, section 5
	v.Namespaces("namespaces", e.Namespaces)
	v.Namespaces("selectable", e.Selectable)
	v.Namespaces("routers", e.Routers)
	v.checkReachable(e)
	return e
}

// parseGateways parses gateways, at most one of each family.
func (v *validation) parseGateways(texts []string) (all []netip.Addr) {
	for _, text := range texts {
		a, ok := v.Address("gateways", text)
		switch {
		case !ok:
		case a.IsUnspecified(), a.IsMulticast(), a.IsLoopback():
			v.Wrong("gateways: %q: want the ClusterIP of the routers' Service, for example 172.20.0.77", text)
		case slices.ContainsFunc(all, func(o netip.Addr) bool { return o.Is4() == a.Is4() }):
			v.Wrong("gateways: %s: want at most one address of IPv4 and one of IPv6, because a Service has no more", a)
		default:
			all = append(all, a)
		}
	}
	if len(texts) == 0 {
		v.Wrong("gateways must be specified: want the ClusterIP of the routers' Service. Set clusterIP in the " +
			"Service, so that this address never changes")
	}
	return all
}

// vpc6 is the prefix length of the largest IPv6 CIDR that a VPC may have (VPC user guide, "VPC CIDR blocks").
const vpc6 = 44

// checkReachable refuses a destination that no packet could reach, for example because there is no gateway of its
// family, or because the tunnel's own packets would enter the tunnel again. It also refuses an egress without clients,
// or with routers that would serve every host.
func (v *validation) checkReachable(e Egress) {
	for _, d := range e.destinations {
		f := nl.FamilyOf(d.Addr())
		if gw := e.gateway(f); !gw.IsValid() && len(e.gateways) > 0 {
			v.Wrong("destinations: %s: want an %v address in gateways, because without it no packet to this "+
				"destination reaches a router",
				d, f)
		}
		if f == nl.IPv6 && d.Bits() < vpc6 && !slices.ContainsFunc(e.except,
			func(p netip.Prefix) bool { return d.Contains(p.Addr()) }) {
			v.Wrong("destinations: %s: want the IPv6 CIDR of the pods' VPC in \"except\", because the VPC's IPv6 "+
				"addresses are public and may be in this destination",
				d)
		}
	}
	for _, d := range e.destinations {
		if n, is := longestMatch(neverTunnelled(), d.Addr()); is && n.Bits() <= d.Bits() {
			v.Wrong("destinations: %s: no router forwards to %s, because these addresses have another meaning on "+
				"each node", d, n)
		}
	}
	if len(e.Routers) > 0 && e.gateway(nl.IPv6).IsValid() && len(prefixesOf(nl.IPv6, e.clients)) == 0 {
		v.Wrong("clients must be specified if gateways has an IPv6 address: want the VPC's IPv6 CIDR, or the IPv6 " +
			"CIDRs of the clients' subnets. Without clients, routers would serve every host")
	}
	if len(e.Namespaces)+len(e.Selectable) == 0 {
		v.Wrong("namespaces or selectable must be specified, because otherwise no pod is a client")
	}
	for _, gw := range e.gateways {
		if d, tunnelled := e.Tunnels(gw); tunnelled {
			v.Wrong("destinations: %s: the gateway %s is in this destination, but the tunnel's own packets must not "+
				"enter the tunnel. Make the destination smaller, or add the CIDR of the Services to \"except\"",
				d, gw)
		}
	}
}

// checkConflicts refuses two egresses with the same destination if one namespace may match the key "namespaces" of each
// egress. The pods of this namespace would be clients of both egresses.
func (v *validation) checkConflicts(all map[string]Egress) {
	names := slices.Sorted(maps.Keys(all))
	for i, one := range names {
		for _, other := range names[i+1:] {
			a, b := all[one], all[other]
			if d, same := commonDestination(a, b); same && mayOverlap(a.Namespaces, b.Namespaces) {
				v.Wrong("egress: %s and %s: both have the destination %s, and both have clients in the same "+
					"namespaces; want other destinations or other namespaces in one of them",
					one, other, d)
			}
		}
	}
}

func commonDestination(a, b Egress) (netip.Prefix, bool) {
	i := slices.IndexFunc(a.destinations, func(d netip.Prefix) bool { return slices.Contains(b.destinations, d) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return a.destinations[i], true
}

// mayOverlap reports whether there could be a namespace that both lists match.
func mayOverlap(a, b plugin.Namespaces) bool {
	start := func(g string) string { return strings.TrimSuffix(g, "*") }
	return slices.ContainsFunc(a, func(g string) bool { return b.Has(start(g)) || slices.Contains(b, g) }) ||
		slices.ContainsFunc(b, func(g string) bool { return a.Has(start(g)) })
}

// gateway returns the gateway of a family, or the zero address if there is none.
func (e Egress) gateway(f nl.Family) netip.Addr { return nl.FirstAddr(e.gateways, f) }

// Has reports whether the egress has a gateway of a family. The egress must be part of a validated Config.
func (e Egress) Has(f nl.Family) bool { return e.gateway(f).IsValid() }

// HasRouters reports whether the pods of a Kubernetes namespace are routers of the egress.
func (e Egress) HasRouters(namespace string) bool { return plugin.Namespaces(e.Routers).Has(namespace) }

// sealText returns those values of the egress that change the wiring of a pod.
func (e Egress) sealText() string {
	return fmt.Sprintln(e.gateways, e.destinations, e.except, e.MTU, e.clients, e.routerCIDRs)
}
