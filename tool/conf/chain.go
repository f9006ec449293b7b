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

// versions are the CNI versions that our plugins support.
var versions = cni.VersionsStartingFrom("0.3.0").SupportedVersions()

// networkName is CNI's rule for the name of a network (CNI specification 1.1.0, section 1).
var networkName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`)

// reviewHead reviews the name of the file, the name of the network, and the versions.
func (r *review) reviewHead() {
	if ext := filepath.Ext(r.file); !isList(r.file) && !r.delegate && singlePlugin(r.text) == nil {
		r.report("", "the name of the file ends in %s, but runtimes read a list only from a file whose name ends "+
			"in .conflist", ext)
	}
	if !networkName.MatchString(r.Name) {
		r.report("", "name: %q: want letters and digits, and after the first character also _ . -", r.Name)
	}
	want := "want one of " + strings.Join(versions, ", ")
	if r.CNIVersion == "" && len(r.CNIVersions) == 0 {
		r.report("", "cniVersion must be specified, because without it the runtime assumes the oldest version, which "+
			"has no chains: %s",
			want)
	}
	if r.CNIVersion != "" && !slices.Contains(versions, r.CNIVersion) {
		r.report("", "cniVersion: %q: %s", r.CNIVersion, want)
	}
	for _, v := range r.CNIVersions {
		if !slices.Contains(versions, v) {
			r.report("", "cniVersions: %q: %s", v, want)
		}
	}
}

// reviewChain reviews which of our plugins are in the list, and at which positions.
func (r *review) reviewChain() {
	at := r.positions()
	if len(r.Plugins) == 0 {
		return // readList has reported the empty list
	}
	if len(at) == 0 {
		r.report("", "the list has none of our plugins: want at least one of %s", strings.Join(Types, ", "))
		return
	}
	if i, is := at[TypeEgress]; is && len(at) == 1 { // other plugins give the pods their addresses
		if i == 0 {
			r.report(r.nameOf(i), "no plugin before this one gives the pod an address: put this plugin last")
		}
		return
	}
	first, last := TypeIPAM, TypePTP
	if _, all := at[TypeAll]; all {
		first, last = TypeAll, TypeAll
		r.reviewBesideAll(at)
	} else {
		r.reviewOrder(at)
		r.reviewFurther(at)
		r.reviewHooks(at)
		r.reviewDataPaths(at)
	}
	i, ok := at[first]
	_, follows := at[r.Plugins[0].Type]
	switch {
	case !ok:
		r.report("", "the chain does not begin with %s, so the other plugins have no address", first)
	case !follows:
		r.report(r.nameOf(i), "this plugin stands after %s, but must be first, because results of earlier plugins are "+
			"lost",
			r.Plugins[0].Type)
	}
	if k, ok := at[last]; ok {
		r.reviewPair(k)
		r.reviewRouted(i, k)
	}
}

// positions returns the positions of our plugins, by type. It also reports a plugin that has no type, or that is in the
// chain twice.
func (r *review) positions() map[string]int {
	at := map[string]int{}
	for i, m := range r.Plugins {
		_, twice := at[m.Type]
		switch {
		case m.Type == "":
			r.report(r.nameOf(i), "type must be specified: the name of the plugin's program")
		case twice:
			r.report(r.nameOf(i), "this plugin is in the chain twice")
		case slices.Contains(Types, m.Type):
			at[m.Type] = i
		}
	}
	return at
}

// reviewBesideAll reports our other plugins in a chain with TypeAll, which also does their work.
func (r *review) reviewBesideAll(at map[string]int) {
	for _, typ := range partedTypes {
		if i, ok := at[typ]; ok {
			r.report(r.nameOf(i), "%[1]s also does the work of this plugin: move this plugin's keys to %[1]s, and "+
				"remove this plugin",
				TypeAll)
		}
	}
}

// reviewOrder reviews the order of our plugins in a chain without TypeAll. Each plugin needs the result of the plugin
// before it.
func (r *review) reviewOrder(at map[string]int) {
	last := -1
	for i, m := range r.Plugins {
		place := slices.Index(partedTypes, m.Type)
		if place >= 0 && place < last && at[m.Type] == i {
			r.report(r.nameOf(i), "this plugin must stand before %s, which needs the result of this plugin",
				partedTypes[last])
		}
		last = max(last, place)
	}
}

// reviewFurther compares what the configurations of threePlugins say about further interfaces of a pod. They must not
// contradict each other.
func (r *review) reviewFurther(at map[string]int) {
	type part struct {
		Requests           []any  `json:"requests"`
		ContainerInterface string `json:"containerInterface"`
	}
	var parts []part
	for _, typ := range threePlugins {
		i, ok := at[typ]
		var p part
		if !ok || json.Unmarshal(r.Plugins[i].Raw, &p) != nil {
			return
		}
		parts = append(parts, p)
	}
	ipam, slave, pair := parts[0], parts[1], parts[2]
	where := r.nameOf(at[TypeIPVlan])
	annotated := func(typ string) bool { return r.Plugins[at[typ]].Capabilities[podAnnotations] }
	if len(ipam.Requests) > 0 && annotated(TypeIPAM) && !annotated(TypeIPVlan) {
		r.report(where, `this plugin does not get the names of the interfaces for which pods ask: add "capabilities": `+
			`{%q: true}`,
			podAnnotations)
	}
	if name := cmp.Or(slave.ContainerInterface, "eth1"); len(ipam.Requests) > 0 && name != pair.ContainerInterface {
		r.report(where, "containerInterface: %q (default eth1), but %s has %q: want the same name in both plugins, so "+
			"that no interface on request gets this name", name, TypePTP, pair.ContainerInterface)
	}
}

// reviewHooks reviews whether the plugins after TypeIPVlan work with the mode of the ipvlan slave. A plugin sees only
// its own configuration, so it cannot check this.
func (r *review) reviewHooks(at map[string]int) {
	i, ok := at[TypeIPVlan]
	var slave struct{ Mode string }
	var pair ptp.Config
	var out egress.Config
	if !ok || json.Unmarshal(r.Plugins[i].Raw, &slave) != nil {
		return
	}
	for typ, into := range map[string]any{TypePTP: &pair, TypeEgress: &out} {
		if k, there := at[typ]; there && json.Unmarshal(r.Plugins[k].Raw, into) != nil {
			return // reviewPlugin reports the mistake
		}
	}
	r.reportLines(r.nameOf(i), chain.Unhooked(slave.Mode, &pair, len(out.Egresses)))
}

// reviewPair reviews the keys of our plugin at position i. This plugin makes the veth pair. reviewPair also reviews
// other plugins that can disturb the pair.
func (r *review) reviewPair(i int) {
	const podLink = "eth0" // CNI_IFNAME of all Kubernetes runtimes
	var c ptp.Config
	if json.Unmarshal(r.Plugins[i].Raw, &c) != nil {
		return
	}
	if c.ContainerInterface == podLink {
		r.report(r.nameOf(i), "containerInterface: %q: want another name, for example eth1, because the pod's link to "+
			"its ENI has the name %[1]s", podLink)
	}
	if mark := *cmp.Or(c.NodePortMark, new(uint32(ptp.DefaultNodePortMark))); mark&kubeProxyMarks != 0 {
		r.report(r.nameOf(i), "nodePortMark: %d (%#x): want other bits, such as 8192 (0x2000), because kube-proxy "+
			"masquerades or drops packets with the bits %#x",
			mark, mark, kubeProxyMarks)
	}
	if c.HostInterface == "auto" {
		r.report(r.nameOf(i),
			`hostInterface: "auto": want the name of the boot ENI's link, for example eth0 or ens5, because only %s `+
				`install replaces "auto"`,
			cli.Name)
	}
	for j, m := range r.Plugins {
		switch m.Type {
		case "tuning":
			r.reviewTuning(j)
		case "portmap":
			r.reviewPortmap(j, *cmp.Or(c.NodePortMark, new(uint32(ptp.DefaultNodePortMark))))
		case "bandwidth":
			if !r.allRouted() {
				r.report(r.nameOf(j),
					`this plugin cannot limit a pod with an ipvlan slave: remove the plugin, and add `+
						`"capabilities": {"bandwidth": true} to %s`, r.Plugins[i].Type)
			}
		case "sbr":
			r.report(r.nameOf(j),
				"this plugin moves the routes by which pods reach the node, Services and the internet: remove the "+
					"plugin")
		}
	}
}

// kubeProxyMarks are the bits with which kube-proxy and the kubelet mark packets: 0x4000 to masquerade, 0x8000 to drop
// (iptablesMasqueradeBit and iptablesDropBit, with their defaults).
const kubeProxyMarks = 0xc000

// reviewTuning reviews whether the reference plugin "tuning" gives a pod's link another MAC address. An ipvlan link has
// the MAC address of the ENI, and the kernel refuses a change.
func (r *review) reviewTuning(i int) {
	var c struct {
		MAC string `json:"mac"`
	}
	if m := r.Plugins[i]; json.Unmarshal(m.Raw, &c) == nil && (c.MAC != "" || m.Capabilities["mac"]) {
		r.report(r.nameOf(i), "mac: the pod's link has the MAC address of its ENI, and cannot have another: remove "+
			`the key "mac", also from "capabilities"`)
	}
}

// reviewPortmap reviews whether the reference plugin "portmap" sets a bit of our nodePortMark (the argument mark). If
// portmap sets such a bit, pods of the node do not reach the hostPorts of other pods. The defaults have this fault: the
// iptables backend of portmap sets bit 13 (0x2000), and nodePortMark is 0x2000. The nftables backend sets no bit.
func (r *review) reviewPortmap(i int, mark uint32) {
	var c struct {
		Backend     string `json:"backend"`
		MarkMasqBit *int   `json:"markMasqBit"`
	}
	const defaultBit = 13
	if json.Unmarshal(r.Plugins[i].Raw, &c) != nil || c.Backend == "nftables" {
		return
	}
	if bit := *cmp.Or(c.MarkMasqBit, new(defaultBit)); bit >= 0 && mark>>bit&1 != 0 {
		r.report(r.nameOf(i), "markMasqBit: %d (default 13) is in the nodePortMark %#x, so pods would not reach "+
			"hostPorts on their own node: want another bit, such as 12", bit, mark)
	}
}

// podAnnotations is the capability by which runtimes pass the pod's annotations to a plugin.
const podAnnotations = "io.kubernetes.cri.pod-annotations"

// reviewEgress reviews the capabilities of the plugin "egress", and the gateways. If pods choose their egress by an
// annotation, the runtime must pass the annotations of pods to the plugin.
func (r *review) reviewEgress(where string, i int, c *egress.Config) {
	annotated := r.Plugins[i].Capabilities[podAnnotations]
	routers := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Egresses)) {
		e := c.Egresses[name]
		if len(e.Selectable) > 0 && !annotated {
			r.report(where, `egress: %s: selectable: want "capabilities": {%q: true}, because otherwise no pod can ask `+
				`for this egress`, name, podAnnotations)
		}
		for _, namespace := range e.Routers {
			if other, both := routers[namespace]; both && !annotated {
				r.report(where,
					`egress: %s: routers: the egress %s also has the namespace %q: want "capabilities": `+
						`{%q: true}, because otherwise no router can choose its egress`,
					name, other, namespace, podAnnotations)
			}
			routers[namespace] = name
		}
	}
	if p, has := pairOf(r.List); has && len(c.Egresses) > 0 {
		r.reviewGateways(where, c, p)
	}
}

// reviewGateways reviews whether the clients of egresses reach the gateways, which are addresses of Services.
func (r *review) reviewGateways(where string, c *egress.Config, p ptp.Config) {
	if !p.IPMasq {
		r.report(where, `egress: want "ipMasq": true, because otherwise clients reach no Services, and so no gateway`)
	}
	if mark := *cmp.Or(p.NodePortMark, new(uint32(ptp.DefaultNodePortMark))); mark&egress.Marks != 0 {
		r.report(where, "nodePortMark: %#x: want other bits, because egress uses the bits %#x",
			mark, uint32(egress.Marks))
	}
	var ipam struct {
		RouteToCIDRs []string `json:"routeToCidrs"`
	}
	_ = json.Unmarshal(r.Plugin(TypeIPAM), &ipam)
	var wrong values.Mistakes // reviewPlugin reports these mistakes
	routed, byNode := wrong.Prefixes("routeToCidrs", ipam.RouteToCIDRs), wrong.Prefixes("hostCidrs", p.HostCIDRs)
	for _, name := range slices.Sorted(maps.Keys(c.Egresses)) {
		for _, text := range c.Egresses[name].Gateways {
			gw, ok := wrong.Address("gateways", text)
			if why := whyByENI(gw, p, routed); ok && why != "" && indexContaining(byNode, gw) < 0 {
				r.report(where,
					"egress: %s: gateways: %s: want the CIDR of the Services in hostCidrs, because %s, so packets to "+
						"this gateway leave by the pod's ENI", name, gw, why)
			}
		}
	}
}

// whyByENI returns why packets from pods to a Service leave by the pods' ENI. If pods send the packets to the node, it
// returns "". The Service has the address a, which is not in hostCidrs.
func whyByENI(a netip.Addr, p ptp.Config, routed []netip.Prefix) string {
	i := indexContaining(routed, a)
	switch {
	case i >= 0:
		return `"routeToCidrs" has ` + routed[i].String()
	case a.Is6():
		return "the default route of IPv6 is by the ENI"
	case p.DefaultRoute == "vpc":
		return `"defaultRoute" is "vpc"`
	}
	return ""
}

// indexContaining returns the index of the first prefix that contains an address, or -1.
func indexContaining(all []netip.Prefix, a netip.Addr) int {
	return slices.IndexFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// reviewPools reviews whether the pools work with the other plugins and keys.
func (r *review) reviewPools(where string, i int, c *lease.Config) {
	capabilities := r.Plugins[i].Capabilities
	for name, p := range c.Pools {
		if !lease.Nameable(name) {
			r.report(where, "pools: %q: want a name without / and =, which the plugin uses in names of its own", name)
		}
		if len(p.Selectable) > 0 && !capabilities[podAnnotations] {
			r.report(where, `pools: %s: selectable: want "capabilities": {%q: true}, because otherwise no pod can ask for `+
				`this pool`, name, podAnnotations)
		}
	}
	canAsk := []string{podAnnotations, "ips", "deviceID"}
	if len(c.Permissions) > 0 && !slices.ContainsFunc(canAsk, func(name string) bool { return capabilities[name] }) {
		r.report(where, `requests: want "capabilities": {%q: true}, because otherwise no pod can make a request`,
			podAnnotations)
	}
	for _, p := range c.Policies() {
		if p.Provision == lease.ProvisionNone && p.Warm.Min > 0 {
			r.report(where, `warm: min %d of pool %s: want 0, because "provision" is "none", and the node asks EC2 for no `+
				`addresses`, p.Warm.Min, PoolName(p.Pool))
		}
	}
}
