// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool"
)

// TestPolicyIsWhatIsCalled simulates the life of a node in each mode. EC2 refuses all calls that the policy does not
// allow. The node must work, and must make each call that the policy allows.
func TestPolicyIsWhatIsCalled(t *testing.T) {
	for name, keys := range map[string]string{
		"full":             `"secGroupIds": ["sg-1"], "subnetTags": {"kubernetes_kubelet": "true"}`,
		"full, dual stack": `"secGroupIds": ["sg-1"], "ipFamilies": ["IPv4", "IPv6"]`,
		"full, peers":      `"secGroupIds": ["sg-1"], "routeToVpcPeers": true`,
		"full, kept":       `"secGroupIds": ["sg-1"], "skipDeallocation": true`,
		"assign":           `"provision": "assign"`,
		"assign, prefixes": `"provision": "assign", "prefixDelegation": true`,
		"assign, requests": `"provision": "assign", "requests": [{"namespaces": ["*"], "enis": {"for": "pods"}, ` +
			`"ips": true}]`,
		"none":         `"provision": "none", "skipDeallocation": true`,
		"none, eni-gc": `"provision": "none", "skipDeallocation": true`,
	} {
		t.Run(name, func(t *testing.T) {
			conflist := filepath.Join(t.TempDir(), "10-pods.conflist")
			text := fmt.Sprintf(
				`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "cni-ipvlan-vpc-k8s-ipam", `+
					`"interfaceIndex": 1, "reuseIPWait": 0, %s}]}`, keys)
			if err := os.WriteFile(conflist, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			l := newLife(t, conflist)
			args := []string{"iam-policy", "--config", conflist}
			gc := strings.HasSuffix(name, "eni-gc")
			if gc {
				args = append(args, "--eni-gc")
				l.leak()
			}
			may := allowed(t, args...)
			l.refuseAllBut(may)
			if gc {
				l.collectLeaks()
			} else {
				l.live()
			}
			for _, action := range may {
				if !api.Is(action, api.Node) && action != "CreateTags" {
					t.Errorf("the policy allows %s, which no program of a node calls", action)
				}
			}
			if diff := cmp.Diff(may, l.called()); diff != "" {
				t.Errorf("-allowed +called\n%s", diff)
			}
		})
	}
}

// everything has all actions that a policy of ours could allow, except CreateTags. Without CreateTags, EC2 refuses to
// create an object with tags.
var everything = []string{
	"AssignIpv6Addresses", "AssignPrivateIpAddresses", "AttachNetworkInterface", "CreateNetworkInterface",
	"DeleteNetworkInterface",
	"DescribeInstanceTypes", "DescribeNetworkInterfaces", "DescribeSubnets", "DescribeVpcPeeringConnections",
	"DescribeVpcs",
	"DetachNetworkInterface", "ModifyNetworkInterfaceAttribute", "UnassignIpv6Addresses", "UnassignPrivateIpAddresses",
}

func (l *life) refuseAllBut(may []string) {
	for _, action := range everything {
		if !slices.Contains(may, action) {
			l.EC2.Fail(action, "UnauthorizedOperation", -1)
		}
	}
	l.EC2.ResetCalls()
}

// allowed returns the actions of the policy that the tool prints.
func allowed(t *testing.T, args ...string) []string {
	var policy struct {
		Statement []struct{ Action []string }
	}
	if err := json.Unmarshal(runTool(t, args...), &policy); err != nil {
		t.Fatal(err)
	}
	actions := map[string]bool{}
	for _, s := range policy.Statement {
		for _, a := range s.Action {
			actions[strings.TrimPrefix(a, "ec2:")] = true
		}
	}
	return slices.Sorted(maps.Keys(actions))
}

func runTool(t testing.TB, args ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := tool.New(&out).RunContext(t.Context(), append([]string{tool.Name}, args...)); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out.Bytes()
}

// A life is a node with the configuration under test.
type life struct {
	*simtest.Node
	config   lease.Config
	conflist string
}

// newLife launches a node with an ENI for pods, which has no IPv6 addresses. The registry does not have this ENI, as if
// a launch template had created it.
func newLife(t *testing.T, conflist string) *life {
	c := vpc()
	c.VPCs[0].IPv6CIDRs = []netip.Prefix{netip.MustParsePrefix("2600:1f18:1111:2200::/56")}
	for i := range c.Subnets {
		c.Subnets[i].IPv6CIDR = netip.MustParsePrefix(fmt.Sprintf("2600:1f18:1111:22%02x::/64", i))
	}
	l := &life{conflist: conflist, Node: launched(t, c, ec2sim.RunInstance{Type: "c5.large", Subnet: "subnet-a",
		SecurityGroups: []string{"sg-node"}}, t.Setenv)}
	logs := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(t.Output(), nil)))
	t.Cleanup(func() { slog.SetDefault(logs) })
	l.config = readConfig(t, conflist)
	runTool(t, "new-interface", "--subnet_filter", "kubernetes_kubelet=true", "--ip_batch_size", "3", "sg-1")
	l.Lose()
	return l
}

func readConfig(t *testing.T, conflist string) lease.Config {
	b, err := os.ReadFile(conflist)
	var list struct{ Plugins []lease.Config }
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err == nil {
		err = list.Plugins[0].Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	return list.Plugins[0]
}

// live fills the node with pods, and ends all pods except one, and then this pod. Meanwhile, collections release the
// free addresses and ENIs. At the end, an operator deletes the remaining ENIs.
func (l *life) live() {
	if len(l.config.Permissions) > 0 {
		l.request()
	}
	policy := l.config.Policies()[0]
	pods := 3 // the ENI has addresses for this many pods; the node may not ask EC2 for more addresses
	if policy.Provision == lease.ProvisionAssign {
		pods = 8
	}
	if policy.Provision == lease.ProvisionFull {
		pods = 15 // one ENI has too few addresses for this many pods
	}
	valid := make([]registry.Attachment, pods)
	for i := range valid {
		valid[i] = registry.Attachment{ContainerID: fmt.Sprint("c", i), IfName: "eth0"}
		if _, err := ipam.Commands().Add(l.Context(), &plugin.Request[lease.Config]{Network: "net",
			Attachment: valid[i], Config: l.config}); err != nil {
			l.Fatalf("pod %d: %v", i, err)
		}
	}
	runTool(l, "warm", "--config", l.conflist)
	for _, left := range [][]registry.Attachment{valid[:1], nil} {
		if err := ipam.Commands().GC(l.Context(), &plugin.Request[lease.Config]{Network: "net", Valid: left,
			Config: l.config}); err != nil {
			l.Fatal(err)
		}
		for range 3 { // the first collection makes ENIs drain; later collections delete these ENIs
			runTool(l, "registry-gc", "--config", l.conflist, "--free-after", "1ns")
		}
	}
	for _, e := range l.ENIs() {
		if e.Index > 0 && policy.Provision == lease.ProvisionFull {
			runTool(l, "remove-interface", e.ID)
		}
	}
}

// request adds a pod that asks for an ENI, and deletes the pod. Later collections detach the ENI.
func (l *life) request() {
	l.Operate("CreateNetworkInterface", "SubnetId", "subnet-b", "TagSpecification.1.ResourceType", "network-interface",
		"TagSpecification.1.Tag.1.Key", "for", "TagSpecification.1.Tag.1.Value", "pods")
	all := l.EC2.ENIs()
	l.EC2.ResetCalls()
	r := &plugin.Request[lease.Config]{Network: "net", Attachment: registry.Attachment{ContainerID: "asks",
		IfName: "eth0"}, Config: l.config}
	r.Config.RuntimeConfig.Annotations = map[string]string{nic.Annotation: fmt.Sprintf(`[{"eni": %q}]`,
		all[len(all)-1].ID)}
	if _, err := ipam.Commands().Add(l.Context(), r); err != nil {
		l.Fatal(err)
	}
	if err := ipam.Commands().Del(l.Context(), r); err != nil {
		l.Fatal(err)
	}
	l.Age(time.Hour) // now registry-gc may detach the ENI
}

// leak creates an ENI with the tags of an instance that is terminated, as if this instance had left the ENI behind.
func (l *life) leak() {
	other, err := l.EC2.RunInstance(ec2sim.RunInstance{Type: "c5.large", Subnet: "subnet-b",
		SecurityGroups: []string{"sg-node"}})
	if err != nil {
		l.Fatal(err)
	}
	if err := l.EC2.TerminateInstance(other.ID); err != nil {
		l.Fatal(err)
	}
	l.Operate("CreateNetworkInterface", "SubnetId", "subnet-b", "TagSpecification.1.ResourceType", "network-interface",
		"TagSpecification.1.Tag.1.Key", book.TagManaged, "TagSpecification.1.Tag.1.Value", "true",
		"TagSpecification.1.Tag.2.Key", book.TagInstance, "TagSpecification.1.Tag.2.Value", other.ID)
}

// collectLeaks runs eni-gc twice. The second run must delete the ENI that leak has left.
func (l *life) collectLeaks() {
	sightings := filepath.Join(l.TempDir(), "sightings")
	runTool(l, "eni-gc", "--state", sightings)
	b, err := os.ReadFile(sightings)
	if err == nil {
		year := fmt.Sprint(`"`, time.Now().UTC().Year())
		err = os.WriteFile(sightings, bytes.ReplaceAll(b, []byte(year), []byte(`"2000`)), 0o600)
	}
	if err != nil {
		l.Fatal(err)
	}
	runTool(l, "eni-gc", "--state", sightings)
}

// called returns the actions that EC2 has allowed the node. With "provision": "none", EC2 may refuse the call by which
// the node reads the tags of its ENIs. The node works without these tags. Tags for a new ENI need the permission
// CreateTags (EC2 user guide, "Grant permission to tag Amazon EC2 resources during creation").
func (l *life) called() []string {
	actions := map[string]bool{}
	for _, c := range l.EC2.Calls() {
		if c.Code == "UnauthorizedOperation" && (l.config.Provision != "none" ||
			c.Action != "DescribeNetworkInterfaces") {
			l.Errorf("%v", c)
		}
		if c.Code != "" {
			continue
		}
		actions[c.Action] = true
		if c.Params["TagSpecification.1.ResourceType"] != "" {
			actions["CreateTags"] = true
		}
	}
	return slices.Sorted(maps.Keys(actions))
}
