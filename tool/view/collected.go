// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"os"
	"path/filepath"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// collectedMark is the name of a file. The time of the file is the end of the last complete collection.
const collectedMark = "collected"

// MarkCollected records that a collection was complete.
func MarkCollected() error {
	return os.WriteFile(filepath.Join(registry.Dir(), collectedMark), nil, 0o600)
}

// maintainedMark is a file whose time is the last time at which the command maintain was at work.
const maintainedMark = "maintained"

// MarkMaintained records that the command maintain is at work. The command makes collections, and refills pools.
func MarkMaintained() error {
	return os.WriteFile(filepath.Join(registry.Dir(), maintainedMark), nil, 0o600)
}

// MaintainedLately reports whether the command maintain was at work in the last half hour.
func MaintainedLately() bool { return isRecent(maintainedMark) }

// CollectedLately reports whether registry-gc has completed a collection in the last half hour.
func CollectedLately() bool { return isRecent(collectedMark) }

func isRecent(mark string) bool {
	const most = 30 * time.Minute // cni-gc.timer runs every 5 minutes
	fi, err := os.Stat(filepath.Join(registry.Dir(), mark))
	// Abs also rejects a mark that is far in the future, because an operator may have set the clock back
	return err == nil && time.Since(fi.ModTime()).Abs() < most
}
