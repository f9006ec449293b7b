// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestImageBuilder runs the tests of the program that makes the image. This program is in a separate module.
func TestImageBuilder(t *testing.T) { command(t, "go", "test", "-C", "image", "./...") }

// TestImage makes the image of the programs in bin twice. Both images must have the same digest, and be smaller than
// 21.2 MB. The test installs the image into a root directory. This directory must then have the files of a package,
// except the documentation. Afterwards, the test removes the installation. With CNI_TEST_PACKAGE=all, the test also
// builds the programs twice, for both architectures.
func TestImage(t *testing.T) {
	nltest.Need(t, "root")
	args := []string{"-i", "-b", "../bin", runtime.GOARCH}
	if os.Getenv("CNI_TEST_PACKAGE") == "all" {
		args = []string{"-i", "amd64", "arm64"}
	}
	one, two := t.TempDir(), t.TempDir()
	command(t, "./package", append([]string{"-o", one}, args...)...)
	command(t, "./package", append([]string{"-o", two}, args...)...)
	if d := cmp.Diff(read(t, one+"/image/index.json"), read(t, two+"/image/index.json")); d != "" {
		t.Errorf("the second time another image (-1 +2):\n%s", d)
	}
	t.Run("containerd", func(t *testing.T) { imported(t, one+"/image", versionOf(t, one+"/image")) })
	layer := layerOf(t, one+"/image")
	if fi, err := os.Stat(layer); err != nil || fi.Size() >= 21.2e6 {
		t.Errorf("the layer: %v, %v", fi, err)
	}
	image, node := t.TempDir(), t.TempDir()
	command(t, "tar", "-C", image, "-xzf", layer)
	tool := filepath.Join(image, "usr/bin/cni-tool")
	if err := os.MkdirAll(node+"/usr/lib/systemd", 0o755); err != nil {
		t.Fatal(err)
	}
	copyFile(t, "/bin/true", node+"/usr/lib/systemd/systemd", 0o755)
	before := files(t, node)
	conflist := "../conflist-examples/10-cni-ipvlan-vpc-k8s.conflist"
	command(t, tool, "install", "--root", node, "--from", image, "--conflist", conflist)
	if d := cmp.Diff(installedFiles(t), own(files(t, node), before)); d != "" {
		t.Errorf("installed (-want +got):\n%s", d)
	}
	if out := command(t, node+"/usr/local/bin/cni-tool", "validate", "--bin-dir", node+"/opt/cni/bin",
		node+"/etc/cni/net.d/"+filepath.Base(conflist)); out != "" {
		t.Error(out)
	}
	command(t, tool, "install", "--root", node, "--from", image, "--uninstall")
	if left := own(files(t, node), before); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// installedFiles returns the paths of a package's files after install, and the paths of the conflist and of the enabled
// units.
func installedFiles(t *testing.T) []string {
	all := []string{
		"/etc/cni/net.d/10-cni-ipvlan-vpc-k8s.conflist",
		"/etc/systemd/system/paths.target.wants/cni-warm.path", "/etc/systemd/system/timers.target.wants/cni-gc.timer",
	}
	for _, file := range strings.Fields(read(t, "testdata/files")) {
		for from, to := range map[string]string{"/opt/": "/opt/", "/usr/lib/systemd/": "/etc/systemd/",
			"/usr/bin/": "/usr/local/bin/"} {
			if rest, ok := strings.CutPrefix(file, from); ok {
				all = append(all, to+rest)
			}
		}
	}
	slices.Sort(all)
	return all
}

// own returns the files in all that are not in before. It leaves out the state in /run.
func own(all, before []string) []string {
	return slices.DeleteFunc(all, func(f string) bool {
		return slices.Contains(before, f) || strings.HasPrefix(f, "/run/")
	})
}

// versionOf returns the name of the only image in a layout.
func versionOf(t *testing.T, layout string) string {
	t.Helper()
	var index struct {
		Manifests []struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal([]byte(read(t, filepath.Join(layout, "index.json"))), &index); err != nil {
		t.Fatal(err)
	}
	return index.Manifests[0].Annotations["org.opencontainers.image.ref.name"]
}

// layerOf returns the layer of this machine's image in a layout (OCI image specification, "Image Layout").
func layerOf(t *testing.T, layout string) string {
	t.Helper()
	type descriptor struct {
		Digest   string
		Platform struct{ Architecture string }
	}
	blob := func(d descriptor) string {
		return filepath.Join(layout, "blobs", strings.Replace(d.Digest, ":", "/", 1))
	}
	manifest := func(file string) (m struct{ Manifests, Layers []descriptor }) {
		if err := json.Unmarshal([]byte(read(t, file)), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	images := manifest(blob(manifest(filepath.Join(layout, "index.json")).Manifests[0])).Manifests
	i := slices.IndexFunc(images, func(d descriptor) bool { return d.Platform.Architecture == runtime.GOARCH })
	if i < 0 {
		t.Fatalf("no image for %s: %v", runtime.GOARCH, images)
	}
	return blob(manifest(blob(images[i])).Layers[0])
}
