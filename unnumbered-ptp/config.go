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

// A Config is the plugin's part of a network configuration. The original plugin has the keys
// down to nodePortMark, with the same defaults.
//
//codec:describe exported
type Config struct {
	HostInterface      string `json:"hostInterface"`      // link of the boot ENI
	ContainerInterface string `json:"containerInterface"` // pod's end of the veth pair
	// forward and masquerade: without it pods reach neither services nor the internet
	IPMasq          bool    `json:"ipMasq"`
	MTU             int     `json:"mtu"`             // of the pair; 0: the MTU of hostInterface
	RouteTableStart *uint32 `json:"routeTableStart"` // lowest number of a routing table for a pod; 256
	// a range as iptables writes it; 30000:32767; "": no NodePorts
	NodePorts    *string `json:"nodePorts"`
	NodePortMark *uint32 `json:"nodePortMark"` // bits of the mark of a connection to a NodePort; 0x2000

	// a pod sees the address of the caller at a NodePort, if the service asks for that
	KeepCaller bool `json:"keepCaller"`

	// how a pod reaches a service's backend in the VPC: redirect, masquerade or none; "": the first that the kernel can
	// do
	ServiceLoop string `json:"serviceLoop"`

	// the default route: host, by the node, or vpc, by the pod's ENI; "": host
	DefaultRoute string   `json:"defaultRoute"`
	HostCIDRs    []string `json:"hostCidrs"` // destinations that pods always reach by the node

	// begins the name of the node's end of the pair, for pods of dataPath veth; "": see [VethName]
	VethPrefix string `json:"vethPrefix"`

	// for the pod; nil: in a family whose default route is by the ENI
	BlockInstanceMetadata *bool `json:"blockInstanceMetadata"`

	RuntimeConfig struct {
		Bandwidth bandwidth `json:"bandwidth"`
	} `json:"runtimeConfig"` // what the runtime asks for one pod

	ports     ports
	start     uint32
	mark      uint32
	hostCIDRs []netip.Prefix
}

// DefaultNodePortMark is the value of nodePortMark if it is left out, as in the original.
const DefaultNodePortMark = 0x2000

// The values of defaultRoute.
const (
	byNode = "host"
	byVPC  = "vpc"
)

// ports is a range of ports. The range is empty if last is 0.
type ports struct{ first, last uint16 }

// maxTable is the highest routeTableStart: the index of a link is added to it.
const maxTable = 1 << 30

// Validate sets the defaults and returns all mistakes together.
func (c *Config) Validate() error {
	var m values.Mistakes
	if c.HostInterface == "" {
		m.Wrong("hostInterface must be specified: it is the name of the boot ENI's link, eth0 or ens5")
	}
	if c.ContainerInterface == "" {
		m.Wrong("containerInterface must be specified: it is the name of the pod's end of the veth pair, eth1 for " +
			"example")
	}
	m.Link("hostInterface", c.HostInterface)
	if c.HostInterface == "lo" {
		m.Wrong("hostInterface: \"lo\": this is the loopback link, which each namespace has")
	}
	m.NewLink("containerInterface", c.ContainerInterface)
	m.MTU(c.MTU, 68, "that of hostInterface")
	c.start = *cmp.Or(c.RouteTableStart, new(uint32(256)))
	if c.start == 0 || c.start > maxTable {
		m.Wrong("routeTableStart: %d: want 1 to %d", c.start, maxTable)
	}
	c.mark = *cmp.Or(c.NodePortMark, new(uint32(DefaultNodePortMark)))
	if c.mark == 0 {
		m.Wrong("nodePortMark: 0: want at least one bit to mark a connection; 8192 is 0x2000")
	}
	var err error
	if c.ports, err = parsePorts(*cmp.Or(c.NodePorts, new("30000:32767"))); err != nil {
		m.Wrong("nodePorts: %w", err)
	}
	if c.KeepCaller && err == nil && c.ports.last == 0 {
		m.Wrong(`keepCaller: true: it needs NodePorts, but nodePorts is ""`)
	}
	if c.ServiceLoop != "" {
		m.OneOf("serviceLoop", c.ServiceLoop, redirect, masquerade, none)
	}
	if c.KeepCaller && c.ServiceLoop == none {
		m.Wrong(`keepCaller: true: with serviceLoop "none" pods see the node instead of the caller`)
	}
	c.validateRoutes(&m)
	c.validatePrefix(&m)
	return m.Err()
}

// validateRoutes reads the keys about routes.
func (c *Config) validateRoutes(m *values.Mistakes) {
	m.OneOf("defaultRoute", cmp.Or(c.DefaultRoute, byNode), byNode, byVPC)
	if c.DefaultRoute == byVPC && len(c.HostCIDRs) == 0 {
		m.Wrong(`hostCidrs must be specified with defaultRoute "vpc": list the CIDRs of the cluster's services, ` +
			`"172.20.0.0/16" for example; otherwise calls to services leave by the ENI and get no answer`)
	}
	c.hostCIDRs = m.Prefixes("hostCidrs", c.HostCIDRs)
	for _, p := range c.hostCIDRs {
		if p.Bits() == 0 {
			m.Wrong("hostCidrs: %q: this is the default route: use the key defaultRoute", p)
		}
	}
}

// parsePorts reads a range of ports: "30000:32767", "30000-32767" as Kubernetes
// writes it, or one port. The empty text is the empty range.
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

// Mark is nodePortMark, of a configuration that Validate has accepted.
func (c Config) Mark() uint32 { return c.mark }

// ByNode are the prefixes of hostCidrs, of a configuration that Validate has accepted.
func (c Config) ByNode() []netip.Prefix { return c.hostCIDRs }
