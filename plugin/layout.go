// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"bytes"
	"encoding/json"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// This file describes the JSON of answers, whose types are in the CNI library. Tests compare each description with the
// struct tags. The keys are in alphabetical order, as runtimes and the CNI library write them.

// A describer is a type that describes its JSON to a codec.
type describer interface{ Describe(*codec.Codec) }

// unmarshal decodes compact JSON as encoding/json does. If v has a description, unmarshal first tries
// codec.ReadExactly. ReadExactly fails for unusual text.
func unmarshal[T any](text []byte, v *T) error {
	if d, ok := any(v).(describer); ok && codec.ReadExactly(text, d.Describe) == nil {
		return nil
	}
	*v = *new(T)
	return json.Unmarshal(text, v)
}

// currentVersions are the CNI versions whose results are those of the package types100.
var currentVersions = []string{"1.0.0", "1.1.0"}

// parseResult reads a result of a current version, and reports whether it succeeded.
func parseResult(text []byte) (*types100.Result, bool) {
	r := &types100.Result{}
	err := codec.ReadExactly(text, func(c *codec.Codec) { describeResult(r, c) })
	return r, err == nil && slices.Contains(currentVersions, r.CNIVersion)
}

// formatResult returns the JSON that the result's method PrintTo writes. But the JSON of a result of a current version
// has no white space. To write the white space would take as long as all other work of formatResult.
func formatResult(r types.Result) ([]byte, error) {
	if r, ok := r.(*types100.Result); ok {
		dense, err := codec.Write(make([]byte, 0, 1<<10), func(c *codec.Codec) { describeResult(r, c) })
		if err == nil {
			return dense, nil
		}
	}
	var b bytes.Buffer
	err := r.PrintTo(&b)
	return b.Bytes(), err
}

func describeResult(r *types100.Result, c *codec.Codec) {
	c.Object(func() {
		codec.Optional(c, "cniVersion", &r.CNIVersion, codec.Text)
		if !r.DNS.IsEmpty() || !c.Writes() {
			codec.Field(c, "dns", &r.DNS, DNS)
		}
		codec.OptionalList(c, "interfaces", &r.Interfaces, codec.Pointer(describeLink))
		codec.OptionalList(c, "ips", &r.IPs, codec.Pointer(describeIP))
		codec.OptionalList(c, "routes", &r.Routes, codec.Pointer(describeRoute))
	})
}

// DNS describes the CNI library's type DNS, which is also in configurations.
func DNS(d *types.DNS, c *codec.Codec) {
	c.Object(func() {
		codec.Optional(c, "domain", &d.Domain, codec.Text)
		codec.OptionalList(c, "nameservers", &d.Nameservers, codec.Text)
		codec.OptionalList(c, "options", &d.Options, codec.Text)
		codec.OptionalList(c, "search", &d.Search, codec.Text)
	})
}

func describeLink(i *types100.Interface, c *codec.Codec) {
	c.Object(func() {
		codec.Optional(c, "mac", &i.Mac, codec.Text)
		codec.Optional(c, "mtu", &i.Mtu, codec.Number)
		codec.Field(c, "name", &i.Name, codec.Text)
		codec.Optional(c, "pciID", &i.PciID, codec.Text)
		codec.Optional(c, "sandbox", &i.Sandbox, codec.Text)
		codec.Optional(c, "socketPath", &i.SocketPath, codec.Text)
	})
}

func describeIP(i *types100.IPConfig, c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "address", &i.Address, describePrefix)
		describeOptionalAddr(c, "gateway", &i.Gateway)
		codec.Optional(c, "interface", &i.Interface, codec.Pointer(codec.Number))
	})
}

func describeRoute(r *types.Route, c *codec.Codec) {
	c.Object(func() {
		codec.Optional(c, "advmss", &r.AdvMSS, codec.Number)
		codec.Field(c, "dst", &r.Dst, describePrefix)
		describeOptionalAddr(c, "gw", &r.GW)
		codec.Optional(c, "mtu", &r.MTU, codec.Number)
		codec.Optional(c, "priority", &r.Priority, codec.Number)
		codec.Optional(c, "scope", &r.Scope, codec.Pointer(codec.Number))
		codec.Optional(c, "table", &r.Table, codec.Pointer(codec.Number))
	})
}

// describePrefix describes a CIDR block, or an address with a prefix length.
func describePrefix(n *net.IPNet, c *codec.Codec) {
	if c.Writes() {
		codec.Text(new(n.String()), c)
		return
	}
	var text string
	codec.Text(&text, c)
	p, err := types.ParseCIDR(text)
	if err != nil {
		c.Fail(err)
		return
	}
	*n = *p
}

// describeOptionalAddr describes a member whose value is an address, and which is missing if there is no address.
func describeOptionalAddr(c *codec.Codec, name string, ip *net.IP) {
	if len(*ip) > 0 || !c.Writes() {
		codec.Field(c, name, ip, describeAddr)
	}
}

func describeAddr(ip *net.IP, c *codec.Codec) {
	if c.Writes() {
		b, err := ip.MarshalText()
		if err != nil {
			c.Fail(err)
		}
		codec.Text(new(string(b)), c)
		return
	}
	*ip = codec.Scan(c, func(text string) (ip net.IP, err error) {
		err = ip.UnmarshalText([]byte(text))
		return ip, err
	})
}
