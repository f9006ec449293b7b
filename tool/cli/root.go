// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// NeedRoot refuses to go on if the process may not look into other namespaces.
func NeedRoot() error {
	if os.Geteuid() != 0 {
		return hinted{errRoot, "try sudo"}
	}
	return nil
}

// OpenPool opens the pool of this node for a command that needs root.
func OpenPool(policy lease.Policy) (*ipam.Pool, error) {
	if err := NeedRoot(); err != nil {
		return nil, err
	}
	return ipam.Open(policy)
}

// ViewRegistry reads this node's registry. ViewRegistry needs only permission to read the files.
func ViewRegistry() (*registry.State, error) {
	r, err := registry.Open(registry.Dir())
	if err != nil {
		return nil, Rooted(err)
	}
	s, err := r.View()
	if do := Unreadable(err); do != "" {
		return nil, Hint(err, do)
	}
	return s, Rooted(err)
}

// Unreadable says what to do about a registry that is damaged, or is not of this release. Otherwise it is empty.
func Unreadable(err error) string {
	switch {
	case errors.Is(err, registry.ErrVersion):
		return "install the release that has written the file registry.json, or delete the file: the next ADD then " +
			"builds it from the kernel, metadata and EC2"
	case registry.IsGarbage(err):
		return "run " + Name +
			" registry-gc --free-after=15m, or wait for the next ADD; either sets the file aside, and builds a new " +
			"one from the kernel, metadata and EC2"
	}
	return ""
}

// Rooted says what to do about an error of permissions.
func Rooted(err error) error {
	if !errors.Is(err, fs.ErrPermission) || NeedRoot() == nil {
		return err
	}
	return fmt.Errorf("%w: %w", NeedRoot(), err)
}
