// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/values"
)

// A Config is the plugin's part of a network configuration. The keys from hostInterface to nodePortMark are those of
// the original plugin, with its defaults.
//
//codec:describe exported
type Config struct {
	HostInterface      string `json:"hostInterface"`      // link of the boot ENI
	ContainerInterface string `json:"containerInterface"` // pod's end of the veth pair
	// the node forwards and masquerades packets of pods; without ipMasq, pods reach neither Services nor the internet
	IPMasq          bool    `json:"ipMasq"`
	MTU             int     `json:"mtu"`             // of the pair; 0: the MTU of hostInterface
	RouteTableStart *uint32 `json:"routeTableStart"` // lowest number of a routing table for a pod; nil: 256
	// a range as iptables writes it; nil: 30000:32767; "": no NodePorts
	NodePorts    *string `json:"nodePorts"`
	NodePortMark *uint32 `json:"nodePortMark"` // the bits that mark connections to NodePorts; nil: 0x2000

	// at a NodePort of a Service with externalTrafficPolicy Local, a pod sees the caller's address, and not the node's
	// address
	KeepCaller bool `json:"keepCaller"`

	// how a pod reaches a Service's backend in the VPC: "redirect", "masquerade" or "none"; "" is "redirect", or
	// "masquerade" if the kernel does not support "redirect"
	ServiceLoop string `json:"serviceLoop"`

	// the pod's default route: "host" leads through the node, and "vpc" leads through the pod's ENI; "": host
	DefaultRoute string   `json:"defaultRoute"`
	HostCIDRs    []string `json:"hostCidrs"` // destinations that pods always reach through the node

	// for routed pods: the pair's end on the node gets a name that begins with this prefix; "": the name is [VethName]
	VethPrefix string `json:"vethPrefix"`

	// the pod's packets to the metadata service are blocked; nil: only in a family whose default route leads through
	// the ENI
	BlockInstanceMetadata *bool `json:"blockInstanceMetadata"`

	RuntimeConfig struct {
		Bandwidth bandwidth `json:"bandwidth"`
	} `json:"runtimeConfig"` // the runtime writes this part for one pod

	ports     ports
	start     uint32
	mark      uint32
	hostCIDRs []netip.Prefix
}

// DefaultNodePortMark is the default of nodePortMark, as in the original plugin.
const DefaultNodePortMark = 0x2000

// The values of defaultRoute.
const (
	byNode = "host"
	byVPC  = "vpc"
)

// ports is a range of ports. The range is empty if last is 0.
type ports struct{ first, last uint16 }

// maxTable is the highest routeTableStart. The number of a pod's table is routeTableStart plus the index of the pair's
// end on the node.
const maxTable = 1 << 30

// Validate sets the defaults and returns all mistakes together.
func (c *Config) Validate() error {
	var m values.Mistakes
	if c.HostInterface == "" {
		m.Wrong("hostInterface must be specified: want the name of the boot ENI's link, for example eth0 or ens5")
	}
	if c.ContainerInterface == "" {
		m.Wrong("containerInterface must be specified: want the name of the pod's end of the veth pair, for example " +
			"eth1")
	}
	m.Link("hostInterface", c.HostInterface)
	if c.HostInterface == "lo" {
		m.Wrong("hostInterface: \"lo\": want the boot ENI's link, not the loopback link")
	}
	m.NewLink("containerInterface", c.ContainerInterface)
	m.MTU(c.MTU, 68, "the MTU of hostInterface")
	c.start = *cmp.Or(c.RouteTableStart, new(uint32(256)))
	if c.start == 0 || c.start > maxTable {
		m.Wrong("routeTableStart: %d: want 1 to %d", c.start, maxTable)
	}
	c.mark = *cmp.Or(c.NodePortMark, new(uint32(DefaultNodePortMark)))
	if c.mark == 0 {
		m.Wrong("nodePortMark: 0: want at least one bit, which marks a connection, for example 8192 (0x2000)")
	}
	var err error
	if c.ports, err = parsePorts(*cmp.Or(c.NodePorts, new("30000:32767"))); err != nil {
		m.Wrong("nodePorts: %w", err)
	}
	if c.KeepCaller && err == nil && c.ports.last == 0 {
		m.Wrong(`keepCaller: true: want a range of NodePorts in nodePorts, which is ""`)
	}
	if c.ServiceLoop != "" {
		m.OneOf("serviceLoop", c.ServiceLoop, redirect, masquerade, none)
	}
	if c.KeepCaller && c.ServiceLoop == none {
		m.Wrong(`keepCaller: true: want another serviceLoop than "none". With "none", pods see the node instead of ` +
			"the caller")
	}
	c.validateRoutes(&m)
	c.validatePrefix(&m)
	return m.Err()
}

func (c *Config) validateRoutes(m *values.Mistakes) {
	m.OneOf("defaultRoute", cmp.Or(c.DefaultRoute, byNode), byNode, byVPC)
	if c.DefaultRoute == byVPC && len(c.HostCIDRs) == 0 {
		m.Wrong(`hostCidrs must be specified if defaultRoute is "vpc": want the CIDRs of the cluster's Services, for ` +
			`example "172.20.0.0/16". Without hostCidrs, calls to Services leave by the ENI and get no answer`)
	}
	c.hostCIDRs = m.Prefixes("hostCidrs", c.HostCIDRs)
	for _, p := range c.hostCIDRs {
		if p.Bits() == 0 {
			m.Wrong("hostCidrs: %q: use the key \"defaultRoute\" for the default route", p)
		}
	}
}

// parsePorts reads a range of ports, such as "30000:32767", or "30000-32767" in the form of Kubernetes. It also accepts
// a single port. The empty text is the empty range.
func parsePorts(s string) (ports, error) {
	if s == "" {
		return ports{}, nil
	}
	from, to, isRange := strings.Cut(strings.Replace(s, "-", ":", 1), ":")
	if !isRange {
		to = from
	}
	first, err := strconv.ParseUint(from, 10, 16)
	last, err2 := strconv.ParseUint(to, 10, 16)
	if err != nil || err2 != nil || first == 0 || first > last {
		return ports{}, fmt.Errorf(`%q: want a range such as "30000:32767", or "" for no NodePorts`, s)
	}
	return ports{uint16(first), uint16(last)}, nil
}

// Mark returns nodePortMark. The configuration must be validated.
func (c Config) Mark() uint32 { return c.mark }

// ByNode returns the prefixes of hostCidrs. The configuration must be validated.
func (c Config) ByNode() []netip.Prefix { return c.hostCIDRs }
