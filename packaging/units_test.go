// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// exposed sets the highest accepted exposure level of a service, in tenths (systemd-analyze(1), "security"). Most of
// the exposure comes from root, the network and the namespaces of pods, which the services need.
const exposed = "--threshold=31"

// TestUnits verifies the units with systemd-analyze. The units are in a root directory, as after the installation of a
// package.
func TestUnits(t *testing.T) {
	need(t, "systemd-analyze")
	root := t.TempDir()
	command(t, "make", "-s", "-C", "..", "files", "prefix=/usr", "DESTDIR="+root)
	for _, dir := range []string{"/usr/lib/systemd/system/", "/usr/bin/"} {
		if err := os.MkdirAll(root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Units that every system has, and the programs that our units execute.
	for _, unit := range []string{"sysinit", "basic", "shutdown", "network-online", "network", "multi-user",
		"timers", "paths"} {
		copyFile(t, "/lib/systemd/system/"+unit+".target", root+"/usr/lib/systemd/system/"+unit+".target", 0o644)
	}
	for _, program := range []string{"rm", "mkdir", "find"} {
		copyFile(t, "/bin/"+program, root+"/usr/bin/"+program, 0o755)
	}
	units, err := filepath.Glob("../systemd/system/cni-*")
	if err != nil || len(units) < 7 {
		t.Fatal(units, err)
	}
	// A replacement for a unit that only has a drop-in of ours.
	firewall := "/usr/lib/systemd/system/nftables.service"
	if err := os.WriteFile(root+firewall, []byte("[Service]\nType=oneshot\nExecStart=rm\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, unit := range append(units, firewall) {
		name := filepath.Base(unit)
		if out := command(t, "systemd-analyze", "verify", "--root="+root, name); out != "" {
			t.Errorf("%s:\n%s", name, out)
		}
		if filepath.Ext(name) != ".service" || unit == firewall {
			continue
		}
		out, err := exec.Command("systemd-analyze", "security", "--offline=yes", "--no-pager", exposed,
			unit).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestUnitsVersion checks what docs/install.md says about old releases of systemd. Before version 239, systemd refuses
// a service whose program has no path. Before 244, it refuses a oneshot service with Restart= (service_verify). An
// unknown setting only causes a warning.
func TestUnitsVersion(t *testing.T) {
	pathless, restarts := regexp.MustCompile(`(?m)^ExecStart=[^/\n]`), regexp.MustCompile(`(?m)^Restart=on-failure`)
	units, err := filepath.Glob("../systemd/system/cni-*.service")
	if err != nil || len(units) < 6 {
		t.Fatal(units, err)
	}
	for _, unit := range units {
		text := read(t, unit)
		if !pathless.MatchString(text) || restarts.MatchString(text) != strings.Contains(unit, "cni-links") {
			t.Errorf("%s: docs/install.md says which systemd refuses it, and this is not so", unit)
		}
	}
	if page := read(t, "../docs/install.md"); !strings.Contains(page, "systemd 244 or later") {
		t.Error("docs/install.md does not name the systemd that the units need")
	}
}

// TestPresets checks that the preset lists each unit that can be enabled, and keeps it disabled. The removal of the
// package must disable all these units.
func TestPresets(t *testing.T) {
	preset, removal := read(t, "../systemd/system-preset/80-cni-ipvlan-vpc-k8s.preset"), read(t, "preremove.sh")
	_, removal, _ = strings.Cut(removal, "units=")
	removal, _, _ = strings.Cut(removal, "\n")
	units, err := filepath.Glob("../systemd/system/cni-*")
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range units {
		name, can := filepath.Base(unit), strings.Contains(read(t, unit), "[Install]")
		if strings.Contains(preset, "disable "+name+"\n") != can || strings.Contains(removal, name) != can {
			t.Errorf("%s: can be enabled: %v; the preset and preremove.sh say otherwise", name, can)
		}
	}
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, mode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRemovalOfMetrics checks that the removal of a package deletes its metrics files, because node_exporter would
// export them for ever. An upgrade must keep the files.
func TestRemovalOfMetrics(t *testing.T) {
	const ours, others = "cni_ipvlan_vpc.prom cni_ipvlan_vpc_doctor.prom", "others.prom"
	for argument, want := range map[string]string{"remove": others, "0": others, "upgrade": ours + " " + others} {
		root := t.TempDir()
		dir := filepath.Join(root, "var/lib/node_exporter/textfile_collector")
		for _, name := range strings.Fields(ours + " " + others) {
			put(t, filepath.Join(dir, name), "")
		}
		t.Setenv("DPKG_ROOT", root)
		command(t, "sh", "preremove.sh", argument)
		if left := strings.Join(strings.Fields(command(t, "ls", dir)), " "); left != want {
			t.Errorf("%s: left %s, want %s", argument, left, want)
		}
	}
}
