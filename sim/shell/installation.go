// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
)

//go:embed pod.sh
var podScript []byte

const (
	binDir  = "/opt/cni/bin"
	confDir = "/etc/cni/net.d"
	unitDir = "/etc/systemd"
)

// An installation has the paths of the programs, of the conflist and of the systemd units, and the data path of the
// pods.
type installation struct{ bin, cnitool, conflist, dataPath, units string }

// install installs the programs, the conflist and the units in the mount namespace of this process, and writes
// /etc/hosts. node1 and node2 see these files, because their mount namespaces are copies of this one.
func (f installation) install(hosts map[string]netip.Addr) error {
	conf, err := paths.ReadConflist(f.conflist, f.dataPath)
	if err != nil {
		return err
	}
	if err := coverWithOverlays("/opt", "/etc", "/usr/local"); err != nil {
		return err
	}
	// Remove the files of the real machine, which the instance must not see.
	for _, dir := range []string{"/opt/cni", "/etc/cni", unitDir} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	for link, program := range f.links() {
		target, err := filepath.Abs(program)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(link), 0o755), os.RemoveAll(link),
			os.Symlink(target, link)); err != nil {
			return err
		}
	}
	if err := machine.InstallUnits("/", f.units, "cni-gc.timer"); err != nil {
		return err
	}
	if err := os.MkdirAll(confDir, 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(confDir, filepath.Base(f.conflist)), conf, 0o644),
		os.WriteFile("/usr/local/bin/pod", podScript, 0o755),
		os.WriteFile("/etc/hosts", []byte(hostsFile(hosts)), 0o644))
}

func hostsFile(hosts map[string]netip.Addr) string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n")
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		fmt.Fprintln(&b, hosts[name], name)
	}
	return b.String()
}

// links returns the symbolic links that install makes. The key is the path of a link, and the value is the program to
// which the link points.
func (f installation) links() map[string]string {
	tool, self := filepath.Join(f.bin, "cni-ipvlan-vpc-k8s-tool"), filepath.Join(f.bin, "shell")
	links := map[string]string{
		"/usr/local/bin/cni-tool":                tool,
		"/usr/local/bin/cni-ipvlan-vpc-k8s-tool": tool,
		"/usr/local/bin/cnitool":                 f.cnitool,
	}
	for name := range namedPrograms {
		links[filepath.Join("/usr/local/bin", name)] = self
	}
	for _, part := range []string{"", "-grow", "-ipam", "-ipvlan", "-unnumbered-ptp"} {
		name := "cni-ipvlan-vpc-k8s" + part
		links[filepath.Join(binDir, name)] = filepath.Join(f.bin, name)
	}
	return links
}

// coverWithOverlays mounts an overlay on each directory. Later changes in these directories disappear with the mount
// namespace of this process.
func coverWithOverlays(dirs ...string) error {
	top, err := os.MkdirTemp("/run", "sim")
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		upper, work := filepath.Join(top, dir, "upper"), filepath.Join(top, dir, "work")
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
			return err
		}
		if err := syscall.Mount("overlay", dir, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir,
			upper, work)); err != nil {
			return fmt.Errorf("mount a layer over %s: %w", dir, err)
		}
	}
	return nil
}
