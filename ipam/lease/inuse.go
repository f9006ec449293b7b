// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"errors"
	"log/slog"
	"syscall"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// NotesUse has the ADD of a plugin that comes after ours tell the registry if the kernel
// says that the address, which we have chosen for it, is in use on the ENI. The namespace
// of a pod may outlive its DEL, and the node has no route to it then. Who looked for such
// addresses in every namespace would cost every ADD a walk of the node.
//
// Nobody gets the address any more until collections have seen that it is gone. The same
// attachment gets another one when it is added again.
func NotesUse[C any](c plugin.Commands[C]) plugin.Commands[C] {
	add := c.Add
	c.Add = func(ctx context.Context, r *plugin.Request[C]) (*types100.Result, error) {
		result, err := add(ctx, r)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = errors.Join(err, inUse(context.WithoutCancel(ctx), registry.Key{Network: r.Network, Attachment: r.Attachment}))
		}
		return result, err
	}
	return c
}

// inUse leases the addresses of an attachment, one of which is in use, to nobody that we
// know. Of an attachment that has its addresses from elsewhere the registry knows nothing.
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
	slog.Warn("addresses are in use in a network namespace, but the registry did not know: no other pod gets them", "addrs", addrs)
	return (&Pool{Registry: r}).reject(ctx, Owner{Key: k}, addrs, "")
}
