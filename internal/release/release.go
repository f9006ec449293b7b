// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package release has the version of this project's release from which the program was built.
package release

import "runtime/debug"

// Version returns the version of the program's main module, which the go command has recorded in the program. If there
// is none, Version returns "(devel)".
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
