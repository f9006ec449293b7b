// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/judge"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// judges is the directory into which make puts programs of other projects that judge our plugins, and tests of these
// projects.
const judges = ".cache/judges"

// hear runs a program with tests of another project on the judged node.
func (j *judged) hear(t *testing.T, program string, s judge.Suite) {
	t.Helper()
	c := exec.Command(must(filepath.Abs(filepath.Join(judges, program))))
	c.Dir, c.Env = filepath.Join(j.dir, "integration"), j.env
	s.Hear(t, c, j.what, j.node.Do)
}

// A judged has a node on which tests of other projects call our plugin by the names of their own plugins.
type judged struct {
	*world
	what string   // what is judged
	dir  string   // the tests run in its subdirectory integration, which their repository also has
	env  []string // the environment of the tests
}

// asTheirs is a script that tests of other projects call by the name of their plugin. It calls our plugin with an
// equivalent configuration. The pool has the subnet of host-local, and keys that both plugins know stay unchanged. The
// tests use random hostPorts, so nodePorts has all of them, and nodePortMark has portmap's usual bit.
const asTheirs = `#!/bin/sh -e
conf=$(jq -c '(.ipam.subnet | gsub("[./]"; "-")) as $pool | del(.ipam) + {type: "cni-ipvlan-vpc-k8s", interfaceIndex: 1,
	hostInterface: "eth0", containerInterface: "eth1", ipMasq: true, nodePorts: "1:32767", nodePortMark: 1048576,
	secGroupIds: [],
	pools: {($pool): {namespaces: [$pool], subnetTags: {pool: $pool}, secGroupIds: [], dataPath: "%[2]s"}}}')
pool=$(echo "$conf" | jq -r '.pools | keys[]')
export CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=$pool;K8S_POD_NAME=$CNI_CONTAINERID"
CNI_PATH=%[1]s:$CNI_PATH exec %[1]s/cni-ipvlan-vpc-k8s <<END
$conf
END
`

// ipNetns is a script that the tests call as ip-netns(8). If a test makes a namespace for a host, the script gives it
// our node instead.
const ipNetns = `#!/bin/sh -e
export %[3]s
case "$1 $2 $3" in
"netns add cni-test-host-"*) touch "/run/netns/$3"; exec mount --bind %[2]s "/run/netns/$3" ;;
esac
exec %[1]s "$@"
`

// newJudged starts a node with a subnet for each network of the tests.
func newJudged(t *testing.T, dataPath string) *judged {
	t.Helper()
	nltest.Need(t, "root", "ipvlan", "nftables", "iptables")
	// The first ip netns command mounts /run/netns on itself. This mount fails if a namespace is already mounted there.
	// So run the command before our node starts.
	if out, err := exec.Command("sh", "-ec", "ip netns add judges; ip netns del judges").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f := simtest.Fabric(t, ec2sim.World(`
		vpc-1       10.0.0.0/16 10.1.2.0/24 10.9.2.0/24 172.16.31.0/24
		subnet-node 10.0.0.0/24 public
		subnet-1    10.1.2.0/24 pool=10-1-2-0-24
		subnet-9    10.9.2.0/24 pool=10-9-2-0-24
		subnet-31   172.16.31.0/24 pool=172-16-31-0-24`))
	node := simtest.Launch(t, f, "node", ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-node"})
	j := &judged{world: &world{vpc: &vpc{fabric: f}, node: node, path: programs(t)},
		what: "`dataPath` `" + dataPath + "`", dir: t.TempDir()}
	j.env = slices.Concat(os.Environ(), node.Env(), []string{"PATH=" + j.dir + "/bin:" + os.Getenv("PATH"),
		"CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOPROXY=off", "GOTOOLCHAIN=local"})
	j.put(t, "bin/ptp", fmt.Sprintf(asTheirs, j.path, dataPath))
	j.put(t, "bin/ip", fmt.Sprintf(ipNetns, must(exec.LookPath("ip")), node.Path, strings.Join(node.Env(), " ")))
	for name, to := range map[string]string{"bin/portmap": judges, "bin/bandwidth": judges, "bin/cnitool": peers,
		"integration/testdata": judges, "go.mod": "sim/judges", "go.sum": "sim/judges"} {
		j.link(t, name, filepath.Join(to, filepath.Base(name)))
	}
	return j
}

func (j *judged) put(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(j.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// link makes a symlink to a file of the repository.
func (j *judged) link(t *testing.T, name, to string) {
	t.Helper()
	file := filepath.Join(j.dir, name)
	err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.Symlink(must(filepath.Abs(to)), file))
	if err != nil {
		t.Fatal(err)
	}
}
