// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// checkKernel tries the features of the kernel that pods need. It does not need the plugins, which check further
// features in STATUS.
func (p *Node) checkKernel(context.Context) ([]Finding, error) {
	var found []Finding
	if err := (nl.IPVlan{}).Supported(p.pool.Host); err != nil {
		if veth, slaves := p.poolsByPath(); len(slaves) > 0 || len(veth) == 0 {
			found = append(found, Finding{Severity: severe, About: "ipvlan",
				Means: "this kernel does not support ipvlan" + servedText(veth, slaves) + ": " + err.Error(),
				Do: `the kernel needs CONFIG_IPVLAN or the module ipvlan. On some distributions, the module is in ` +
					`the package linux-modules-extra or kernel-modules-extra. Pools with "dataPath": "veth" work ` +
					`without ipvlan`})
		}
	}
	if _, err := p.pool.Host.Tables(); err != nil {
		found = append(found, Finding{Severity: severe, About: "nftables", Means: "this kernel does not support " +
			"nftables: " +
			err.Error(),
			Do: "the kernel needs CONFIG_NF_TABLES or the module nf_tables"})
	}
	return found, nil
}

// poolsByPath returns two lists of the networks' pools: the pools with the data path veth, and the pools with ipvlan.
func (p *Node) poolsByPath() (veth, ipvlan []string) {
	for _, l := range p.ours {
		if l.IPAM == nil {
			continue // checkConfig reports the mistake
		}
		v, s := l.IPAM.Routed()
		veth, ipvlan = append(veth, v...), append(ipvlan, s...)
	}
	return veth, ipvlan
}

// servedText says which pools work with a kernel without ipvlan, and which do not. If none works, it returns "".
func servedText(veth, ipvlan []string) string {
	if len(veth) == 0 {
		return ""
	}
	return fmt.Sprintf(", so the pools %s do not work (the pools %s work)",
		strings.Join(ipvlan, ", "), strings.Join(veth, ", "))
}
