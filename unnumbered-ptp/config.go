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

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A Config is the plugin's part of a network configuration. The keys down to
// nodePortMark are the original's, with its defaults.
type Config struct {
	HostInterface      string  `json:"hostInterface"`      // link of the boot ENI
	ContainerInterface string  `json:"containerInterface"` // pod's end of the veth pair
	IPMasq             bool    `json:"ipMasq"`             // forward and masquerade: without it neither services nor the internet
	MTU                int     `json:"mtu"`                // of the pair; 0: that of hostInterface
	RouteTableStart    *uint32 `json:"routeTableStart"`    // lowest number of a table for a pod's routes; 256
	NodePorts          *string `json:"nodePorts"`          // as iptables writes a range; 30000:32767; "": no NodePorts
	NodePortMark       *uint32 `json:"nodePortMark"`       // bits of the mark of a connection to a NodePort; 0x2000

	KeepCaller bool `json:"keepCaller"` // a pod sees who calls it at a NodePort by his own address, wherever he is, if the service says so

	ServiceLoop string `json:"serviceLoop"` // how a pod reaches a backend of a service in the VPC: redirect, masquerade or none; "": what the kernel can of the first two

	DefaultRoute string   `json:"defaultRoute"` // where what is nobody's goes: host, by the node, or vpc, by the pod's ENI; "": host
	HostCIDRs    []string `json:"hostCidrs"`    // destinations that are reached by the node, whatever else says

	BlockInstanceMetadata *bool `json:"blockInstanceMetadata"` // from the pod; nil: in a family whose default route is by the ENI

	RuntimeConfig struct {
		Bandwidth bandwidth `json:"bandwidth"`
	} `json:"runtimeConfig"` // what the runtime says for one pod

	ports     ports
	start     uint32
	mark      uint32
	hostCIDRs []netip.Prefix
}

// Describe says what the struct tags say.
func (c *Config) Describe(j *codec.Codec) {
	j.Object(func() {
		codec.Field(j, "hostInterface", &c.HostInterface, codec.Text)
		codec.Field(j, "containerInterface", &c.ContainerInterface, codec.Text)
		codec.Field(j, "ipMasq", &c.IPMasq, codec.Flag)
		codec.Field(j, "mtu", &c.MTU, codec.Number)
		codec.Field(j, "routeTableStart", &c.RouteTableStart, codec.Pointer(codec.Natural[uint32]))
		codec.Field(j, "nodePorts", &c.NodePorts, codec.Pointer(codec.Text))
		codec.Field(j, "nodePortMark", &c.NodePortMark, codec.Pointer(codec.Natural[uint32]))
		codec.Field(j, "keepCaller", &c.KeepCaller, codec.Flag)
		codec.Field(j, "serviceLoop", &c.ServiceLoop, codec.Text)
		codec.Field(j, "defaultRoute", &c.DefaultRoute, codec.Text)
		codec.List(j, "hostCidrs", &c.HostCIDRs, codec.Text)
		codec.Field(j, "blockInstanceMetadata", &c.BlockInstanceMetadata, codec.Pointer(codec.Flag))
		codec.Within(j, "runtimeConfig", func() {
			codec.Field(j, "bandwidth", &c.RuntimeConfig.Bandwidth, (*bandwidth).describe)
		})
	})
}

func (b *bandwidth) describe(j *codec.Codec) {
	j.Object(func() {
		codec.Field(j, "ingressRate", &b.IngressRate, codec.Natural)
		codec.Field(j, "ingressBurst", &b.IngressBurst, codec.Natural)
		codec.Field(j, "egressRate", &b.EgressRate, codec.Natural)
		codec.Field(j, "egressBurst", &b.EgressBurst, codec.Natural)
	})
}

// DefaultNodePortMark is nodePortMark where that is left out, as the original has it.
const DefaultNodePortMark = 0x2000

// The values of defaultRoute.
const (
	byHost = "host"
	byVPC  = "vpc"
)

// ports is a range of ports. It is empty if last is 0.
type ports struct{ first, last uint16 }

// maxTable leaves room for an index above it.
const maxTable = 1 << 30

// Validate sets the defaults and returns every mistake at once.
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
		mistake("mtu: %d: it is 0, for that of hostInterface, or 68 to 65535", c.MTU)
	}
	c.start = *cmp.Or(c.RouteTableStart, new(uint32(256)))
	if c.start == 0 || c.start > maxTable {
		mistake("routeTableStart: %d: it is 1 to %d", c.start, maxTable)
	}
	c.mark = *cmp.Or(c.NodePortMark, new(uint32(DefaultNodePortMark)))
	if c.mark == 0 {
		mistake("nodePortMark: 0: it is the bits that mark a connection, at least one; 8192 is 0x2000")
	}
	var err error
	if c.ports, err = parsePorts(*cmp.Or(c.NodePorts, new("30000:32767"))); err != nil {
		mistake("nodePorts: %w", err)
	}
	if c.KeepCaller && err == nil && c.ports.last == 0 {
		mistake(`keepCaller: it is for NodePorts, and nodePorts "" has none`)
	}
	if !slices.Contains([]string{"", redirect, masquerade, none}, c.ServiceLoop) {
		mistake(`serviceLoop: %q: it is "redirect" or "masquerade", or "" for the first of them that the kernel can do, or "none"`, c.ServiceLoop)
	}
	if c.KeepCaller && c.ServiceLoop == none {
		mistake(`keepCaller: with serviceLoop "none" pods see the node, whoever calls`)
	}
	c.validateRoutes(mistake)
	return errors.Join(mistakes...)
}

// validateNames refuses what can be the name of neither link.
func (c *Config) validateNames(mistake func(format string, args ...any)) {
	for _, k := range []struct{ key, name string }{{"hostInterface", c.HostInterface}, {"containerInterface", c.ContainerInterface}} {
		if fault := plugin.LinkNameFault(k.name); fault != "" && k.name != "" {
			mistake("%s: %q: the name %s: a link's has 1 to 15 bytes without blanks, / and :", k.key, k.name, fault)
		}
		if k.name == "lo" {
			mistake("%s: \"lo\": that is the loopback link, which each namespace has", k.key)
		}
	}
}

// validateRoutes reads what says where packets go.
func (c *Config) validateRoutes(mistake func(format string, args ...any)) {
	if !slices.Contains([]string{"", byHost, byVPC}, c.DefaultRoute) {
		mistake(`defaultRoute: %q: it is "host", or "" for that, or "vpc", by the pod's ENI`, c.DefaultRoute)
	}
	if c.DefaultRoute == byVPC && len(c.HostCIDRs) == 0 {
		mistake(`hostCidrs must be specified with defaultRoute "vpc": the CIDRs of the cluster's services, ` +
			`"172.20.0.0/16" for example, or they would leave by the ENI, which has none`)
	}
	c.hostCIDRs = nil
	for _, text := range c.HostCIDRs {
		p, err := netip.ParsePrefix(text)
		if a, e := netip.ParseAddr(text); e == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || p.Addr().Is4In6() || p.Addr().Zone() != "" {
			mistake("hostCidrs: %q: it is a CIDR or an address, 172.20.0.0/16 or 169.254.20.10", text)
			continue
		}
		if p = p.Masked(); p.Bits() == 0 {
			mistake(`hostCidrs: %q: that is the default route: see defaultRoute`, text)
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
		return ports{}, fmt.Errorf(`%q: it is a range as "30000:32767", or "" for none`, s)
	}
	return ports{uint16(first), uint16(last)}, nil
}
