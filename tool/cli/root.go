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

// NeedRoot returns an error if the process does not run as root. Only root may enter other namespaces.
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

// ViewRegistry reads this node's registry. The process needs only permission to read the files.
func ViewRegistry() (*registry.State, error) {
	r, err := registry.Open(registry.Dir())
	if err != nil {
		return nil, Rooted(err)
	}
	s, err := r.View()
	return s, Rooted(err)
}

// Unreadable returns what an operator can do if the registry is damaged, or if another release has written it. For
// other errors, it returns "".
func Unreadable(err error) string {
	switch {
	case errors.Is(err, registry.ErrVersion):
		return "install the release that has written the file registry.json, or delete the file. The next ADD then " +
			"builds the registry from the kernel, metadata and EC2"
	case registry.IsGarbage(err):
		return "run " + Name +
			" registry-gc --free-after=15m, or wait for the next ADD. Both set the damaged file aside, and build a " +
			"new registry from the kernel, metadata and EC2"
	}
	return ""
}

// Rooted puts the error of NeedRoot before an error about permissions. If the process runs as root, or if the error has
// another cause, Rooted returns err unchanged.
func Rooted(err error) error {
	if !errors.Is(err, fs.ErrPermission) || NeedRoot() == nil {
		return err
	}
	return fmt.Errorf("%w: %w", NeedRoot(), err)
}
