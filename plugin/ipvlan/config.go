// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"cmp"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/values"
)

// A Config is the plugin's part of a network configuration. The keys master, mode, mtu and dns also exist in the
// original plugin and in CNI's reference plugin ipvlan.
//
//codec:describe exported
type Config struct {
	Master string    `json:"master"`                 // link of the node; "": the interface of prevResult
	Mode   string    `json:"mode"`                   // l2, l3 or l3s; "": l2
	MTU    int       `json:"mtu"`                    // 0: the master's
	DNS    types.DNS `json:"dns" codec:"plugin.DNS"` // empty: that of prevResult

	// the name of the pod's end of the veth pair: a NIC must have another name; "": eth1
	ContainerInterface string `json:"containerInterface"`

	nic.Asked // the pod's requests, which may name its further NICs

	// Keys of the reference plugin that this plugin does not support. Validate refuses them.
	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`
	LinkInContainer bool `json:"linkInContainer"`
}

// Validate sets the defaults and returns all mistakes together.
func (c *Config) Validate() error {
	var m values.Mistakes
	c.Mode = cmp.Or(c.Mode, "l2")
	m.OneOf("mode", c.Mode, "l2", "l3", "l3s")
	m.Link("master", c.Master)
	m.NewLink("containerInterface", c.ContainerInterface)
	c.ContainerInterface = cmp.Or(c.ContainerInterface, "eth1")
	m.MTU(c.MTU, 68, "the MTU of the master")
	if c.IPAM.Type != "" {
		m.Wrong("ipam: %q: this plugin calls no other plugin; put cni-ipvlan-vpc-k8s-ipam before this plugin in the "+
			"chain, or use the reference plugin (type ipvlan), which calls an ipam plugin",
			c.IPAM.Type)
	}
	if c.LinkInContainer {
		m.Wrong("linkInContainer: true: want false, because the master is the link of an ENI, and is on the node")
	}
	return m.Err()
}
