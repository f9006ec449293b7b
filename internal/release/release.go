// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package release knows which release of this project a program is.
package release

import "runtime/debug"

// Version is the version of the module that the program was built from, as Go has stamped it; "(devel)" without.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
