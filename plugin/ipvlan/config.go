// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A Config is the plugin's part of a network configuration. The keys down to dns
// are the original's, and those of the reference plugin.
type Config struct {
	Master string    `json:"master"` // link of the host; "": the interface of prevResult
	Mode   string    `json:"mode"`   // l2, l3 or l3s; "": l2
	MTU    int       `json:"mtu"`    // 0: the master's
	DNS    types.DNS `json:"dns"`    // empty: that of prevResult

	// What the reference plugin can and this one cannot, so that it is refused
	// and not ignored.
	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`
	LinkInContainer bool `json:"linkInContainer"`
}

// Describe says what the struct tags say.
func (c *Config) Describe(j *codec.Codec) {
	j.Object(func() {
		codec.Field(j, "master", &c.Master, codec.Text)
		codec.Field(j, "mode", &c.Mode, codec.Text)
		codec.Field(j, "mtu", &c.MTU, codec.Number)
		codec.Field(j, "dns", &c.DNS, plugin.DNS)
		codec.Within(j, "ipam", func() {
			codec.Field(j, "type", &c.IPAM.Type, codec.Text)
		})
		codec.Field(j, "linkInContainer", &c.LinkInContainer, codec.Flag)
	})
}

var modes = []string{"l2", "l3", "l3s"}

// Validate sets the defaults, and returns every mistake at once.
func (c *Config) Validate() error {
	var mistakes []error
	mistake := func(format string, args ...any) { mistakes = append(mistakes, fmt.Errorf(format, args...)) }
	if c.Mode = cmp.Or(c.Mode, "l2"); !slices.Contains(modes, c.Mode) {
		mistake("unknown ipvlan mode: %q: mode is l2, l3 or l3s", c.Mode)
	}
	if fault := plugin.LinkNameFault(c.Master); fault != "" && c.Master != "" {
		mistake("master: %q: the name %s: a link's has 1 to 15 bytes without blanks, / and :", c.Master, fault)
	}
	if c.MTU != 0 && (c.MTU < 68 || c.MTU > 65535) {
		mistake("mtu: %d: it is 0, for the master's, or 68 to 65535", c.MTU)
	}
	if c.IPAM.Type != "" {
		mistake("ipam: %q: this plugin calls no other; put cni-ipvlan-vpc-k8s-ipam before it in the chain, "+
			"or use the reference plugin, of type ipvlan, with an ipam of its own", c.IPAM.Type)
	}
	if c.LinkInContainer {
		mistake("linkInContainer: true: the master is an ENI, a link of the host")
	}
	return errors.Join(mistakes...)
}
