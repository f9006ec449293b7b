// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"syscall"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// NotesUse wraps a plugin that runs after ipam. If the kernel refuses the leased address because another slave of the
// ENI has it, NotesUse records in the registry that it is in use. The cause is the namespace of an earlier pod: this
// namespace still exists after that pod's DEL. The node has no route to the address any more, so the ADD could not see
// that the address is in use. A look into all namespaces would find such addresses earlier, but would make every ADD
// slower.
//
// No pod gets the address until collections have seen that it is gone. If the same attachment
// is added again, it gets another address.
func NotesUse[C any](c plugin.Commands[C]) plugin.Commands[C] {
	add := c.Add
	c.Add = func(ctx context.Context, r *plugin.Request[C]) (*types100.Result, error) {
		result, err := add(ctx, r)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = errors.Join(err, inUse(context.WithoutCancel(ctx),
				registry.Key{Network: r.Network, Attachment: r.Attachment}))
		}
		return result, err
	}
	return c
}

// inUse is called when another namespace has one of the attachment's addresses. It gives that address a lease without a
// key. The kernel does not say which address it is. If no namespace shows one of the addresses, inUse gives all of them
// leases without a key. If the attachment has addresses from another plugin, the registry does not know them, and inUse
// does nothing.
func inUse(ctx context.Context, k registry.Key) error {
	r, err := openRegistry()
	if err != nil {
		return err
	}
	s, err := r.View()
	if err != nil {
		return err
	}
	addrs := s.Held(k)
	if len(addrs) == 0 {
		return nil
	}
	taken := addrs
	if len(addrs) > 1 {
		taken = inNamespaces(s, addrs)
	}
	slog.Warn("another network namespace uses addresses that this ADD has leased: no other pod gets these addresses",
		"addrs", taken)
	var failed error
	for nic := range len(addrs) { // an attachment has at most as many interfaces as addresses
		failed = errors.Join(failed, (&Pool{Registry: r}).reject(ctx, Owner{Key: k, NIC: nic}, taken, ""))
	}
	return failed
}

// inNamespaces returns those of the addresses that a namespace has. If no namespace has such an address, or not all
// namespaces can be read, inNamespaces returns all addresses.
func inNamespaces(s *registry.State, addrs []netip.Addr) []netip.Addr {
	node, err := nl.Node()
	if err != nil {
		return addrs
	}
	defer node.Close()
	used := UsedAddrs(node, MACs(s)...)
	some := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
		_, e := s.ENIOf(a)
		return used.Of(e.MAC, a) == ""
	})
	if len(some) == 0 || used.Partial {
		return addrs
	}
	return some
}

// LinkName returns the name that the link of an ENI with a MAC address had on the node. LinkName returns "" if the
// registry does not know the name. If a pod has the whole ENI, the link is in the pod, and may have another name there.
func LinkName(mac string) string {
	r, err := openRegistry()
	if err != nil {
		return ""
	}
	s, err := r.View()
	if err != nil {
		return ""
	}
	for _, e := range s.ENIs {
		if e.MAC == mac {
			return e.Link
		}
	}
	return ""
}
