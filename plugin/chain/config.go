// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/values"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A Config has the keys of all plugins. The plugins ipvlan and unnumbered-ptp share the keys mtu and
// containerInterface.
type Config struct {
	ipam   lease.Config
	ipvlan ipvlan.Config
	ptp    ptp.Config
	egress egress.Config
}

// Sections returns pointers to the configurations of the plugins.
func (c *Config) Sections() []any { return []any{&c.ipam, &c.ipvlan, &c.ptp, &c.egress} }

// Describe describes the JSON that UnmarshalJSON reads.
func (c *Config) Describe(j *codec.Codec) {
	j.Each(c.ipam.Describe, c.ipvlan.Describe, c.ptp.Describe, c.egress.Describe)
}

// UnmarshalJSON decodes the text once for each plugin, and each plugin takes its own keys. After a mistake,
// UnmarshalJSON continues to decode, like encoding/json, but it returns only the first mistake. If it returned all
// mistakes, a mistake in mtu would appear twice.
func (c *Config) UnmarshalJSON(text []byte) error {
	return cmp.Or(json.Unmarshal(text, &c.ipam), json.Unmarshal(text, &c.ipvlan), json.Unmarshal(text, &c.ptp),
		json.Unmarshal(text, &c.egress))
}

// Validate sets the defaults and returns all mistakes together.
func (c *Config) Validate() error {
	ipam, mtu, end := c.ipvlan.IPAM, c.ptp.MTU, c.ipvlan.ContainerInterface
	// Each mistake must appear once: only ipvlan checks mtu, only unnumbered-ptp checks containerInterface, and this
	// function refuses the key ipam.
	c.ipvlan.IPAM.Type, c.ptp.MTU, c.ipvlan.ContainerInterface = "", 0, ""
	mistakes := []error{c.ipam.Validate(), c.ipvlan.Validate(), c.ptp.Validate(), c.egress.Validate()}
	c.ipvlan.IPAM, c.ptp.MTU, c.ipvlan.ContainerInterface = ipam, mtu, end
	if ipam.Type != "" {
		mistakes = append(mistakes,
			fmt.Errorf("ipam: %q: this plugin calls no other plugin for addresses; move the keys in \"ipam\" to the "+
				"object of this plugin, or use the reference plugin (type ipvlan), which calls an ipam plugin",
				ipam.Type))
	}
	return errors.Join(append(mistakes, Unhooked(c.ipvlan.Mode, &c.ptp, len(c.egress.Egresses)),
		Routed(&c.ipam, &c.ptp, len(c.egress.Egresses)))...)
}

// Routed returns the mistakes of a configuration that conflicts with routed pods. If a pool of addresses has the
// dataPath veth, its pods are routed pods.
func Routed(ipam *lease.Config, pair *ptp.Config, egresses int) error {
	var m values.Mistakes
	veth, ipvlan := ipam.Routed()
	if len(veth) == 0 {
		return nil
	}
	if mark := pair.Mark(); mark&ptp.ENIMarks != 0 {
		m.Wrong(`nodePortMark: %d (%#x): with dataPath "veth" the bits %#x stand for ENIs: want other bits, for `+
			"example 8192 (0x2000)",
			mark, mark, ptp.ENIMarks)
	}
	if len(ipvlan) == 0 && egresses > 0 {
		m.Wrong(`egress: all pools have dataPath "veth", and only pods of a pool with dataPath "ipvlan" can be ` +
			"clients or routers")
	}
	return m.Err()
}

// Unhooked returns the mistakes of a configuration whose ipvlan mode is l3s. A service loop and an egress need hooks in
// the pod. In the mode l3s, packets from the VPC bypass these hooks.
func Unhooked(mode string, pair *ptp.Config, egresses int) error {
	var m values.Mistakes
	if mode == "l3s" && pair.Loops() {
		m.Wrong(`mode: "l3s": want "l2", or serviceLoop "none", because with l3s a service loop sees no packets ` +
			"that arrive from the VPC")
	}
	if mode == "l3s" && egresses > 0 {
		m.Wrong(`mode: "l3s": want "l2", because with l3s the filters of an egress see no packets that arrive ` +
			"from the VPC")
	}
	return m.Err()
}

// requestOf returns the request r for one plugin, with the configuration of this plugin.
func requestOf[C any](r *plugin.Request[Config], config C) *plugin.Request[C] {
	return &plugin.Request[C]{
		Network: r.Network, Attachment: r.Attachment, NetNS: r.NetNS, Pod: r.Pod, Config: config, Prev: r.Prev,
		Valid: r.Valid, Began: r.Began, Added: r.Added,
	}
}

// adapt turns the commands of one plugin into commands of the chain. Each returned command calls the plugin's command
// with the plugin's own configuration. None of the returned commands is nil.
func adapt[C any](c plugin.Commands[C], config func(Config) C) plugin.Commands[Config] {
	command := func(f func(context.Context, *plugin.Request[C]) error) func(context.Context,
		*plugin.Request[Config]) error {
		return func(ctx context.Context, r *plugin.Request[Config]) error {
			if f == nil {
				return nil
			}
			return f(ctx, requestOf(r, config(r.Config)))
		}
	}
	return plugin.Commands[Config]{
		Add: func(ctx context.Context, r *plugin.Request[Config]) (*types100.Result, error) {
			return c.Add(ctx, requestOf(r, config(r.Config)))
		},
		Del: command(c.Del), Check: command(c.Check), GC: command(c.GC), Status: command(c.Status),
	}
}
