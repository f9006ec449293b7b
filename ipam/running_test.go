// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

const ptpProgram = "cni-ipvlan-vpc-k8s-unnumbered-ptp"

// A running pod has an address, a link to the VPC in a namespace of its own, and all objects of the last plugin.
type running struct {
	*node
	ns     *nl.NS
	path   string
	result json.RawMessage // the result of the ipam plugin, with the pod's link
}

// runPod executes the first and the last plugin as processes, and so starts a pod. A veth replaces the ipvlan slave,
// because not every kernel has ipvlan.
func runPod(n *node) *running {
	n.Helper()
	boot := n.ENIs()[0]
	addTo(n, n.Host, nl.Addr{Prefix: netip.PrefixFrom(boot.Addrs[0], 24), Dev: "eth0"})
	r := &running{node: n}
	r.ns, r.path = nltest.NS(n, "pod")
	ipam := r.call(program, "ADD", n.conf)
	var result types100.Result
	if err := json.Unmarshal(ipam, &result); err != nil {
		n.Fatal(err)
	}
	slave := nl.Veth{Name: "slave", Peer: "eth0", PeerNS: r.ns}
	addTo(n, n.Host, slave)
	for _, ip := range result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP.To4())
		addTo(n, r.ns, nl.Addr{Prefix: netip.PrefixFrom(a, 20), Dev: "eth0"})
	}
	result.Interfaces = []*types100.Interface{{Name: "eth0", Sandbox: r.path}}
	var err error
	if r.result, err = json.Marshal(result); err != nil {
		n.Fatal(err)
	}
	r.ptp("ADD")
	return r
}

func addTo(n *node, ns *nl.NS, objects ...nl.Object) {
	n.Helper()
	for _, o := range objects {
		if err := (nl.Wiring{{NS: ns, Object: o}}).Add(); err != nil {
			n.Fatal(err)
		}
	}
}

func (r *running) ptp(verb string) {
	r.Helper()
	r.call(ptpProgram, verb, map[string]any{"cniVersion": "1.1.0", "name": "net", "type": ptpProgram,
		"hostInterface":      "eth0",
		"containerInterface": "eth1", "ipMasq": true, "prevResult": r.result})
}

// call runs a command of a plugin, which must succeed, and returns its answer.
func (r *running) call(plugin, verb string, conf map[string]any) []byte {
	r.Helper()
	stdin, err := json.Marshal(conf)
	if err != nil {
		r.Fatal(err)
	}
	cmd := r.command(plugin)
	cmd.Env = append(cmd.Env, "CNI_COMMAND="+verb, "CNI_PATH="+filepath.Dir(cmd.Path), "CNI_CONTAINERID=web",
		"CNI_IFNAME=eth0", "CNI_NETNS="+r.path)
	cmd.Stdin = bytes.NewReader(stdin)
	r.run(cmd)
	if r.Failed() {
		r.FailNow()
	}
	return cmd.Stdout.(*bytes.Buffer).Bytes()
}

// dump returns the objects that the node and the pod have in the kernel. CHECK compares the contents of nftables
// tables.
func (r *running) dump() string {
	r.Helper()
	return nltest.Dump(r, r.Host, r.ns)
}

// wants checks that the node and the pod are as they were before.
func (r *running) wants(before, when string) {
	r.Helper()
	if d := cmp.Diff(strings.Split(before, "\n"), strings.Split(r.dump(), "\n")); d != "" {
		r.Fatalf("%s: -before +after\n%s", when, d)
	}
	r.ptp("CHECK")
}

// losses are ways to lose a registry.
var losses = map[string]func(r *running){
	"deleted": func(r *running) { must(r, os.RemoveAll(r.Dir)) },
	"aside":   func(r *running) { must(r, os.Rename(r.Dir, r.Dir+".aside")) },
	"damaged": func(r *running) { must(r, os.WriteFile(r.Dir+"/registry.json", []byte("{\"leases\": {"), 0o600)) },
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// blindness has reasons why a collection does not learn which addresses the pods have.
var blindness = map[string]func(r *running, eni string) (heal func()){
	"nothing": func(*running, string) func() { return func() {} },
	"metadata unavailable": func(r *running, _ string) func() {
		return r.Lie(ec2sim.Unavailable())
	},
	"metadata unreachable": func(r *running, _ string) func() {
		env := r.env
		r.env = append(env[:len(env):len(env)], "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:1")
		return func() { r.env = env }
	},
	"metadata forgets the ENI, EC2 denies": func(r *running, eni string) func() {
		r.EC2.Fail("DescribeNetworkInterfaces", "UnauthorizedOperation", -1)
		stop := r.Lie(ec2sim.ForgetENI(eni))
		return func() { stop(); r.EC2.Fail("DescribeNetworkInterfaces", "UnauthorizedOperation", 0) }
	},
	"metadata forgets the ENI, EC2 throttles": func(r *running, eni string) func() {
		r.EC2.Fail("DescribeNetworkInterfaces", "RequestLimitExceeded", 3) // more failures than one call has attempts
		stop := r.Lie(ec2sim.ForgetENI(eni))
		return func() { stop(); r.EC2.Fail("DescribeNetworkInterfaces", "RequestLimitExceeded", 0) }
	},
	"device index 0, EC2 denies": func(r *running, eni string) func() {
		r.EC2.Fail("DescribeNetworkInterfaces", "UnauthorizedOperation", -1)
		stop := r.Lie(ec2sim.ZeroDeviceNumber(eni))
		return func() { stop(); r.EC2.Fail("DescribeNetworkInterfaces", "UnauthorizedOperation", 0) }
	},
	"the ENI is not to be managed": func(r *running, eni string) func() {
		r.Operate("CreateTags", "ResourceId.1", eni, "Tag.1.Key", "node.k8s.amazonaws.com/no_manage",
			"Tag.1.Value", "true")
		return func() {}
	},
}

// collect runs registry-gc, which may fail.
func (r *running) collect() {
	r.Helper()
	cmd := r.gc()
	r.start(cmd)
	if err := cmd.Wait(); err != nil {
		if _, exited := err.(*exec.ExitError); !exited {
			r.Fatal(err)
		}
		r.Logf("registry-gc: %v: %s", err, cmd.Stderr)
	}
}

// stays checks that collections change nothing of a running pod. At first the registry is lost, and the node is blind;
// then it sees the pods' addresses again. The argument bare is a dump of the node without the pod: when the pod has
// ended, the node must be as in this dump.
func (r *running) stays(bare string, lose func(*running), blind func(*running, string) func()) {
	r.Helper()
	before := r.dump()
	lose(r)
	heal := blind(r, r.ENIs()[1].ID)
	r.collect()
	r.wants(before, "a collection")
	r.Age(time.Hour)
	r.collect()
	r.wants(before, "a collection an hour later")
	heal()
	r.collect()
	r.Age(time.Hour)
	r.collect()
	r.wants(before, "collections when all is well again")
	r.end(bare)
}

// TestProcessRunningPods: whatever happens to the registry, and whatever metadata and EC2 answer, collections remove
// nothing that a running pod has or needs. After the last pod, collections remove the objects that served all pods.
func TestProcessRunningPods(t *testing.T) {
	nltest.Need(t, "nftables")
	for why, blind := range blindness {
		for how, lose := range losses {
			if how != "deleted" && why != "metadata unavailable" {
				continue
			}
			t.Run(why+", registry "+how, func(t *testing.T) {
				n := newNode(t, "c5.large", ec2sim.Config{}, nil)
				bare := nltest.Dump(t, n.Host)
				runPod(n).stays(bare, lose, blind)
			})
		}
	}
}

// end ends the pod, and checks that the node is as it was before.
func (r *running) end(bare string) {
	r.Helper()
	r.ptp("DEL")
	r.call(program, "DEL", r.conf)
	nltest.Remove(r, r.path)
	must(r, (nl.Wiring{{NS: r.Host, Object: nl.Veth{Name: "slave"}}}).Del())
	for range 3 { // the ENI drains, then goes
		r.Age(time.Hour)
		r.collect()
	}
	own := func(dump string) (lines []string) {
		for line := range strings.SplitSeq(dump, "\n") {
			if strings.Contains(line, "cni_ipvlan") || strings.Contains(line, "72") &&
				!strings.Contains(line, "ip link add") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	if d := cmp.Diff(own(bare), own(nltest.Dump(r, r.Host))); d != "" {
		s := r.State()
		r.Errorf("when the pod has gone, leases %v: -before +after\n%s", maps.Collect(s.Leases.All()), d)
	}
}
