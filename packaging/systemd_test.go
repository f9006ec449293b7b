// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

var update = flag.Bool("update", false, "write the files testdata/*.golden")

// TestSystemd boots systemd in a container on a simulated instance. The units and drop-ins are installed as by a
// package, and the script testdata/story uses them.
func TestSystemd(t *testing.T) {
	nltest.Need(t, "root", "netns")
	boot(t, "story", "")
}

// boot boots systemd in a container on a simulated instance. The container runs the script testdata/STORY, and boot
// compares the output with STORY.golden. If the argument debian is not empty, it is a directory with unpacked packages
// of Debian. The container also gets the files of these packages.
func boot(t *testing.T, story, debian string) {
	t.Helper()
	need(t, "/lib/systemd/systemd", "/lib/systemd/systemd-networkd", "dbus-daemon", "ip", "jq", "nft", "tc", "unshare")
	fabric, node := instance(t)
	dir := t.TempDir()
	files := filepath.Join(dir, "files")
	if debian != "" {
		out, err := exec.Command("cp", "-a", debian, files).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	container(t, files, story, node.Env())
	if err := os.Mkdir(filepath.Join(dir, "out"), 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := filepath.Abs("testdata/boot")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // stops a hang; a story takes half a minute
	defer cancel()
	output, err := exec.CommandContext(ctx, "nsenter", "--net="+node.Path, "unshare", "-pfmuiC", "--kill-child",
		"--mount-proc", program, dir).CombinedOutput()
	log, _ := os.ReadFile(filepath.Join(dir, "out", "log"))
	got := string(log) + "\n# EC2 has got back\n"
	for _, call := range fabric.EC2.Calls() {
		if strings.HasPrefix(call.String(), "Unassign") {
			got += call.String() + "\n"
		}
	}
	golden := filepath.Join("testdata", story+".golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, _ := os.ReadFile(golden)
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" || err != nil {
		journal, _ := os.ReadFile(filepath.Join(dir, "out", "journal"))
		t.Errorf("%s (-want +got):\n%s\n%v\n%s\n%s", story, d, err, output, journal[max(0, len(journal)-1<<15):])
	}
}

// instance returns a simulated instance that has only its boot ENI.
func instance(t *testing.T) (*vpcsim.Fabric, *vpcsim.Instance) {
	t.Helper()
	fabric := simtest.Fabric(t, ec2sim.World(`
		vpc-1       10.0.0.0/16 100.64.0.0/16
		subnet-node 10.0.0.0/24
		subnet-pods 100.64.0.0/24 kubernetes_kubelet=true`))
	node := simtest.Launch(t, fabric, "node", ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-node"})
	return fabric, node
}

// container fills a directory with the container's own files: the files of a package, a conflist, the simulated EC2,
// and the units of the story.
func container(t *testing.T, files, story string, env []string) {
	t.Helper()
	out, err := exec.Command("make", "-s", "-C", "..", "files", "prefix=/usr", "DESTDIR="+files).CombinedOutput()
	if err != nil {
		t.Fatalf("make files: %v\n%s", err, out)
	}
	conflist, err := os.ReadFile("../conflist-examples/10-cni-ipvlan-vpc-k8s.conflist")
	if err != nil {
		t.Fatal(err)
	}
	conflist = bytes.ReplaceAll(conflist, []byte(`"sg-1234", "sg-5678"`), nil)
	conflist = bytes.Replace(conflist, []byte(`"routeToVpcPeers": true`),
		[]byte(`"ipBatchSize": 6, "warm": {"min": 2}`), 1)
	var quoted strings.Builder
	for _, e := range env {
		fmt.Fprintf(&quoted, " %q", e)
	}
	for name, text := range map[string]string{
		"story":           read(t, filepath.Join("testdata", story)),
		"calls":           read(t, "testdata/calls"),
		"flatcar.network": flatcarENIs(t),
		"preremove.sh":    read(t, "preremove.sh"),
		"postinstall.sh":  read(t, "postinstall.sh"),
		"etc/cni/net.d/10-cni-ipvlan-vpc-k8s.conflist": string(conflist),
		"etc/nftables.conf":                            "flush ruleset\ntable inet filter {\n}\n",
		"etc/systemd/system.conf.d/ec2.conf": "[Manager]\nDefaultTimeoutStartSec=15min\n" +
			"DefaultTimeoutStopSec=15min\nDefaultEnvironment=" + quoted.String() + "\n",
		"etc/systemd/system/story.target":  "[Unit]\nRequires=sockets.target story.service\nAfter=sockets.target\n",
		"etc/systemd/system/story.service": storyService,
		"etc/systemd/system/sockets.target.d/wants.conf": "[Unit]\nWants=systemd-journald.socket dbus.socket " +
			"systemd-udevd-kernel.socket systemd-udevd-control.socket\n",
		"etc/systemd/system/cni-links.service.d/veth.conf": "[Service]\nEnvironment=DRIVERS=veth\n",
		"etc/systemd/system/cni-gc.service.d/now.conf": "[Service]\nExecStart=\n" +
			"ExecStart=cni-ipvlan-vpc-k8s-tool registry-gc --free-after=1ms\n",
		"etc/udev/rules.d/75-cloud-ifupdown.rules": `SUBSYSTEM=="net", ACTION=="add", ` +
			`ENV{INTERFACE}=="eth*|en*", RUN+="/bin/sh -c 'mkdir -p /run/hotplugged && touch /run/hotplugged/%k'"` +
			"\n",
		"etc/systemd/system/policy-routes@.service": "[Service]\nType=oneshot\nExecStart=sh -c 'mkdir -p /run/set-up " +
			"&& touch /run/set-up/%i'\n",
		"usr/lib/systemd/network/80-ec2.network": "[Match]\nDriver=veth\n" +
			"[Network]\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n",
		"etc/systemd/network/70-eth0.network": "[Match]\nName=eth0\n" +
			"[Network]\nAddress=10.0.0.4/24\nGateway=10.0.0.1\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n",
	} {
		path, mode := filepath.Join(files, name), os.FileMode(0o644)
		if name == "story" || name == "calls" {
			mode = 0o755
		}
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(text), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// flatcarENIs returns the .network file for ENIs in flatcar.yaml, changed for the driver of the simulated ENIs.
func flatcarENIs(t *testing.T) string {
	t.Helper()
	_, file, _ := strings.Cut(read(t, "platforms/flatcar.yaml"), "-eni.network\n")
	_, file, _ = strings.Cut(file, "inline: |\n")
	file, _, found := strings.Cut(file, "    - path:")
	if !found || !strings.Contains(file, "Driver=ena\n") {
		t.Fatalf("flatcar.yaml has the file %q", file)
	}
	return strings.ReplaceAll(strings.ReplaceAll(file, "          ", ""), "Driver=ena\n", "Driver=veth\n")
}

const storyService = `[Unit]
SuccessAction=exit
FailureAction=exit
[Service]
Type=oneshot
ExecStart=/story
StandardOutput=file:/mnt/log
StandardError=file:/mnt/log
TimeoutStartSec=infinity
`
