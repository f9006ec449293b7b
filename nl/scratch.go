// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"

	"github.com/containernetworking/plugins/pkg/ns"
)

// Scratch runs f with a new namespace that no other process sees, and that ends when f returns. If the kernel loads
// modules for f, they stay loaded.
func Scratch(f func(*NS) error) error {
	temp, err := ns.TempNetNS()
	if err != nil {
		return fmt.Errorf("create a network namespace: %w", err)
	}
	defer temp.Close()
	// do not use temp.Path(): it is the path of a thread, and this thread has left the namespace
	n, err := Open("scratch", fmt.Sprintf("/proc/self/fd/%d", temp.Fd()))
	if err != nil {
		return err
	}
	defer n.Close()
	return f(n)
}
