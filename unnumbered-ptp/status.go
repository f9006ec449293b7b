// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"context"
	"errors"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// status asks for what every ADD needs of the node.
func status(_ context.Context, r *plugin.Request[Config]) error {
	host, err := nl.Host()
	if err != nil {
		return err
	}
	defer host.Close()
	n, err := readNode(host, r.Config)
	if err != nil {
		return plugin.Errorf(plugin.CodeNotAvailable, "hostInterface is the name of the boot ENI's link, see 'ip addr'", "%w", err)
	}
	if err := netfilter(r, n, host); err != nil {
		return unavailable(err)
	}
	if err := r.Config.loopSupported(); err != nil {
		return plugin.Errorf(plugin.CodeNotAvailable, "it needs Linux 5.10 and the modules sch_ingress and cls_bpf; "+
			`without "serviceLoop" in the configuration the plugin does what the kernel can`, `serviceLoop "redirect": %w`, err)
	}
	if b := r.Config.BlockInstanceMetadata; b != nil && *b {
		if err := (nl.Forbid{Addrs: metadata}).Supported(); err != nil {
			return plugin.Errorf(plugin.CodeNotAvailable, "it needs the modules sch_ingress and cls_bpf", "blockInstanceMetadata: %w", err)
		}
	}
	return nil
}

// netfilter asks whether the kernel takes the tables that an ADD makes. Parts of nftables are
// modules, which the kernel loads when the first table wants them, or does not find. So the
// tables are tried, in a namespace made for it; if that cannot be made, nothing is known. But
// runtimes call STATUS every few seconds, and where the node has the table as this release
// makes it, there is nothing to try.
func netfilter(r *plugin.Request[Config], n node, host *nl.NS) error {
	if _, err := host.Tables(); err != nil {
		return plugin.Errorf(plugin.CodeNotAvailable, "it needs CONFIG_NF_TABLES or the module nf_tables", "this kernel has no nftables: %w", err)
	}
	tables := anyTables(r, n)
	if len(tables) > 0 && lasting(nl.Wiring{{NS: host, Object: tables[0]}}).Check() == nil {
		return nil
	}
	for _, t := range tables {
		if err := nl.Scratch(t.Add); errors.Is(err, nl.ErrNoModule) {
			return err
		}
	}
	return nil
}

// anyTables are the tables of the node, first, and of a pod, if they have any: for a VPC with
// two CIDRs, because a rule about several takes more of the kernel than one about a single one.
func anyTables(r *plugin.Request[Config], n node) (tables []nl.Table) {
	q := *r
	q.Prev = &types100.Result{Routes: []*types.Route{
		{Dst: net.IPNet{IP: net.IPv4(10, 0, 0, 0), Mask: net.CIDRMask(8, 32)}}, {Dst: net.IPNet{IP: net.IPv4(100, 64, 0, 0), Mask: net.CIDRMask(10, 32)}},
	}}
	if t := nodeTable(&q, n); len(t.Chains) > 0 {
		tables = append(tables, t)
	}
	for _, o := range podLoop(&q, pair{loop: r.Config.loops()[0], callers: r.Config.KeepCaller}) {
		if t, is := o.(nl.Table); is {
			tables = append(tables, t)
		}
	}
	return tables
}

// unavailable gives the error of a kernel that does not take a table STATUS' code, and what
// to do.
func unavailable(err error) error {
	if !errors.Is(err, nl.ErrNoModule) {
		return err
	}
	return plugin.Errorf(plugin.CodeNotAvailable, "have them loaded when the node boots, see modules-load.d(5); "+
		"on some distributions they are in the package linux-modules-extra or kernel-modules-extra", "%w", err)
}
