// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package machine

import (
	"errors"
	"os"
	"path/filepath"
)

// InstallUnits copies units of systemd below a root directory, and enables one, as systemctl enable does with a timer.
// Nothing runs them.
func InstallUnits(root, units, timer string) error {
	const system = "/etc/systemd/system"
	wants := filepath.Join(root, system, "timers.target.wants")
	return errors.Join(
		os.CopyFS(filepath.Join(root, filepath.Dir(system)), os.DirFS(units)),
		os.MkdirAll(wants, 0o755),
		os.Symlink(filepath.Join(system, timer), filepath.Join(wants, timer)))
}
