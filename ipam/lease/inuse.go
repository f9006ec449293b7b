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

// NotesUse wraps the commands of a plugin that runs after ipam. If the kernel refuses a leased address because another
// slave of the ENI has it, NotesUse records that the address is in use. The kernel refuses the address if the namespace
// of an earlier pod still exists after that pod's DEL. The DEL has removed the node's route to the address, so the ADD
// could not see that the address is in use. A search of all namespaces would find such addresses earlier, but would
// make every ADD slower.
//
// No pod gets the address until a collection has seen that no namespace has it. If the runtime repeats the ADD, the
// attachment gets another address.
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

// noteInUse records which addresses of the attachment are in use in another namespace. A plugin calls noteInUse after
// the kernel has refused such an address. The kernel does not say which address it has refused. So noteInUse looks for
// the attachment's addresses in the namespaces. For each address that it finds, noteInUse writes a lease without a key.
// If it finds none of the addresses, it writes such a lease for each of them. If the addresses come from another ipam
// plugin, the registry has no leases of the attachment, and noteInUse does nothing.
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
	slog.Warn("another network namespace uses addresses that this ADD has leased: no other pod gets these addresses",
		"addrs", taken)
	var failed error
	for nic := range len(addrs) { // there are at most as many interfaces as addresses, because each has an address
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

// LinkName returns the registry's name of the link of the ENI with this MAC address, or "" if the registry has no such
// ENI. If a pod has the whole ENI, the link is in the pod, and may have another name there.
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
