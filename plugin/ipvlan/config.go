// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ifname"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
)

// A Config is the plugin's part of a network configuration. The original plugin and the
// reference plugin have the keys down to dns, too.
//
//codec:describe exported
type Config struct {
	Master string    `json:"master"`                 // link of the node; "": the interface of prevResult
	Mode   string    `json:"mode"`                   // l2, l3 or l3s; "": l2
	MTU    int       `json:"mtu"`                    // 0: the master's
	DNS    types.DNS `json:"dns" codec:"plugin.DNS"` // empty: that of prevResult

	ContainerInterface string `json:"containerInterface"` // the name of the pod's end of the veth pair, which no NIC gets; "": eth1

	nic.Asked // for the names of a pod's further NICs

	// The reference plugin supports these and this one does not: they are refused, not ignored.
	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`
	LinkInContainer bool `json:"linkInContainer"`
}

var modes = []string{"l2", "l3", "l3s"}

// Validate sets the defaults and returns all mistakes together.
func (c *Config) Validate() error {
	var mistakes []error
	mistake := func(format string, args ...any) { mistakes = append(mistakes, fmt.Errorf(format, args...)) }
	if c.Mode = cmp.Or(c.Mode, "l2"); !slices.Contains(modes, c.Mode) {
		mistake("unknown ipvlan mode: %q: the modes are l2, l3 and l3s", c.Mode)
	}
	if fault := ifname.Fault(c.Master); fault != "" && c.Master != "" {
		mistake("master: %q: the name %s: a link name has 1 to 15 bytes without white space, / and :", c.Master, fault)
	}
	if fault := ifname.Refused(c.ContainerInterface); fault != "" && c.ContainerInterface != "" {
		mistake("containerInterface: %q: the name %s: want %s", c.ContainerInterface, fault, ifname.Wanted)
	}
	c.ContainerInterface = cmp.Or(c.ContainerInterface, "eth1")
	if c.MTU != 0 && (c.MTU < 68 || c.MTU > 65535) {
		mistake("mtu: %d: the value must be 0, for the MTU of the master, or 68 to 65535", c.MTU)
	}
	if c.IPAM.Type != "" {
		mistake("ipam: %q: this plugin calls no other plugin: put cni-ipvlan-vpc-k8s-ipam before it in the chain, "+
			"or use the reference plugin, type ipvlan, with its own ipam", c.IPAM.Type)
	}
	if c.LinkInContainer {
		mistake("linkInContainer: true: the master is an ENI, which is a link of the node")
	}
	return errors.Join(mistakes...)
}
