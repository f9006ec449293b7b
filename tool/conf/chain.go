// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	cni "github.com/containernetworking/cni/pkg/version"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/chain"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/values"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// versions are the versions of the specification that our plugins support.
var versions = cni.VersionsStartingFrom("0.3.0").SupportedVersions()

// networkName is CNI's rule for the name of a network (CNI specification 1.1.0, section 1).
var networkName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`)

// head reviews the name of the file, the name of the network, and the versions.
func (r *review) head() {
	if ext := filepath.Ext(r.file); !isList(r.file) && !r.delegate && single(r.text) == nil {
		r.wrong("", "the name ends in %s, but runtimes read a list only from a file whose name ends in .conflist", ext)
	}
	if !networkName.MatchString(r.Name) {
		r.wrong("", "name: %q: want letters and digits, and after the first character also _ . -", r.Name)
	}
	want := "want one of " + strings.Join(versions, ", ")
	if r.CNIVersion == "" && len(r.CNIVersions) == 0 {
		r.wrong("", "cniVersion must be specified, because without it the runtime assumes the oldest version, which "+
			"has no chains: %s",
			want)
	}
	if r.CNIVersion != "" && !slices.Contains(versions, r.CNIVersion) {
		r.wrong("", "cniVersion: %q: %s", r.CNIVersion, want)
	}
	for _, v := range r.CNIVersions {
		if !slices.Contains(versions, v) {
			r.wrong("", "cniVersions: %q: %s", v, want)
		}
	}
}

// chain reviews which of our plugins are in the list, and at which positions.
func (r *review) chain() {
	at := r.positions()
	if len(r.Plugins) == 0 {
		return // the method list has reported the empty list
	}
	if len(at) == 0 {
		r.wrong("", "none of the plugins is one of %s", strings.Join(Types, ", "))
		return
	}
	if i, is := at[TypeEgress]; is && len(at) == 1 { // TypeEgress follows plugins of another project
		if i == 0 {
			r.wrong(r.where(i), "no plugin before this one gives the pod an address: put this plugin last")
		}
		return
	}
	first, last := TypeIPAM, TypePTP
	if _, all := at[TypeAll]; all {
		first, last = TypeAll, TypeAll
		r.alone(at)
	} else {
		r.order(at)
		r.further(at)
		r.hooks(at)
		r.paths(at)
	}
	i, ok := at[first]
	_, follows := at[r.Plugins[0].Type]
	switch {
	case !ok:
		r.wrong("", "the chain does not begin with %s, so the other plugins have no address", first)
	case !follows:
		r.wrong(r.where(i), "this plugin stands after %s, but must be first, because results of earlier plugins are "+
			"lost",
			r.Plugins[0].Type)
	}
	if k, ok := at[last]; ok {
		r.pair(k)
		r.routed(i, k)
	}
}

// positions returns the positions of our plugins, by type. It reports a plugin that has no type, or that is there
// twice.
func (r *review) positions() map[string]int {
	at := map[string]int{}
	for i, m := range r.Plugins {
		_, twice := at[m.Type]
		switch {
		case m.Type == "":
			r.wrong(r.where(i), "type must be specified: the name of the plugin's program")
		case twice:
			r.wrong(r.where(i), "this plugin is in the chain twice")
		case slices.Contains(Types, m.Type):
			at[m.Type] = i
		}
	}
	return at
}

// alone reports our other plugins in a chain with TypeAll, because TypeAll also does the work of these plugins.
func (r *review) alone(at map[string]int) {
	for _, typ := range parted {
		if i, ok := at[typ]; ok {
			r.wrong(r.where(i), "%[1]s also does the work of this plugin: move its keys to %[1]s, and remove this "+
				"plugin",
				TypeAll)
		}
	}
}

// order reviews the order of our plugins in a chain without TypeAll: each plugin needs the result of the plugin before
// it.
func (r *review) order(at map[string]int) {
	last := -1
	for i, m := range r.Plugins {
		place := slices.Index(parted, m.Type)
		if place >= 0 && place < last && at[m.Type] == i {
			r.wrong(r.where(i), "this plugin must stand before %s, which needs its result", parted[last])
		}
		last = max(last, place)
	}
}

// further reviews whether the three plugins agree about the further interfaces for which pods may ask.
func (r *review) further(at map[string]int) {
	type part struct {
		Requests           []any  `json:"requests"`
		ContainerInterface string `json:"containerInterface"`
	}
	var parts []part
	for _, typ := range three {
		i, ok := at[typ]
		var p part
		if !ok || json.Unmarshal(r.Plugins[i].Raw, &p) != nil {
			return
		}
		parts = append(parts, p)
	}
	ipam, slave, pair := parts[0], parts[1], parts[2]
	where := r.where(at[TypeIPVlan])
	annotated := func(typ string) bool { return r.Plugins[at[typ]].Capabilities[podAnnotations] }
	if len(ipam.Requests) > 0 && annotated(TypeIPAM) && !annotated(TypeIPVlan) {
		r.wrong(where, `this plugin does not get the names of the interfaces for which pods ask: add "capabilities": `+
			`{%q: true}`,
			podAnnotations)
	}
	if name := cmp.Or(slave.ContainerInterface, "eth1"); len(ipam.Requests) > 0 && name != pair.ContainerInterface {
		r.wrong(where, "containerInterface: %q (default eth1), but %s has %q: want the same name in both, so that no "+
			"further interface gets this name", name, TypePTP, pair.ContainerInterface)
	}
}

// hooks reviews whether the plugins after TypeIPVlan work with the mode of the ipvlan slave. Only the review compares
// the configurations of these plugins, because each plugin checks only its own configuration.
func (r *review) hooks(at map[string]int) {
	i, ok := at[TypeIPVlan]
	var slave struct{ Mode string }
	var pair ptp.Config
	var out egress.Config
	if !ok || json.Unmarshal(r.Plugins[i].Raw, &slave) != nil {
		return
	}
	for typ, into := range map[string]any{TypePTP: &pair, TypeEgress: &out} {
		if k, there := at[typ]; there && json.Unmarshal(r.Plugins[k].Raw, into) != nil {
			return // the method member reports that
		}
	}
	r.wrongs(r.where(i), chain.Unhooked(slave.Mode, &pair, len(out.Egresses)))
}

// pair reviews the keys of our plugin that makes the veth pair, and looks for other plugins that can disturb the pair.
// i is the position of our plugin.
func (r *review) pair(i int) {
	const podLink = "eth0" // CNI_IFNAME of all Kubernetes runtimes
	var c ptp.Config
	if json.Unmarshal(r.Plugins[i].Raw, &c) != nil {
		return
	}
	if c.ContainerInterface == podLink {
		r.wrong(r.where(i), "containerInterface: %q: want another name, for example eth1, because the pod's link to "+
			"its ENI has this name", podLink)
	}
	if mark := *cmp.Or(c.NodePortMark, new(uint32(ptp.DefaultNodePortMark))); mark&kubeProxyMarks != 0 {
		r.wrong(r.where(i), "nodePortMark: %d (%#x): want other bits, such as 8192 (0x2000), because kube-proxy "+
			"masquerades or drops packets with the bits %#x",
			mark, mark, kubeProxyMarks)
	}
	if c.HostInterface == "auto" {
		r.wrong(r.where(i),
			`hostInterface: "auto": want the name of the boot ENI's link, for example eth0 or ens5, because only %s `+
				`install replaces "auto"`,
			cli.Name)
	}
	for j, m := range r.Plugins {
		switch m.Type {
		case "tuning":
			r.tuning(j)
		case "portmap":
			r.portmap(j, *cmp.Or(c.NodePortMark, new(uint32(ptp.DefaultNodePortMark))))
		case "bandwidth":
			r.wrong(r.where(j),
				`this plugin does not work here, because the pod's first link is no veth: remove the plugin, and add `+
					`"capabilities": {"bandwidth": true} to %s`, r.Plugins[i].Type)
		case "sbr":
			r.wrong(r.where(j),
				"this plugin moves the routes by which pods reach the node, Services and the internet: remove the "+
					"plugin")
		}
	}
}

// kubeProxyMarks are the bits with which kube-proxy and the kubelet mark packets: 0x4000 to masquerade, 0x8000 to drop
// (iptablesMasqueradeBit and iptablesDropBit, with their defaults).
const kubeProxyMarks = 0xc000

// tuning reviews whether the plugin tuning gives a pod's link another MAC address. An ipvlan link has the MAC address
// of the ENI, and the kernel refuses a change.
func (r *review) tuning(i int) {
	var c struct {
		MAC string `json:"mac"`
	}
	if m := r.Plugins[i]; json.Unmarshal(m.Raw, &c) == nil && (c.MAC != "" || m.Capabilities["mac"]) {
		r.wrong(r.where(i), "mac: the pod's link has the MAC address of its ENI, and cannot have another: remove "+
			"mac, also from capabilities")
	}
}

// portmap reviews whether the plugin portmap uses one of the bits of mark, our nodePortMark. By default, the iptables
// backend of portmap uses such a bit. Then packets of other pods to a hostPort are lost.
func (r *review) portmap(i int, mark uint32) {
	var c struct {
		Backend     string `json:"backend"`
		MarkMasqBit *int   `json:"markMasqBit"`
	}
	const defaultBit = 13
	if json.Unmarshal(r.Plugins[i].Raw, &c) != nil || c.Backend == "nftables" {
		return
	}
	if bit := *cmp.Or(c.MarkMasqBit, new(defaultBit)); bit >= 0 && mark>>bit&1 != 0 {
		r.wrong(r.where(i), "markMasqBit: %d (default 13) is in the nodePortMark %#x, so other pods of the node "+
			"would not reach hostPorts: want another bit, such as 12", bit, mark)
	}
}

// podAnnotations is the capability by which runtimes pass the pod's annotations to a plugin.
const podAnnotations = "io.kubernetes.cri.pod-annotations"

// egress reviews whether pods can ask for the egresses that the configuration lets them choose.
func (r *review) egress(where string, i int, c *egress.Config) {
	annotated := r.Plugins[i].Capabilities[podAnnotations]
	routers := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Egresses)) {
		e := c.Egresses[name]
		if len(e.Selectable) > 0 && !annotated {
			r.wrong(where, `egress: %s: selectable: no pod can ask for this egress: add "capabilities": {%q: true}`,
				name,
				podAnnotations)
		}
		for _, namespace := range e.Routers {
			if other, both := routers[namespace]; both && !annotated {
				r.wrong(where,
					`egress: %s: routers: the egress %[3]s has %[2]q, too, and no pod can choose its egress: add `+
						`"capabilities": {%[4]q: true}`,
					name, namespace, other, podAnnotations)
			}
			routers[namespace] = name
		}
	}
	if p, has := pairOf(r.List); has && len(c.Egresses) > 0 {
		r.egressByPair(where, c, p)
	}
}

// egressByPair reviews whether clients reach the gateways, which are addresses of Services.
func (r *review) egressByPair(where string, c *egress.Config, p ptp.Config) {
	if !p.IPMasq {
		r.wrong(where, `egress: want "ipMasq": true, because otherwise clients reach no Services, and so no gateway`)
	}
	if mark := *cmp.Or(p.NodePortMark, new(uint32(ptp.DefaultNodePortMark))); mark&egress.Marks != 0 {
		r.wrong(where, "nodePortMark: %#x: want other bits, because egress uses the bits %#x",
			mark, uint32(egress.Marks))
	}
	var ipam struct {
		RouteToCIDRs []string `json:"routeToCidrs"`
	}
	_ = json.Unmarshal(r.Plugin(TypeIPAM), &ipam)
	var wrong values.Mistakes // the method member reports these mistakes
	routed, byNode := wrong.Prefixes("routeToCidrs", ipam.RouteToCIDRs), wrong.Prefixes("hostCidrs", p.HostCIDRs)
	for _, name := range slices.Sorted(maps.Keys(c.Egresses)) {
		for _, text := range c.Egresses[name].Gateways {
			gw, ok := wrong.Address("gateways", text)
			if why := byENI(gw, p, routed); ok && why != "" && holder(byNode, gw) < 0 {
				r.wrong(where,
					"egress: %s: gateways: %s: want the CIDR of the Services in hostCidrs, because %s",
					name, gw, why)
			}
		}
	}
}

// byENI returns the reason why pods send packets for the address of a Service by their ENI. It assumes that hostCidrs
// does not have the address. byENI returns "" if pods send these packets by the node.
func byENI(a netip.Addr, p ptp.Config, routed []netip.Prefix) string {
	i := holder(routed, a)
	switch {
	case i >= 0:
		return "routeToCidrs has " + routed[i].String()
	case a.Is6():
		return "the default route of IPv6 is by the ENI"
	case p.DefaultRoute == "vpc":
		return "defaultRoute is vpc"
	}
	return ""
}

// holder returns the index of the first prefix that has an address, or -1.
func holder(all []netip.Prefix, a netip.Addr) int {
	return slices.IndexFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// pools reviews whether the pools work with the other plugins and keys.
func (r *review) pools(where string, i int, c *lease.Config) {
	capabilities := r.Plugins[i].Capabilities
	for name, p := range c.Pools {
		if !lease.Nameable(name) {
			r.wrong(where, "pools: %q: want a name without / and =, which the plugin uses in names of its own", name)
		}
		if len(p.Selectable) > 0 && !capabilities[podAnnotations] {
			r.wrong(where, `pools: %s: selectable: no pod can ask for this pool: add "capabilities": {%q: true}`, name,
				podAnnotations)
		}
	}
	canAsk := []string{podAnnotations, "ips", "deviceID"}
	if len(c.Permissions) > 0 && !slices.ContainsFunc(canAsk, func(name string) bool { return capabilities[name] }) {
		r.wrong(where, `requests: no pod can make a request: add "capabilities": {%q: true}`, podAnnotations)
	}
	for _, p := range c.Policies() {
		if p.Provision == lease.ProvisionNone && p.Warm.Min > 0 {
			r.wrong(where, `warm: min %d of pool %s: "provision" is "none", so the node does not ask EC2 for these `+
				`addresses`,
				p.Warm.Min,
				PoolName(p.Pool))
		}
	}
}
