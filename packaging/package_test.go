// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestPackage packs the programs in bin twice, and checks that the packages are equal, byte for byte. It installs the
// packages into a root directory, and removes them again. With CNI_TEST_PACKAGE=all, it also builds the programs twice,
// for both architectures.
func TestPackage(t *testing.T) {
	need(t, "dpkg", "rpm", "systemctl")
	nltest.Need(t, "root")
	args := []string{"-b", "../bin", runtime.GOARCH}
	if os.Getenv("CNI_TEST_PACKAGE") == "all" {
		args = []string{"amd64", "arm64"}
	}
	one, two := t.TempDir(), t.TempDir()
	command(t, "./package", append([]string{"-o", one}, args...)...)
	command(t, "./package", append([]string{"-o", two}, args...)...)
	sums := read(t, filepath.Join(one, "SHA256SUMS"))
	if d := cmp.Diff(sums, read(t, filepath.Join(two, "SHA256SUMS"))); d != "" {
		t.Errorf("the second time other packages (-1 +2):\n%s", d)
	}
	check := exec.Command("sha256sum", "-c", "--quiet", "SHA256SUMS")
	check.Dir = one
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("SHA256SUMS: %v\n%s", err, out)
	}
	want := slices.Sorted(slices.Values(strings.Fields(read(t, "testdata/files"))))
	t.Run("deb", func(t *testing.T) { deb(t, native(t, one, ".deb"), want) })
	t.Run("rpm", func(t *testing.T) { rpm(t, native(t, one, ".rpm"), want) })
	t.Run("tar", func(t *testing.T) { tarball(t, native(t, one, ".tar.gz")) })
	t.Run("sbom", func(t *testing.T) { sbom(t, native(t, one, ".cdx.json")) })
	t.Run("krew", func(t *testing.T) { krew(t, one) })
}

// native returns the path of the package for this machine.
func native(t *testing.T, dir, suffix string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*-"+runtime.GOARCH+"-*"+suffix))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	return files[0]
}

func deb(t *testing.T, file string, want []string) {
	root := t.TempDir()
	for _, dir := range []string{"/var/lib/dpkg/info", "/var/lib/dpkg/updates", "/var/lib/dpkg/triggers"} {
		if err := os.MkdirAll(root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"/var/lib/dpkg/status", "/var/lib/dpkg/available"} {
		if err := os.WriteFile(root+file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dpkg := func(arg ...string) {
		command(t, "dpkg", append([]string{"--root=" + root, "--force-script-chrootless", "--force-depends",
			"--log=/dev/null"}, arg...)...)
	}
	installed(t, root, want, func() { dpkg("--install", file) },
		func() {
			command(t, "systemctl", "--root="+root, "enable", "cni-advertise.timer", "cni-doctor.timer",
				"cni-gc.timer", "cni-metrics.timer", "cni-warm.path", "cni-warm.service", "cni-links.service")
		},
		func() { dpkg("--purge", "cni-ipvlan-vpc-k8s") })
}

func rpm(t *testing.T, file string, want []string) {
	root := t.TempDir()
	// The package's scripts run in the root directory, so this directory needs a shell.
	need(t, "busybox")
	shell, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(root+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	copyFile(t, shell, root+"/bin/sh", 0o755)
	run := func(arg ...string) {
		command(t, "rpm", append([]string{"--root=" + root, "--dbpath=/var/lib/rpm"}, arg...)...)
	}
	installed(t, root, want,
		func() { run("--nodeps", "--install", file) },
		func() {}, // the package's scripts run in the root directory, which has no systemctl
		func() { run("--erase", "cni-ipvlan-vpc-k8s") })
}

// installed checks that the package's files exist and that no unit is enabled. After the removal, the root directory
// must be as before. Links of units that the operator has enabled must be gone, too.
func installed(t *testing.T, root string, want []string, install, enable, remove func()) {
	t.Helper()
	before := files(t, root)
	install()
	got := slices.DeleteFunc(files(t, root), func(f string) bool { return slices.Contains(before, f) })
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("installed (-want +got):\n%s", d)
	}
	enable()
	remove()
	if d := cmp.Diff(before, files(t, root)); d != "" {
		t.Errorf("left (-before +after):\n%s", d)
	}
	if ours := command(t, "find", root, "-name", "*cni*"); ours != "" {
		t.Errorf("left:\n%s", ours)
	}
}

// files returns the files and symlinks of a root directory, except those of the package managers.
func files(t *testing.T, root string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root)
		own := strings.HasPrefix(name, "/var/lib/rpm/") || strings.HasPrefix(name, "/var/lib/dpkg/") &&
			name != "/var/lib/dpkg/status"
		if err == nil && !d.IsDir() && !own {
			list = append(list, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

func tarball(t *testing.T, file string) {
	want := strings.Fields("cni-ipvlan-vpc-k8s cni-ipvlan-vpc-k8s-grow cni-ipvlan-vpc-k8s-ipam " +
		"cni-ipvlan-vpc-k8s-ipvlan cni-ipvlan-vpc-k8s-unnumbered-ptp cni-ipvlan-vpc-k8s-egress " +
		"cni-ipvlan-vpc-k8s-tool cni-tool cni-ipvlan-vpc-k8s-links cloud.cfg.d/99-cni-ipvlan-vpc-k8s.cfg")
	units := strings.Fields(command(t, "find", "../systemd/", "-mindepth", "2", "-type", "f", "-printf", "systemd/%P "))
	got := slices.DeleteFunc(strings.Fields(command(t, "tar", "-tzf", file)),
		func(name string) bool { return strings.HasSuffix(name, "/") })
	if d := cmp.Diff(slices.Sorted(slices.Values(append(want, units...))),
		slices.Sorted(slices.Values(got))); d != "" || len(units) < 10 {
		t.Errorf("the archive has other files (-want +got):\n%s", d)
	}
	dir := t.TempDir()
	command(t, "tar", "-C", dir, "-xzf", file)
	version := strings.TrimSpace(strings.TrimPrefix(command(t, dir+"/cni-tool", "version"), "cni-tool version "))
	if version != "(devel)" && !strings.Contains(file, "-"+version+".tar.gz") {
		t.Errorf("%s has version %s", file, version)
	}
}

// sbom checks that the bill of materials lists the programs and their modules.
func sbom(t *testing.T, file string) {
	var bom struct {
		BomFormat, SpecVersion string
		Components             []struct{ Type, Name, Version, PURL string }
	}
	if err := json.Unmarshal([]byte(read(t, file)), &bom); err != nil {
		t.Fatal(err)
	}
	kinds := map[string][]string{}
	for _, c := range bom.Components {
		kinds[c.Type] = append(kinds[c.Type], c.Name)
		if c.Version == "" || c.Type == "library" && !strings.HasPrefix(c.PURL, "pkg:golang/"+c.Name+"@") {
			t.Errorf("%s: version %q, package URL %q", c.Name, c.Version, c.PURL)
		}
	}
	if got := len(kinds["application"]); got != 7 || bom.BomFormat != "CycloneDX" || bom.SpecVersion != "1.6" {
		t.Errorf("%d programs, %s %s", got, bom.BomFormat, bom.SpecVersion)
	}
	for _, name := range []string{"stdlib", "github.com/containernetworking/cni", "github.com/vishvananda/netlink",
		"github.com/aws/aws-sdk-go-v2"} {
		if !slices.Contains(kinds["library"], name) {
			t.Errorf("%s is not in it", name)
		}
	}
}

// TestInstall checks that make uninstall removes exactly what make install has installed.
func TestInstall(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(root+"/opt/cni/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/opt/cni/bin/bridge", nil, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, "make", "-s", "-C", "..", "files", "DESTDIR="+root)
	for _, file := range strings.Fields(read(t, "testdata/files")) {
		for from, to := range map[string]string{"/usr/lib/systemd/": "/etc/systemd/", "/usr/bin/": "/usr/local/bin/",
			"/usr/share/": "/usr/local/share/"} {
			if rest, ok := strings.CutPrefix(file, from); ok {
				file = to + rest
			}
		}
		if _, err := os.Lstat(root + file); err != nil && filepath.Base(file) != "sbom.cdx.json" {
			t.Error(err)
		}
	}
	command(t, "make", "-s", "-C", "..", "uninstall", "DESTDIR="+root)
	if d := cmp.Diff([]string{"/opt/cni/bin/bridge"}, files(t, root)); d != "" {
		t.Errorf("left (-want +got):\n%s", d)
	}
	if ours := strings.Fields(command(t, "find", root, "-name", "*cni-ipvlan*")); len(ours) > 0 {
		t.Errorf("left: %v", ours)
	}
}
