// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"os"
	"path/filepath"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// collectedMark is the name of a file. Its time is the end of the last collection that was
// complete.
const collectedMark = "collected"

// MarkCollected records that a collection was complete.
func MarkCollected() error {
	return os.WriteFile(filepath.Join(registry.Dir(), collectedMark), nil, 0o600)
}

// CollectedLately reports whether registry-gc has completed a collection lately.
func CollectedLately() bool {
	const lately = 30 * time.Minute // the timer runs every 5
	fi, err := os.Stat(filepath.Join(registry.Dir(), collectedMark))
	return err == nil && time.Since(fi.ModTime()) < lately
}
