// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package release returns the release of this project to which the program belongs.
package release

import "runtime/debug"

// Version returns the version of the module from which the program was built. The go command writes the version into
// the program. If the program has no version, Version returns "(devel)".
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
