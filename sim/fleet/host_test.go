// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"fmt"
	"sync"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// A host is the network namespace of a node, with a link for each ENI. The links carry no packets.
type host struct {
	testing.TB
	ns   *nl.NS
	path string

	mu    sync.Mutex
	links int
	veths map[string]nl.Veth // the key is the ID of the ENI
}

func newHost(t testing.TB) *host {
	ns, path := nltest.NS(t, "fleet")
	return &host{TB: t, ns: ns, path: path, veths: map[string]nl.Veth{}}
}

func (h *host) plug(c ec2sim.Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	switch c.Kind {
	case ec2sim.Attached:
		h.links++
		v := nl.Veth{Name: fmt.Sprint("ens", h.links), MAC: c.ENI.MAC, Peer: fmt.Sprint("eni", h.links), PeerNS: h.ns,
			NoLinkLocal: true}
		h.veths[c.ENI.ID] = v
		err = v.Add(h.ns)
	case ec2sim.Detached:
		err = h.veths[c.ENI.ID].Del(h.ns)
		delete(h.veths, c.ENI.ID)
	}
	if err != nil {
		h.Errorf("link of %s: %v", c.ENI.ID, err)
	}
}
