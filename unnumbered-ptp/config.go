// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ifname"
)

// A Config is the plugin's part of a network configuration. The original plugin has the keys
// down to nodePortMark, with the same defaults.
//
//codec:describe exported
type Config struct {
	HostInterface      string  `json:"hostInterface"`      // link of the boot ENI
	ContainerInterface string  `json:"containerInterface"` // pod's end of the veth pair
	IPMasq             bool    `json:"ipMasq"`             // forward and masquerade: without it pods reach neither services nor the internet
	MTU                int     `json:"mtu"`                // of the pair; 0: the MTU of hostInterface
	RouteTableStart    *uint32 `json:"routeTableStart"`    // lowest number of a routing table for a pod; 256
	NodePorts          *string `json:"nodePorts"`          // a range as iptables writes it; 30000:32767; "": no NodePorts
	NodePortMark       *uint32 `json:"nodePortMark"`       // bits of the mark of a connection to a NodePort; 0x2000

	KeepCaller bool `json:"keepCaller"` // a pod sees the address of whoever calls it at a NodePort, if the service asks for that

	ServiceLoop string `json:"serviceLoop"` // how a pod reaches a service's backend in the VPC: redirect, masquerade or none; "": the first that the kernel can do

	DefaultRoute string   `json:"defaultRoute"` // the default route: host, by the node, or vpc, by the pod's ENI; "": host
	HostCIDRs    []string `json:"hostCidrs"`    // destinations that pods always reach by the node

	BlockInstanceMetadata *bool `json:"blockInstanceMetadata"` // for the pod; nil: in a family whose default route is by the ENI

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

// ports is a range of ports. It is empty if last is 0.
type ports struct{ first, last uint16 }

// maxTable is the highest routeTableStart: the index of a link is added to it.
const maxTable = 1 << 30

// Validate sets the defaults and returns all mistakes together.
func (c *Config) Validate() error {
	var mistakes []error
	mistake := func(format string, args ...any) { mistakes = append(mistakes, fmt.Errorf(format, args...)) }
	if c.HostInterface == "" {
		mistake("hostInterface must be specified: it is the name of the boot ENI's link, eth0 or ens5")
	}
	if c.ContainerInterface == "" {
		mistake("containerInterface must be specified: it is the name of the pod's end of the veth pair, eth1 for example")
	}
	c.validateNames(mistake)
	if c.MTU != 0 && (c.MTU < 68 || c.MTU > 65535) {
		mistake("mtu: %d: the value must be 0, for the MTU of hostInterface, or 68 to 65535", c.MTU)
	}
	c.start = *cmp.Or(c.RouteTableStart, new(uint32(256)))
	if c.start == 0 || c.start > maxTable {
		mistake("routeTableStart: %d: the value must be 1 to %d", c.start, maxTable)
	}
	c.mark = *cmp.Or(c.NodePortMark, new(uint32(DefaultNodePortMark)))
	if c.mark == 0 {
		mistake("nodePortMark: 0: the value must have at least one bit to mark a connection; 8192 is 0x2000")
	}
	var err error
	if c.ports, err = parsePorts(*cmp.Or(c.NodePorts, new("30000:32767"))); err != nil {
		mistake("nodePorts: %w", err)
	}
	if c.KeepCaller && err == nil && c.ports.last == 0 {
		mistake(`keepCaller: true: it needs NodePorts, but nodePorts is ""`)
	}
	if !slices.Contains([]string{"", redirect, masquerade, none}, c.ServiceLoop) {
		mistake(`serviceLoop: %q: the value must be "redirect", "masquerade", "none", or "" for the first of these that the kernel can do`, c.ServiceLoop)
	}
	if c.KeepCaller && c.ServiceLoop == none {
		mistake(`keepCaller: true: with serviceLoop "none" pods see the node instead of the caller`)
	}
	c.validateRoutes(mistake)
	return errors.Join(mistakes...)
}

// validateNames refuses names that the links cannot have.
func (c *Config) validateNames(mistake func(format string, args ...any)) {
	if fault := ifname.Fault(c.HostInterface); fault != "" && c.HostInterface != "" {
		mistake("hostInterface: %q: the name %s: a link name has 1 to 15 bytes without white space, / and :", c.HostInterface, fault)
	}
	if c.HostInterface == "lo" {
		mistake("hostInterface: \"lo\": this is the loopback link, which each namespace has")
	}
	if fault := ifname.Refused(c.ContainerInterface); fault != "" && c.ContainerInterface != "" {
		mistake("containerInterface: %q: the name %s: want %s", c.ContainerInterface, fault, ifname.Wanted)
	}
}

// validateRoutes reads the keys about routes.
func (c *Config) validateRoutes(mistake func(format string, args ...any)) {
	if !slices.Contains([]string{"", byNode, byVPC}, c.DefaultRoute) {
		mistake(`defaultRoute: %q: the value must be "host" or "", by the node, or "vpc", by the pod's ENI`, c.DefaultRoute)
	}
	if c.DefaultRoute == byVPC && len(c.HostCIDRs) == 0 {
		mistake(`hostCidrs must be specified with defaultRoute "vpc": list the CIDRs of the cluster's services, ` +
			`"172.20.0.0/16" for example; otherwise calls to services leave by the ENI and get no answer`)
	}
	c.hostCIDRs = nil
	for _, text := range c.HostCIDRs {
		p, err := netip.ParsePrefix(text)
		if a, e := netip.ParseAddr(text); e == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || p.Addr().Is4In6() || p.Addr().Zone() != "" {
			mistake("hostCidrs: %q: the value must be a CIDR or an address, such as 172.20.0.0/16 or 169.254.20.10", text)
			continue
		}
		if p = p.Masked(); p.Bits() == 0 {
			mistake(`hostCidrs: %q: this is the default route: use the key defaultRoute`, text)
		} else if !slices.Contains(c.hostCIDRs, p) {
			c.hostCIDRs = append(c.hostCIDRs, p)
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
		return ports{}, fmt.Errorf(`%q: the value must be a range such as "30000:32767", or "" for no NodePorts`, s)
	}
	return ports{uint16(first), uint16(last)}, nil
}

// ByNode are the prefixes of hostCidrs, of a configuration that Validate has accepted.
func (c Config) ByNode() []netip.Prefix { return c.hostCIDRs }
