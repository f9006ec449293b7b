// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// status fails if the node lacks a property that every ADD needs.
func status(r *request) error {
	n, err := readNode(r.nodeNS, &r.Config)
	if err != nil {
		return plugin.Errorf(plugin.CodeNotAvailable, wantsHost, "%w", err)
	}
	if err := checkSettable(r, n); err != nil {
		return plugin.Errorf(plugin.CodeNotAvailable, "", "%w", err)
	}
	if err := checkNetfilter(r, n); err != nil {
		return withModuleHint(err)
	}
	if err := r.Config.checkLoopSupport(); err != nil {
		return plugin.Errorf(plugin.CodeNotAvailable,
			`this loop needs Linux 5.10 and the modules sch_ingress and cls_bpf. Without "serviceLoop" in the `+
				"configuration, the plugin uses a loop that the kernel supports",
			`serviceLoop "redirect": %w`, err)
	}
	if b := r.Config.BlockInstanceMetadata; b != nil && *b {
		if err := (nl.Forbid{Addrs: metadataAddrs}).Supported(); err != nil {
			return plugin.Errorf(plugin.CodeNotAvailable, "the kernel needs the modules sch_ingress and cls_bpf",
				"blockInstanceMetadata: %w", err)
		}
	}
	return nil
}

// checkSettable fails if an ADD could not correct a sysctl of the node.
func checkSettable(r *request, n node) error {
	for _, o := range nodeSysctls(r.Config, n) {
		if err := o.(nl.Sysctl).Settable(r.nodeNS); err != nil {
			return fmt.Errorf("%s: %w", o, err)
		}
	}
	return nil
}

// checkNetfilter fails if the kernel does not accept the tables that an ADD makes. The kernel loads modules of nftables
// when a table first needs them, so checkNetfilter tries the tables in a new namespace. If the kernel cannot make a
// namespace, checkNetfilter returns no error. If an ADD of this release has made one of the tables on the node,
// checkNetfilter tries nothing, because runtimes call STATUS every few seconds.
func checkNetfilter(r *request, n node) error {
	if nodeTable(r, n).Lasting().Sealed(r.nodeNS) || routedTable(r).Lasting().Sealed(r.nodeNS) {
		return nil
	}
	if _, err := r.nodeNS.Tables(); err != nil {
		return plugin.Errorf(plugin.CodeNotAvailable, "the kernel needs CONFIG_NF_TABLES or the module nf_tables",
			"this kernel has no nftables: %w", err)
	}
	for _, t := range sampleTables(r, n) {
		if err := nl.Scratch(t.Add); errors.Is(err, nl.ErrNoModule) {
			return err
		}
	}
	return nil
}

// sampleTables returns the node's table if it has chains, and then the table of a pod's loop if the loop has a table.
// The samples have rules that match two CIDRs, because only a rule with several CIDRs also tests the kernel's sets.
func sampleTables(r *request, n node) (tables []nl.Table) {
	q := *r
	q.others = []loopDsts{{byENI: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("100.64.0.0/10")}}}
	if t := nodeTable(&q, n); len(t.Chains) > 0 {
		tables = append(tables, t)
	}
	for _, o := range podLoop(&q, pair{loop: r.Config.loopsOfNewPod()[0], callers: r.Config.KeepCaller}, 0) {
		if t, is := o.(nl.Table); is {
			tables = append(tables, t)
		}
	}
	return tables
}

// withModuleHint adds the code CodeNotAvailable and a hint to an error about a module that the kernel lacks, and
// returns all other errors unchanged.
func withModuleHint(err error) error {
	if !errors.Is(err, nl.ErrNoModule) {
		return err
	}
	return plugin.Errorf(plugin.CodeNotAvailable, plugin.ModulesHint, "%w", err)
}
