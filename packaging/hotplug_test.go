// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// seizers is the directory into which make unpacks Debian's packages of programs that configure ENIs. make does not
// install them, because they would configure this machine.
const seizers = "../.cache/seizers"

// TestHotplug runs Debian's cloud-init on a simulated instance that has an ENI for pods. It runs cloud-init once
// without our drop-in, and once with our drop-in.
func TestHotplug(t *testing.T) {
	nltest.Need(t, "root", "netns")
	need(t, seizers+"/usr/bin/cloud-init", "/usr/bin/python3", "unshare")
	fabric, node := instance(t)
	for _, call := range []struct {
		action     string
		parameters map[string]string
	}{
		{"CreateNetworkInterface", map[string]string{"SubnetId": "subnet-pods", "SecondaryPrivateIpAddressCount": "2"}},
		{"AttachNetworkInterface", map[string]string{"InstanceId": node.ID,
			"NetworkInterfaceId": "eni-00000000000000002", "DeviceIndex": "1"}},
	} {
		if err := fabric.EC2.Operate(call.action, call.parameters); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		// In the namespace, no server answers DNS queries.
		"etc/nsswitch.conf":                               "passwd: files\ngroup: files\nhosts: files\n",
		"etc/cloud/cloud.cfg":                             cloudConfig,
		"etc/cloud/cloud.cfg.d/50-distribution.cfg":       "updates:\n  network:\n    when: [boot, hotplug]\n",
		"etc/cloud/cloud.cfg.d/99-cni-ipvlan-vpc-k8s.cfg": read(t, "cloud.cfg.d/99-cni-ipvlan-vpc-k8s.cfg"),
	} {
		path := filepath.Join(dir, "files", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	copyFile(t, "testdata/hotplug-story", filepath.Join(dir, "story"), 0o755)
	start, err1 := filepath.Abs("testdata/hotplug")
	debian, err2 := filepath.Abs(seizers)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // stops a hang; the test takes ten seconds
	defer cancel()
	got, err := exec.CommandContext(ctx, "nsenter", "--net="+node.Path, "unshare", "-m", start, dir,
		debian).CombinedOutput()
	if *update {
		if err := os.WriteFile("testdata/hotplug.golden", got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(strings.Split(read(t, "testdata/hotplug.golden"), "\n"),
		strings.Split(string(got), "\n")); d != "" || err != nil {
		t.Errorf("(-want +got):\n%s\n%v", d, err)
	}
}

// cloudConfig is a cloud.cfg whose modules only detect EC2 and configure the network.
const cloudConfig = `datasource_list: [Ec2]
cloud_init_modules: []
cloud_config_modules: [install-hotplug]
cloud_final_modules: []
system_info: {distro: debian, network: {renderers: [networkd]}}
`
