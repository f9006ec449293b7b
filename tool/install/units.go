// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
)

// unitDir is the directory for units that an administrator has installed (systemd.unit(5)).
const unitDir = toSystemd + "/system"

// systemdPath are the directories in which systemd searches for a program if a unit names the program without a
// directory (systemd.exec(5), ExecSearchPath=).
var systemdPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"}

// unitFiles returns the units, their drop-ins, and the links that enable units.
func (i *Installation) unitFiles() ([]nodeFile, error) {
	var all []nodeFile
	err := fs.WalkDir(i.Source.FS(), fromSystemd, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := i.Source.ReadFile(p)
		all = append(all, nodeFile{path: path.Join(toSystemd, strings.TrimPrefix(p, fromSystemd)), mode: 0o644,
			text: i.withFlags(i.withDirs(text))})
		return err
	})
	if err != nil {
		return nil, cli.Hint(fmt.Errorf("read the units in --from: %w", err), fromHint)
	}
	for _, unit := range i.Enable {
		link, err := enablingLinks(all, unit)
		if err != nil {
			return nil, err
		}
		all = append(all, link...)
	}
	return all, nil
}

// programCalls matches the places at which a unit or a script names a program of ours without its directory.
var programCalls = regexp.MustCompile(`(=-?|\$\()(` + programPrefix + `-(tool|links) |` + programPrefix + `-links\n)`)

// withDirs changes the text of a unit or a script. If systemd does not search ToolDir for programs, withDirs puts
// ToolDir before the names of our programs.
func (i *Installation) withDirs(text []byte) []byte {
	if slices.Contains(systemdPath, i.ToolDir) {
		return text
	}
	return programCalls.ReplaceAll(text, []byte("${1}"+i.ToolDir+"/${2}"))
}

// conflistCommands matches a call of the tool in a unit or a script, if the called command reads a conflist.
var conflistCommands = regexp.MustCompile(programPrefix + `-tool (repair|registry-gc|warm|release|metrics|advertise|doctor|eniif --boot --pods)\b`)

// withFlags adds --config to the calls that conflistCommands matches, and --bin-dir to calls of doctor. It adds no flag
// for a default directory.
func (i *Installation) withFlags(text []byte) []byte {
	return conflistCommands.ReplaceAllFunc(text, func(call []byte) []byte {
		flags := ""
		if i.ConfDir != conf.Dir {
			flags = " --config " + i.ConfDir
		}
		if i.BinDir != conf.BinDir && bytes.HasSuffix(call, []byte("doctor")) {
			flags += " --bin-dir " + i.BinDir
		}
		return slices.Concat(call, []byte(flags))
	})
}

// linksScript returns the script of cni-links.service.
func (i *Installation) linksScript() nodeFile {
	const script = programPrefix + "-links"
	f := nodeFile{path: filepath.Join(i.ToolDir, script), from: path.Join(fromTool, script), mode: 0o755}
	if text, err := i.Source.ReadFile(f.from); err == nil {
		return nodeFile{path: f.path, text: i.withFlags(i.withDirs(text)), mode: f.mode}
	}
	return f
}

var wantedBy = regexp.MustCompile(`(?m)^WantedBy=(.+)$`)

// enablingLinks returns the links that the command "systemctl enable" would make for a unit.
func enablingLinks(units []nodeFile, unit string) ([]nodeFile, error) {
	at := slices.IndexFunc(units, func(f nodeFile) bool { return f.path == path.Join(unitDir, unit) })
	if at < 0 {
		return nil, fmt.Errorf("--enable %q: want one of %s", unit, strings.Join(enableable(units), ", "))
	}
	var links []nodeFile
	for _, m := range wantedBy.FindAllSubmatch(units[at].text, -1) {
		for _, target := range strings.Fields(string(m[1])) {
			links = append(links, nodeFile{path: path.Join(unitDir, target+".wants", unit), link: units[at].path})
		}
	}
	if len(links) == 0 {
		return nil, fmt.Errorf("--enable %q: want one of %s, because another unit starts this unit", unit,
			strings.Join(enableable(units), ", "))
	}
	return links, nil
}

// warnOfEnabled warns of units of ours that are enabled although --enable does not name them. The command install does
// not disable these units, because an operator may have enabled them.
func (i *Installation) warnOfEnabled(units []nodeFile) {
	for _, unit := range enableable(units) {
		links, err := enablingLinks(units, unit)
		if err == nil && !slices.Contains(i.Enable, unit) && slices.ContainsFunc(links, nodeFile.exists) {
			slog.Warn("this unit stays enabled, although no --enable names it: if it must not run, call systemctl "+
				"disable --now UNIT", "unit", unit)
		}
	}
}

func (f nodeFile) exists() bool {
	_, err := os.Lstat(f.path)
	return err == nil
}

// enableable returns the names of the units that can be enabled, because they have WantedBy=.
func enableable(units []nodeFile) (names []string) {
	for _, u := range units {
		if wantedBy.Match(u.text) {
			names = append(names, path.Base(u.path))
		}
	}
	return names
}

// systemdRuns reports whether systemd is running (sd_booted(3)). For example, systemd does not run in a directory in
// which an operator builds the image of a node.
func systemdRuns() bool { return hasPath("/run/systemd/system")() }

// startUnits makes systemd read the units again, starts the units in i.Enable except warmUnit, and makes
// systemd-networkd read our files. startUnits takes these steps even if no file has changed, because an earlier run may
// have been killed before these steps.
func (i *Installation) startUnits(ctx context.Context) error {
	if !i.Systemd || i.Check || !systemdRuns() {
		return nil
	}
	err := systemctl(ctx, "daemon-reload")
	units := slices.DeleteFunc(slices.Clone(i.Enable), func(unit string) bool { return unit == warmUnit })
	if err == nil && len(units) > 0 {
		err = systemctl(ctx, append([]string{"start"}, units...)...)
	}
	if err != nil {
		return err
	}
	return restartNetworkd(ctx)
}

// restartNetworkd restarts a running systemd-networkd that has not read our files yet. With the drop-in,
// systemd-networkd keeps the routes and rules of pods. With the .network file, it does not configure the veth pairs of
// pods, so the pairs keep their entries in the neighbour table. If another file overrides the drop-in, restartNetworkd
// only warns.
func restartNetworkd(ctx context.Context) error {
	file, err := cli.UnreadByNetworkd([]string{toSystemd + "/networkd.conf.d/" + programPrefix + ".conf",
		toSystemd + "/network/05-" + programPrefix + "-veth.network"})
	if err != nil || file == "" {
		return err
	}
	if err := doctor.NetworkdRemovalError(); err != nil {
		slog.Warn("systemd-networkd was not restarted, because it would remove routes and rules of pods: run "+cli.Name+
			" doctor --check networkd", "error", err)
		return nil
	}
	return systemctl(ctx, "try-restart", "systemd-networkd.service")
}

// warmUnit is the unit that fills the pools. It fails without a conflist, so startWarm starts it after the installation
// of the conflist.
const warmUnit = "cni-warm.service"

// startWarm starts warmUnit if the unit is enabled. It does not wait until warmUnit ends, because warmUnit may take
// minutes while EC2 throttles.
func (i *Installation) startWarm(ctx context.Context) error {
	if !slices.Contains(i.Enable, warmUnit) || !i.Systemd || i.Check || !systemdRuns() {
		return nil
	}
	return systemctl(ctx, "start", "--no-block", warmUnit)
}

// stopUnits stops all units of ours that can be enabled. It also stops the services that write metrics, because these
// services could write metrics again after Uninstall.
func (i *Installation) stopUnits(ctx context.Context, units []nodeFile) error {
	if !i.Systemd || i.Check || !systemdRuns() {
		return nil
	}
	var installed []string
	for _, unit := range append(enableable(units), "cni-doctor.service", "cni-metrics.service") {
		if hasPath(path.Join(unitDir, unit))() {
			installed = append(installed, unit)
		}
	}
	if len(installed) == 0 {
		return nil
	}
	return systemctl(ctx, append([]string{"stop"}, installed...)...)
}

// systemctl runs the node's program systemctl. After a chroot, systemctl works only if SYSTEMD_IGNORE_CHROOT is set.
func systemctl(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, "systemctl", args...)
	c.Env = append(os.Environ(), "SYSTEMD_IGNORE_CHROOT=1")
	out, err := c.CombinedOutput()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	without := "with --systemd=no, install puts no units on the node. Then run " + cli.Name + " maintain"
	if errors.Is(err, exec.ErrNotFound) {
		return cli.Hint(err, without)
	}
	return cli.Hint(err, "run this systemctl command on the node to see the cause. Or give up the units: "+without)
}
