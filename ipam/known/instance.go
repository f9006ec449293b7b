// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An image of a used node may contain the registry of another instance. The ENIs and intents in this registry belong to
// the other instance. So a process asks metadata which instance this machine is, before the process uses ENIs or
// intents in a call to EC2. One question after each boot is enough.
//
// An ADD that finds a free address does not ask. If the address's ENI belongs to another instance, the ENI's link is
// not on this node, so no pod gets the address.

// OfThisInstance sets the registry's file aside if the registry belongs to another instance.
func (p *Node) OfThisInstance(ctx context.Context) error {
	s, err := p.Registry.View()
	if err != nil || s.Instance.ID == "" || s.Instance.Boot != "" && s.Instance.Boot == registry.BootID() {
		return nil // if the registry cannot be read, the next change sets its file aside
	}
	instance, err := p.Cloud.Instance(ctx)
	if err != nil {
		return fmt.Errorf(
			"this machine has booted since the registry was written, and metadata does not report whether "+
				"this machine is still %s: %w",
			s.Instance.ID, err)
	}
	if instance.ID != s.Instance.ID {
		return p.setOtherAside(ctx, instance.ID)
	}
	return p.Registry.Change(ctx, func(s *registry.State) {
		if s.Instance.ID == instance.ID {
			s.Instance.Boot = registry.BootID()
		}
	})
}

// setOtherAside sets the registry's file aside if the registry belongs to another instance than thisID.
func (p *Node) setOtherAside(ctx context.Context, thisID string) error {
	if s, err := p.Registry.View(); err == nil && (s.Instance.ID == "" || s.Instance.ID == thisID) {
		return nil
	}
	other := ""
	file, err := p.Registry.SetAside(ctx, func(s *registry.State) bool {
		other = s.Instance.ID
		return other != "" && other != thisID
	})
	if file != "" {
		slog.Warn("the registry is of another instance. It was set aside, and a new registry is built from the "+
			"kernel, metadata and EC2. Nothing of the other instance was changed. An AMI must not contain the "+
			"registry's directory", "other", other, "this", thisID, "file", file)
	}
	return err
}
