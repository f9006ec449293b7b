// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// configLayers are the directories of configuration files. If two of them have a file of the same
// name, the first directory counts (systemd.unit(5), networkd.conf(5)).
var configLayers = []string{"/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"}

// lookUp finds a file in the layers of a program's configuration. An empty file, or a link to
// /dev/null, hides the file in later layers.
func (p *Node) lookUp(program, name string) (path string, found bool) {
	for _, layer := range configLayers {
		path := p.pathOf(filepath.Join(layer, program, name))
		if fi, err := os.Stat(path); err == nil {
			return path, fi.Size() > 0 && fi.Mode().IsRegular()
		} else if to, err := os.Readlink(path); err == nil && to == os.DevNull {
			return path, false // a link to /dev/null; Stat fails if there is no /dev/null
		}
	}
	return "", false
}

// dropIns returns the drop-ins that are in force, from all layers, sorted by name.
func (p *Node) dropIns(program, dir string) []string {
	names := map[string]bool{}
	for _, layer := range configLayers {
		entries, _ := os.ReadDir(p.pathOf(filepath.Join(layer, program, dir)))
		for _, e := range entries {
			names[e.Name()] = strings.HasSuffix(e.Name(), ".conf")
		}
	}
	var files []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if path, ok := p.lookUp(program, filepath.Join(dir, name)); ok && names[name] {
			files = append(files, path)
		}
	}
	return files
}

// isEnabled reports whether systemd starts a unit at boot, because a target or another unit wants the unit.
func (p *Node) isEnabled(unit string) bool {
	for _, layer := range configLayers {
		links, _ := filepath.Glob(p.pathOf(filepath.Join(layer, "systemd/system/*.wants", unit)))
		if len(links) > 0 {
			return true
		}
	}
	return false
}

// isActive reports whether a unit is active on this node. For an image, it reports whether the
// unit will be active.
func (p *Node) isActive(ctx context.Context, unit string) bool {
	if !p.hasSystemd() {
		return p.root != "" && p.isEnabled(unit)
	}
	return exec.CommandContext(ctx, "systemctl", "is-active", "--quiet", unit).Run() == nil
}

// hasSystemd reports whether systemd runs here (sd_booted(3)) and can be asked.
func (p *Node) hasSystemd() bool {
	_, err := os.Stat("/run/systemd/system")
	_, err2 := exec.LookPath("systemctl")
	return p.root == "" && err == nil && err2 == nil
}

// enableFix returns a fix that enables a unit. If there is no systemctl, it returns nil. On a running node, the fix
// also starts the unit.
func (p *Node) enableFix(unit string) func(context.Context) (string, error) {
	if _, err := exec.LookPath("systemctl"); err != nil {
		return nil
	}
	args := []string{"enable", unit}
	switch {
	case p.root != "":
		args = append([]string{"--root", p.root}, args...)
	case p.hasSystemd():
		args = append(args, "--now")
	}
	return func(ctx context.Context) (string, error) {
		if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return "systemctl " + strings.Join(args, " "), nil
	}
}
