// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// containerd is a directory that make fills with programs. The tests of sim/cri use these programs, too.
const containerd = "../.cache/cri/"

// imported imports the layout into a real containerd, as the guide says, and unpacks the image for this machine. The
// tool in the image must run, and must list the files that it would install.
func imported(t *testing.T, layout, version string) {
	need(t, containerd+"containerd", containerd+"ctr")
	dir := t.TempDir()
	ctr := startContainerd(t, dir)
	archive := filepath.Join(dir, "image.tar")
	command(t, "tar", "-C", layout, "-cf", archive, ".")
	const name = "localhost/cni-ipvlan-vpc-k8s"
	ctr("image", "import", "--local", "--snapshotter=native", "--base-name="+name, archive)
	if got := strings.Fields(ctr("image", "ls", "-q")); len(got) != 1 || got[0] != name+":"+version {
		t.Errorf("images: %q, want %s:%s", got, name, version)
	}
	// The test reads the snapshot without a mount, because a failed test would leave the mount.
	roots, err := filepath.Glob(filepath.Join(dir, "data/io.containerd.snapshotter.v1.native/snapshots/*"))
	if err != nil || len(roots) != 1 {
		t.Fatalf("unpacked: %q, %v", roots, err)
	}
	root := roots[0]
	out := command(t, filepath.Join(root, "usr/bin/cni-tool"), "install", "--check", "--root", t.TempDir(),
		"--from", root)
	if !strings.Contains(out, "create   /opt/cni/bin/cni-ipvlan-vpc-k8s-ipam\n") {
		t.Errorf("it would install\n%s", out)
	}
}

// startContainerd starts a containerd with directories of its own. It returns a function that runs the client ctr.
func startContainerd(t *testing.T, dir string) (ctr func(...string) string) {
	t.Helper()
	config, socket := filepath.Join(dir, "config.toml"), filepath.Join(dir, "socket")
	const text = "version = 3\ndisabled_plugins = ['io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime', " +
		"'io.containerd.grpc.v1.cri', 'io.containerd.nri.v1.nri']\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(containerd+"containerd", "--config", config, "--root", filepath.Join(dir, "data"), "--state",
		filepath.Join(dir, "state"), "--address", socket)
	var log strings.Builder
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	for end := time.Now().Add(time.Minute); exec.Command(containerd+"ctr", "--address", socket,
		"version").Run() != nil; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("containerd does not answer")
		}
	}
	return func(args ...string) string {
		return command(t, containerd+"ctr", append([]string{"--address", socket}, args...)...)
	}
}
