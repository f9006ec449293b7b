// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// checkKernel tries the kernel features that every pod needs, even if the plugins are not
// installed yet. The STATUS of the plugins checks what a configuration needs in addition.
func (p *Node) checkKernel(context.Context) ([]Finding, error) {
	var found []Finding
	if err := (nl.IPVlan{}).Supported(p.pool.Host); err != nil {
		found = append(found, Finding{Severity: severe, About: "ipvlan", Means: "this kernel does not support it: " +
			err.Error(),
			Do: "the kernel needs CONFIG_IPVLAN or the module ipvlan: on some distributions the package " +
				"linux-modules-extra"})
	}
	if _, err := p.pool.Host.Tables(); err != nil {
		found = append(found, Finding{Severity: severe, About: "nftables", Means: "this kernel does not support it: " +
			err.Error(),
			Do: "the kernel needs CONFIG_NF_TABLES or the module nf_tables"})
	}
	return found, nil
}
