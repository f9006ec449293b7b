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

// NotesUse wraps the commands of a plugin that runs after ipam. If the kernel refuses a leased address, because another
// slave of the ENI has it, NotesUse records that the address is in use. No pod then gets the address until a collection
// has seen that no namespace has it. The kernel refuses the address if the namespace of an earlier pod still exists
// after the DEL of that pod. That DEL has removed the node's host route to the address, so the ADD has found no host
// route. A search of all namespaces would find such addresses earlier, but would make every ADD slower.
func NotesUse[C any](c plugin.Commands[C]) plugin.Commands[C] {
	add := c.Add
	c.Add = func(ctx context.Context, r *plugin.Request[C]) (*types100.Result, error) {
		result, err := add(ctx, r)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = errors.Join(err, noteInUse(context.WithoutCancel(ctx),
				registry.Key{Network: r.Network, Attachment: r.Attachment}))
		}
		return result, err
	}
	return c
}

// noteInUse writes leases without a key for the attachment's addresses that are in use in another namespace. The kernel
// does not say which address it has refused, so noteInUse looks for the addresses in the namespaces. If it finds none
// of them, each address gets such a lease. If another ipam plugin has chosen the addresses, the registry has no leases
// of the attachment, and noteInUse does nothing.
func noteInUse(ctx context.Context, k registry.Key) error {
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
		taken = addrsInNamespaces(s, addrs)
	}
	slog.Warn("another network namespace uses addresses that this ADD has leased. No pod gets these addresses until "+
		"a collection has seen that no namespace has them", "addrs", taken)
	var failed error
	for nic := range len(addrs) { // there are at most as many interfaces as addresses
		failed = errors.Join(failed, (&Pool{Registry: r}).rejectAddrs(ctx, Owner{Key: k, NIC: nic}, taken, ""))
	}
	return failed
}

// addrsInNamespaces returns those addresses of addrs that it finds in namespaces. If it finds none of them, or cannot
// read a namespace, it returns all of addrs.
func addrsInNamespaces(s *registry.State, addrs []netip.Addr) []netip.Addr {
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

// LinkName returns the name of an ENI's link from the registry, or "". The argument mac is the ENI's MAC address. In a
// pod that has the whole ENI, the link may have another name.
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
