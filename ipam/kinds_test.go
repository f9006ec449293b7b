// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

const (
	chainProgram  = "cni-ipvlan-vpc-k8s"
	ipvlanProgram = "cni-ipvlan-vpc-k8s-ipvlan"
)

// A kind is a chain of plugins, in the order of the conflist. For a DEL, a runtime calls them in the reverse order.
type kind []string

var (
	alone = kind{program}
	one   = kind{chainProgram}
	three = kind{program, ipvlanProgram, ptpProgram}
)

func (k kind) String() string { return map[int]string{1: k[0], 3: "three plugins"}[len(k)] }

// whole returns a node with the plugins of this kind. Each pod has a namespace, and all objects that the plugins make.
func whole(t testing.TB, k kind, via *hand) *node {
	t.Helper()
	n := newNode(t, "m5.large", ec2sim.Config{}, via.via)
	n.kind, n.ns, n.paths = k, map[string]*nl.NS{}, map[string]string{}
	addTo(n, n.Host, nl.Addr{Prefix: netip.PrefixFrom(n.ENIs()[0].Addrs[0], 24), Dev: "eth0"})
	maps.Copy(n.conf, map[string]any{"hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true})
	return n
}

// call executes the plugins of the node with the command verb, as a runtime does. It returns the result, or the error
// of the first plugin that fails. In an ADD, each plugin gets the result of the plugin before it.
func (n *node) call(verb, pod string, prev json.RawMessage) (json.RawMessage, *types.Error) {
	n.Helper()
	plugins := slices.Clone(n.kind)
	if verb == "DEL" {
		slices.Reverse(plugins)
	}
	for _, p := range plugins {
		more := map[string]any{}
		if prev != nil {
			more["prevResult"] = prev
		}
		cmd := n.exec(p, verb, pod, more)
		n.start(cmd)
		if cmd.Wait() != nil {
			e := new(types.Error)
			if err := json.Unmarshal(cmd.Stdout.(*bytes.Buffer).Bytes(), e); err != nil {
				n.Fatalf("%s %s: %v: %s%s", p, verb, err, cmd.Stdout, cmd.Stderr)
			}
			return nil, e
		}
		if verb == "ADD" {
			prev = cmd.Stdout.(*bytes.Buffer).Bytes()
		}
	}
	return prev, nil
}

// gone checks that no link of this suite is left on the node, and no link except lo in the namespace of the pod.
func (n *node) gone(pod string) {
	n.Helper()
	links, err := n.Host.Links()
	must(n, err)
	inside, err := n.ns[pod].Links()
	must(n, err)
	for _, l := range links {
		if l.Group == nl.OwnGroup {
			n.Errorf("%s is left on the node", l.Name)
		}
	}
	for _, l := range inside {
		if l.Name != "lo" {
			n.Errorf("%s is left in %s", l.Name, pod)
		}
	}
}

// A hostility is a failure of EC2 or metadata while a pod starts.
type hostility struct {
	name  string
	begin func(n *node)
}

// hostilities returns errors of each action that an ADD calls, lost answers, and metadata that is unavailable.
func hostilities() (all []hostility) {
	for action, codes := range map[string][]string{
		"DescribeInstanceTypes":     {"UnauthorizedOperation"},
		"DescribeSubnets":           {"UnauthorizedOperation"},
		"DescribeNetworkInterfaces": {"UnauthorizedOperation"},
		"CreateNetworkInterface": {"UnauthorizedOperation", "InsufficientFreeAddressesInSubnet",
			"NetworkInterfaceLimitExceeded", "TagPolicyViolation", "OptInRequired"},
		"AttachNetworkInterface":          {"UnauthorizedOperation", "AttachmentLimitExceeded"},
		"ModifyNetworkInterfaceAttribute": {"UnauthorizedOperation"},
	} {
		for _, code := range codes {
			all = append(all, hostility{action + " " + code, func(n *node) { n.EC2.Fail(action, code, -1) }})
		}
		lost := []ec2sim.Outcome{ec2sim.DoneLost, ec2sim.Refused("UnauthorizedOperation")}
		all = append(all, hostility{action + " lost and denied", func(n *node) { n.EC2.Script(action, lost...) }})
	}
	all = append(all, hostility{"metadata unavailable", func(n *node) {
		n.conf["addTimeout"] = 20 // the ADD waits until its deadline
		n.Lie(ec2sim.Unavailable())
	}})
	slices.SortFunc(all, func(a, b hostility) int { return strings.Compare(a.name, b.name) })
	return all
}

// A heard has the error that the plugins return to the runtime, and the changing calls that they make to EC2.
type heard struct {
	Code          uint
	Message, Hint string
	Calls         []string
}

// TestKinds starts a pod during each hostility, with each kind. All kinds return the same error, and ask EC2 for the
// same changes. The chain of three plugins meets only the hostilities in which answers are lost.
func TestKinds(t *testing.T) {
	nltest.Need(t, "root", "netns", "nftables", "ipvlan")
	for _, h := range hostilities() {
		t.Run(h.name, func(t *testing.T) {
			var want heard
			kinds := []kind{alone, one}
			if strings.Contains(h.name, "lost") {
				kinds = append(kinds, three)
			}
			for _, k := range kinds {
				t.Run(k.String(), func(t *testing.T) {
					got := h.meets(t, k)
					if k.String() == alone.String() {
						want = got
					} else if d := cmp.Diff(want, got); d != "" {
						t.Errorf("-%s +%s\n%s", alone, k, d)
					}
				})
			}
		})
	}
}

// meets adds a pod during the hostility, and deletes it. Then the hostility ends, and the node must be intact after a
// collection.
func (h hostility) meets(t *testing.T, k kind) (got heard) {
	n := whole(t, k, &hand{})
	n.EC2.ResetCalls()
	h.begin(n)
	result, e := n.call("ADD", "web", nil)
	if e != nil {
		got.Code, got.Message, got.Hint = e.Code, anonymous(e.Msg), e.Details
	}
	for _, c := range n.EC2.Calls() {
		if api.Changes(c.Action) {
			got.Calls = append(got.Calls, c.Action+" "+c.Code)
		}
	}
	for range 2 {
		if _, e := n.call("DEL", "web", result); e != nil {
			t.Errorf("DEL: %v", e)
		}
	}
	n.gone("web")
	for action := range latencies {
		n.EC2.Fail(action, "InternalError", 0)
		n.EC2.Script(action)
	}
	n.Reboot() // the metadata service starts again, and lies no more
	n.Age(time.Hour)
	n.run(n.gc())
	n.intact()
	return got
}

// anonymous returns a message without the ID of the request, which differs each time.
func anonymous(text string) string {
	before, _, _ := strings.Cut(text, "(request ")
	return before
}

// TestKillOne does what TestKillEverywhere does, for the program with all plugins, and for pods with all objects that
// it makes. It kills the program at its calls to EC2 and to metadata, before or after the call is carried out. Other
// tests kill this program at system calls.
func TestKillOne(t *testing.T) {
	nltest.Need(t, "root", "netns", "nftables", "ipvlan")
	for _, v := range victims {
		if !strings.HasPrefix(v.name, "ADD") || v.name == "ADD warm" {
			continue // the other victims call no service, or are commands of the tool
		}
		t.Run(v.name, func(t *testing.T) {
			h := &hand{}
			t.Run("unharmed", func(t *testing.T) { // ends its pods, so that the next subtest can use their addresses
				n := whole(t, one, h)
				v.prepare(n)
				h.begin(blow{})
				n.run(v.command(n))
			})
			for _, service := range []string{"ec2", "metadata"} {
				step := map[string]int{"ec2": 1, "metadata": 25}[service] // the calls to metadata are many, and alike
				for i := 0; i < h.seen[service]; i += step {
					for _, after := range []bool{false, true} {
						if *trace.Step > 1 && after != (i/step%2 == 0) {
							continue
						}
						b := blow{service, i + 1, after}
						t.Run(b.String(), func(t *testing.T) { v.strike(t, one, b, ending(i/step%4 < 2 != after)) })
					}
				}
			}
		})
	}
}

// exec returns a command that executes a plugin as a runtime does.
func (n *node) exec(plugin, verb, pod string, more map[string]any) *exec.Cmd {
	n.Helper()
	conf := maps.Clone(n.conf)
	conf["type"] = plugin
	maps.Copy(conf, more)
	stdin, err := json.Marshal(conf)
	must(n, err)
	path, err := exec.LookPath(program)
	must(n, err)
	cmd := n.command(plugin)
	cmd.Env = append(cmd.Env, "CNI_COMMAND="+verb, "CNI_PATH="+filepath.Dir(path), "CNI_NETNS_OVERRIDE=1")
	if pod != "" {
		cmd.Env = append(cmd.Env, "CNI_CONTAINERID="+pod, "CNI_IFNAME=eth0", "CNI_NETNS="+n.netns(pod))
	}
	cmd.Stdin = bytes.NewReader(stdin)
	return cmd
}

// namespace returns the path of a pod's namespace, and makes the namespace if it is missing.
func (n *node) namespace(pod string) string {
	n.Helper()
	if n.ns[pod] == nil {
		n.ns[pod], n.paths[pod] = nltest.NS(n, fmt.Sprint("pod-", pod))
	}
	return n.paths[pod]
}
