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

// maintainedMark is the name of a file. Its time is the last one at which the command maintain was at work.
const maintainedMark = "maintained"

// MarkMaintained records that the command maintain is at work: it collects, and refills.
func MarkMaintained() error {
	return os.WriteFile(filepath.Join(registry.Dir(), maintainedMark), nil, 0o600)
}

// MaintainedLately reports whether the command maintain was at work lately.
func MaintainedLately() bool { return lately(maintainedMark) }

// CollectedLately reports whether registry-gc has completed a collection lately.
func CollectedLately() bool { return lately(collectedMark) }

func lately(mark string) bool {
	const most = 30 * time.Minute // the timer runs every 5
	fi, err := os.Stat(filepath.Join(registry.Dir(), mark))
	return err == nil && time.Since(fi.ModTime()) < most
}
