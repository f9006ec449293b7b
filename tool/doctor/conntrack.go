// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
)

// checkConntrack compares the number of tracked connections with its limit. The node tracks its own connections, and
// the connections of pods that it forwards.
func (p *Node) checkConntrack(context.Context) ([]Finding, error) {
	used, err := p.kernel.Sysctl("net/netfilter/nf_conntrack_count")
	most, err2 := p.kernel.Sysctl("net/netfilter/nf_conntrack_max") // 0: no limit
	if err := cmp.Or(err, err2); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil // the kernel does not track connections
		}
		return nil, err
	}
	n, err := strconv.Atoi(used)
	limit, err2 := strconv.Atoi(most)
	if err := cmp.Or(err, err2); err != nil || limit == 0 || n <= limit*9/10 {
		return nil, err
	}
	return []Finding{{Severity: severe, About: "net.netfilter.nf_conntrack_max",
		Means: fmt.Sprintf("the node tracks %d connections, and its limit is %d. At the limit, new connections fail "+
			"at random (in dmesg: nf_conntrack: table full)", n, limit),
		Do: fmt.Sprintf("run: sysctl -w net.netfilter.nf_conntrack_max=%d. Set conntrack.min to this value in the "+
			"configuration of kube-proxy, which sets the limit when it starts", 2*limit)}}, nil
}
