// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A registry may be of another instance: an image was made from a used node, and the registry's directory is
// on a disk. Its ENIs and its intents are then the other instance's. So a process that is about to use them
// in EC2 asks metadata which instance this is, once after each boot. An instance cannot become another one
// without a boot.
//
// An ADD that finds a free address does not ask. If the ENI is another instance's, its link is not on this node.

// OfThisInstance checks that the registry is of this instance. If it is of another one, OfThisInstance sets it aside.
func (p *Node) OfThisInstance(ctx context.Context) error {
	s, err := p.Registry.View()
	if err != nil || s.Instance.ID == "" || s.Instance.Boot != "" && s.Instance.Boot == registry.BootID() {
		return nil // the next change sets aside what cannot be read
	}
	instance, err := p.Cloud.Instance(ctx)
	if err != nil {
		return fmt.Errorf(
			"this machine has booted since the registry was written: ask metadata whether it is still %s: %w",
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

// setOtherAside sets the registry aside if it is of another instance than this one. What the other instance
// has in EC2 stays.
func (p *Node) setOtherAside(ctx context.Context, this string) error {
	if s, err := p.Registry.View(); err == nil && (s.Instance.ID == "" || s.Instance.ID == this) {
		return nil
	}
	other := ""
	file, err := p.Registry.SetAside(ctx, func(s *registry.State) bool {
		other = s.Instance.ID
		return other != "" && other != this
	})
	if file != "" {
		slog.Warn("the registry is of another instance: it was set aside, and a new one is built from the kernel, "+
			"metadata and EC2. "+
			"Nothing of the other instance was changed. An image must not contain the registry's directory", "other",
			other, "this", this, "file", file)
	}
	return err
}
