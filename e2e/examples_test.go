// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// peers is the directory into which make puts programs of other projects that tests run together with ours.
const peers = ".cache/peers"

const examplePort = 8080

// An example describes the node and the pods that a file of conflist-examples needs.
type example struct {
	kubernetes   string         // the Kubernetes namespace of the pod
	needs        []string       // features of the kernel, or iptables: see nltest.Need
	capabilities map[string]any // what the runtime passes to plugins
	ipv6         int            // number of IPv6 addresses of the boot ENI
	provisioned  bool           // the node has an ENI for pods before the first ADD, see provision
	instance     string         // the instance type; "": m5.large
	shows        func(*testing.T, *world, []netip.Addr)
}

var examples = map[string]example{
	"10-cni-ipvlan-vpc-k8s.conflist": {},
	"three-plugins.conflist":         {},
	"original.conflist":              {},
	"prefixes.conflist": {shows: func(t *testing.T, w *world, _ []netip.Addr) {
		if e := w.podENI(t); len(e.Prefixes) != 1 {
			t.Errorf("the ENI has the prefixes %v, want one", e.Prefixes)
		}
	}},
	"dual-stack.conflist": {ipv6: 1, shows: func(t *testing.T, _ *world, addrs []netip.Addr) {
		if len(addrs) != 2 || !addrs[0].Is4() || !addrs[1].Is6() {
			t.Errorf("addresses %v, want IPv4 and then IPv6", addrs)
		}
	}},
	"pre-provisioned.conflist": {provisioned: true, shows: func(t *testing.T, w *world, _ []netip.Addr) {
		for _, c := range w.fabric.EC2.Calls() {
			if c.Action != denied || c.Code == "" {
				t.Errorf("EC2 was asked: %v", c)
			}
		}
	}},
	"pools.conflist": {
		kubernetes: "edge-1",
		capabilities: map[string]any{
			"io.kubernetes.cri.pod-annotations": map[string]string{"cni-ipvlan-vpc-k8s/pool": "public"}},
		shows: func(t *testing.T, w *world, _ []netip.Addr) {
			if e := w.podENI(t); !slices.Equal(e.SecurityGroups, []string{"sg-9"}) {
				t.Errorf("the pod's ENI has the security groups %v, want sg-9", e.SecurityGroups)
			}
		},
	},
	"requests.conflist": {
		kubernetes: "vm-1",
		capabilities: map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{
			"cni-ipvlan-vpc-k8s/nics": `[{"subnet": "subnet-1", "ip": "192.168.0.99"}]`}},
		shows: func(t *testing.T, w *world, addrs []netip.Addr) {
			if e := w.podENI(t); e.Subnet != "subnet-1" || addrs[0] != netip.MustParseAddr("192.168.0.99") {
				t.Errorf("the pod has %v on an ENI of %s, want 192.168.0.99 of subnet-1", addrs, e.Subnet)
			}
		},
	},
	"egress.conflist": {kubernetes: "payments", needs: []string{"fou", "fib"},
		shows: func(t *testing.T, w *world, addrs []netip.Addr) {
			s, err := egress.Read(w.pods["pod"].NS)
			if err != nil || s.Role != egress.Client || !slices.Equal(s.Addrs, addrs) {
				t.Errorf("the pod is %+v, want a client with %v; %v", s, addrs, err)
			}
		}},
	"private-subnets.conflist": {shows: func(t *testing.T, w *world, _ []netip.Addr) {
		seen, err := w.pods["pod"].Call("tcp", netip.AddrPortFrom(vpcsim.InternetAddr, examplePort))
		if err != nil || seen.Addr() != vpcsim.NATAddr {
			t.Errorf("the internet sees the pod as %v, want the NAT gateway, %s; %v", seen, vpcsim.NATAddr, err)
		}
	}},
	"portmap.conflist": {
		needs: []string{"iptables"},
		capabilities: map[string]any{"portMappings": []map[string]any{{"hostPort": 80, "containerPort": examplePort,
			"protocol": "tcp"}}},
		shows: func(t *testing.T, w *world, _ []netip.Addr) {
			seen, err := w.host.Call("tcp", netip.AddrPortFrom(w.node.Addr(), 80))
			if err != nil || seen.Addr() != w.node.Addr() {
				t.Errorf("who calls the host's port is seen as %v, want the node, %s; %v", seen, w.node.Addr(), err)
			}
		},
	},
}

// TestExamples tests each example on its own node. The test adds a pod, sends packets to the pod, runs CHECK, and
// deletes the pod.
func TestExamples(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	files, err := filepath.Glob("conflist-examples/*.conflist")
	if err != nil || len(files) != len(examples) {
		t.Fatalf("examples %v, %v: want those of this test", files, err)
	}
	v := exampleVPC(t)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			x, ok := examples[filepath.Base(file)]
			if !ok {
				t.Fatal("this test knows nothing of it")
			}
			nltest.Need(t, x.needs...)
			list, err := libcni.ConfListFromFile(file)
			if err != nil {
				t.Fatal(err)
			}
			w := v.launch(t, x)
			w.try(t, list, x)
		})
	}
}

// exampleVPC makes a VPC with the subnets and security groups that the examples need.
func exampleVPC(t *testing.T) *vpc {
	t.Helper()
	c := ec2sim.World(`
		vpc-1       10.0.0.0/16 100.64.0.0/16 192.168.0.0/24 2001:db8:0:100::/56
		subnet-node 10.0.0.0/24 2001:db8:0:100::/64 public
		subnet-pods 100.64.0.0/20 2001:db8:0:101::/64 kubernetes_kubelet=true
		subnet-1    192.168.0.0/24
		subnet-far  100.64.16.0/24 us-east-1b
		vpc-2       10.9.0.0/16
		subnet-else 10.9.0.0/24`)
	c.GroupVPCs = map[string]string{"sg-else": "vpc-2"}
	v := newVPC(t, c, 1)
	if err := errors.Join(v.fabric.AddNATGateway(netip.MustParsePrefix("100.64.0.0/20")),
		v.fabric.Internet.Answer(examplePort)); err != nil {
		t.Fatal(err)
	}
	return v
}

// denied is the EC2 call that EC2 refuses to a pre-provisioned node. By this call, a node reads the tags of its ENIs.
const denied = "DescribeNetworkInterfaces"

// provision attaches an ENI to the node, as a launch template does. Then it makes EC2 refuse the call in denied.
func (w *world) provision(t *testing.T) {
	t.Helper()
	w.tool(t, "new-interface", "--subnet_filter=kubernetes_kubelet=true", "sg-1234")
	if err := os.RemoveAll(w.node.StateDir); err != nil {
		t.Fatal(err)
	}
	w.fabric.EC2.Fail(denied, "UnauthorizedOperation", -1)
	t.Cleanup(func() { w.fabric.EC2.Fail(denied, "", 0) }) // the other nodes have another role
}

func (w *world) try(t *testing.T, list *libcni.NetworkConfigList, x example) {
	added, err := w.call(list, "ADD", "pod")
	if err != nil {
		t.Fatal(err)
	}
	result, err := types100.NewResultFromResult(added)
	if err != nil {
		t.Fatal(err)
	}
	var addrs []netip.Addr
	for _, c := range result.IPs {
		a, _ := netip.AddrFromSlice(c.Address.IP)
		addrs = append(addrs, a.Unmap())
		if err := w.host.Ping(a.Unmap()); err != nil {
			t.Error(err)
		}
	}
	if x.shows != nil {
		x.shows(t, w, addrs)
	}
	if list.CNIVersion >= "0.4.0" { // libcni does not support CHECK in older versions
		if _, err := w.call(list, "CHECK", "pod"); err != nil {
			t.Error(err)
		}
	}
	if _, err := w.call(list, "DEL", "pod"); err != nil {
		t.Error(err)
	}
	if len(addrs) == 0 {
		t.Error("the pod had no address")
	}
}

func (w *world) podENI(t *testing.T) ec2sim.ENI {
	t.Helper()
	enis := w.node.ENIs()
	if len(enis) != 2 {
		t.Fatalf("the node has %d ENIs, want 2", len(enis))
	}
	return enis[1]
}

// TestRepoExamples checks that our plugins accept the examples, and read them without encoding/json.
func TestRepoExamples(t *testing.T) {
	for name, x := range examples {
		list, err := libcni.ConfListFromFile(filepath.Join("conflist-examples", name))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, p := range list.Plugins {
			empty, ours := configurations[p.Network.Type]
			if !ours {
				continue
			}
			c := empty()
			if err := json.Unmarshal(p.Bytes, c); err != nil {
				t.Errorf("%s: %s: %v", name, p.Network.Type, err)
			}
			if err := c.Validate(); err != nil {
				t.Errorf("%s: %s: %v", name, p.Network.Type, err)
			}
			stdin := x.stdin(t, list, p)
			if err := codec.ReadExactly(stdin, empty().Describe); err != nil {
				t.Errorf("%s: %v", stdin, err)
			}
		}
	}
}

// TestRepoShown checks that the README shows the example for beginners unchanged.
func TestRepoShown(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("conflist-examples/10-cni-ipvlan-vpc-k8s.conflist")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(readme, example) {
		t.Error("README.md shows another conflist than conflist-examples/10-cni-ipvlan-vpc-k8s.conflist")
	}
}

func (x example) stdin(t *testing.T, list *libcni.NetworkConfigList, p *libcni.PluginConfig) []byte {
	t.Helper()
	add := map[string]any{"name": list.Name, "cniVersion": list.CNIVersion,
		"prevResult": &types100.Result{CNIVersion: list.CNIVersion}}
	if x.capabilities != nil {
		add["runtimeConfig"] = x.capabilities
	}
	p, err := libcni.InjectConf(p, add)
	if err != nil {
		t.Fatal(err)
	}
	return p.Bytes
}
