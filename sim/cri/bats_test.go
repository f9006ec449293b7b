// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/judge"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// bats is a flag, without which TestJudgeBats is skipped. make judges fetches the program bats, and builds the programs
// of CRI-O's tests:
//
//	go test -exec "$PWD/nl/nltest/vm/exec" -run Bats$ ./sim/cri -args -bats "$PWD/.cache/cri/bats"
var bats = flag.String("bats", "", "TestJudgeBats: the `directory` with bats, CRI-O's tests, and their programs")

// batsFiles are the files of CRI-O's tests of the network. The field Not has the tests that cannot judge our plugin.
var batsFiles = map[string]judge.Suite{
	"network.bats": {Not: map[string]string{
		"hostnetwork:true":     "the pod has the network of the node",
		"netns gets destroyed": "DEL must fail if the pod's namespace is gone, and ours does not",
	}},
	"network_ping.bats":               {},
	"pod_annotations_capability.bats": {},
}

// TestJudgeBats runs tests of CRI-O. The tests call a plugin with the name "bridge". Here, this name leads to a script
// that calls our plugin.
func TestJudgeBats(t *testing.T) {
	if *bats == "" {
		t.Skip("make judges runs it, with the flag -bats")
	}
	nltest.Need(t, "root", "nftables", "iptables")
	_, version := judge.Release(t, filepath.Join(programDir, "crio"))
	for _, path := range []string{"ipvlan", "veth"} {
		t.Run(path, func(t *testing.T) {
			if path == "ipvlan" {
				nltest.Need(t, "ipvlan")
			}
			n := newBatsNode(t, path)
			for _, file := range slices.Sorted(maps.Keys(batsFiles)) {
				t.Run(file, func(t *testing.T) {
					judge.Attr(t, "tests of `test/"+file+"`", version, "`dataPath` `"+path+"`, CRI-O")
					batsFiles[file].HearTAP(t, n.command(file))
					n.leftNothing(t)
				})
			}
		})
	}
}

// A batsNode is a node on which CRI-O's tests find our plugin under the name bridge.
type batsNode struct {
	*machine.Machine
	bats string // the directory from the flag bats
	dir  string // has a copy of CRI-O's tests, and programs and images for them
}

// newBatsNode boots a node. The subnet of its pods has the CIDRs that CRI-O's tests expect.
func newBatsNode(t *testing.T, dataPath string) *batsNode {
	t.Helper()
	f := simtest.Fabric(t, ec2sim.World(`
		vpc-1       10.0.0.0/16 10.88.0.0/16 1100:200::/56
		subnet-node 10.0.0.0/24 1100:200:0:1::/64
		subnet-pods 10.88.0.0/16 1100:200::/64 pool=10-88-0-0-16`))
	i := simtest.Launch(t, f, "node", ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-node", IPv6: 1})
	n := &batsNode{bats: must(filepath.Abs(*bats)), dir: t.TempDir()}
	n.install(t)
	m, err := machine.Boot(i, "node", n.env(), "/opt", "/var/lib", "/var/log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	n.Machine = m
	bridge := fmt.Sprintf(asBridge, must(filepath.Abs(pluginDir)), dataPath)
	err = errors.Join(m.WriteFile("/opt/cni/bin/bridge", []byte(bridge), 0o755), os.Mkdir(m.File(temporary), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// command returns a command that runs a file of tests in the directory test.
func (n *batsNode) command(file string) *exec.Cmd {
	return n.Command(context.Background(), "sh", "-c", `cd "$1" && exec "$2" --tap "$3"`, "sh",
		filepath.Join(n.dir, "test"), filepath.Join(n.bats, "node_modules/bats/bin/bats"), file)
}

const temporary = "/run/tests"

// env returns the environment variables of CRI-O's tests (test/common.sh), of bats, and of CRI-O.
func (n *batsNode) env() []string {
	programs := must(filepath.Abs(programDir))
	return []string{
		"PATH=" + strings.Join([]string{filepath.Join(n.dir, "bin"), programs, os.Getenv("PATH")}, ":"),
		"TMPDIR=" + temporary, "BATS_TEST_TIMEOUT=600", "CRICTL_TIMEOUT=2m",
		"CRIO_BINARY_PATH=" + filepath.Join(programs, "crio"), "PINNS_BINARY_PATH=" + filepath.Join(programs, "pinns"),
		"CRICTL_BINARY=" + filepath.Join(n.bats, "crictl"), "COPYIMG_BINARY=" + filepath.Join(n.bats, "copyimg"),
		"ARTIFACTS_PATH=" + filepath.Join(n.dir, "images"), "STORAGE_OPTIONS=-s vfs",
		"CONTAINER_DEFAULT_RUNTIME=runc", "CONTAINER_CGROUP_MANAGER=cgroupfs", "CONTAINER_CONMON_CGROUP=pod",
		"CNI_PLUGIN_NAME=annotated",
	}
}

// install copies CRI-O's tests, which write into their directory, and makes images for them. It edits the
// configurations of pods in the tests, because the node has no systemd, and its kernel has no cpusets.
func (n *batsNode) install(t *testing.T) {
	t.Helper()
	test := filepath.Join(n.dir, "test")
	err := errors.Join(os.Mkdir(filepath.Join(n.dir, "bin"), 0o755),
		os.CopyFS(test, os.DirFS(filepath.Join(n.bats, "test"))))
	for _, file := range must(filepath.Glob(filepath.Join(test, "testdata/*.json"))) {
		text := strings.NewReplacer(`"pod_123-456.slice"`, `"pod_123-456"`, `"cpuset_cpus": "0"`, `"cpuset_cpus": ""`,
			`"cpuset_mems": "0"`, `"cpuset_mems": ""`).Replace(string(must(os.ReadFile(file))))
		err = errors.Join(err, os.WriteFile(file, []byte(text), 0o644))
	}
	annotated := fmt.Sprintf(asAnnotated, filepath.Join(test, "testdata"))
	stat := fmt.Sprintf(cgroupV1, must(exec.LookPath("stat")))
	err = errors.Join(err, os.Chmod(filepath.Join(test, "testdata/log_cni_plugin.sh"), 0o755),
		os.Chmod(filepath.Join(test, "cni_plugin_helper.bash"), 0o755), // a Go module does not keep file modes
		os.WriteFile(filepath.Join(test, "testdata/annotated.sh"), []byte(annotated), 0o755),
		os.WriteFile(filepath.Join(n.dir, "bin/stat"), []byte(stat), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	for name, i := range imagesOfBats() {
		i.write(t, filepath.Join(n.dir, "images", name+"-image"))
	}
}

// imagesOfBats returns the images that replace the images of CRI-O's tests.
func imagesOfBats() map[string]image {
	pause := string(must(os.ReadFile(filepath.Join(programDir, "pause"))))
	shell := image{links: map[string]string{}, files: map[string]string{
		"bin/busybox":                        string(must(os.ReadFile(must(exec.LookPath("busybox"))))),
		"usr/local/bin/docker-entrypoint.sh": "#!/bin/sh\nexec sleep 86400\n",
	}}
	for name := range strings.FieldsSeq("cat hostname ip nc sh sleep") {
		shell.links["bin/"+name] = "busybox"
	}
	// without CAP_NET_RAW, busybox's ping does not work, and the ping of iputils works
	ping := must(exec.LookPath("ping"))
	shell.files["bin/ping"], shell.links["bin/ping6"] = string(must(os.ReadFile(ping))), "ping"
	for word := range strings.FieldsSeq(string(must(exec.Command("ldd", ping).Output()))) {
		if filepath.IsAbs(word) {
			shell.files[word[1:]] = string(must(os.ReadFile(word)))
		}
	}
	return map[string]image{
		"pause":          {files: map[string]string{"pause": pause}, entrypoint: []string{"/pause"}},
		"fedora_crio-ci": shell,
		"hello_wasm":     {files: map[string]string{"hello": ""}},
	}
}

// asBridge is the program that CRI-O's tests call as the plugin bridge. It calls our plugin with an equivalent
// configuration: the pool has the subnet of host-local. Then it creates an empty file for each lease, in the directory
// where the tests look for host-local's leases.
const asBridge = `#!/bin/sh
export CNI_PATH=%[1]s:$CNI_PATH
conf=$(cat)
[ "$CNI_COMMAND" = VERSION ] || conf=$(echo "$conf" | jq -c '.ipam.ranges[0][0].subnet as $range |
	del(.ipam, .bridge, .isGateway, .config) + {type: "cni-ipvlan-vpc-k8s", interfaceIndex: 1, hostInterface: "eth0",
	containerInterface: "eth1", ipFamilies: ["IPv4", "IPv6"], secGroupIds: [], dataPath: "%[2]s",
	subnetTags: {pool: ($range // "10.88.0.0/16" | gsub("[./]"; "-"))}}') || exit
%[1]s/cni-ipvlan-vpc-k8s <<END
$conf
END
status=$?
[ "$CNI_COMMAND" != VERSION ] || exit $status
leases=/var/lib/cni/networks/$(echo "$conf" | jq -r .name)
mkdir -p "$leases" && rm -f "$leases"/*
for address in $(jq -r '.leases | keys[]' /run/cni-ipvlan-vpc-k8s/registry.json); do touch "$leases/$address"; done
exit $status
`

// asAnnotated is the plugin in the tests of annotations. It writes its input into a file, like CRI-O's own plugin for
// these tests. If it is the first plugin of a list, it then calls our plugin.
const asAnnotated = `#!/bin/sh -e
conf=$(cat)
answer=$(echo "$conf" | %[1]s/log_cni_plugin.sh)
case $conf in
*'"prevResult"'*) echo "$answer" ;;
*) echo "$conf" | /opt/cni/bin/bridge ;;
esac
`

// cgroupV1 is a program with the name "stat". It reports version 1 of cgroups. With version 2, CRI-O's tests would skip
// the test of host ports.
const cgroupV1 = `#!/bin/sh
case "$*" in
"-f -c%%T /sys/fs/cgroup") echo tmpfs ;;
*) exec %[1]s "$@" ;;
esac
`

// leftNothing checks that the registry has no leases after the tests.
func (n *batsNode) leftNothing(t *testing.T) {
	t.Helper()
	state, err := must(registry.Open(n.File(registry.Dir()))).View()
	if err != nil {
		t.Fatal(err)
	}
	for a, l := range state.Leases.All() {
		t.Errorf("the lease of %s is left: %+v", a, l)
	}
}
