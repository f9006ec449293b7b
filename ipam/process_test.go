// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/chain"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

const program, growProgram = "cni-ipvlan-vpc-k8s-ipam", lease.GrowProgram

// TestMain installs the test binary under the names of the plugins and the tool, so that tests can execute these
// programs.
func TestMain(m *testing.M) {
	testscript.Main(quiet{m}, map[string]func(){
		program:       func() { gate(); plugin.Main(program, lease.Commands()) },
		growProgram:   func() { gate(); count(); plugin.Main(growProgram, ipam.Commands(os.Args[1:]...)) },
		tool.Name:     tool.Main,
		ipvlanProgram: func() { plugin.Main(ipvlanProgram, ipvlan.Commands(nil)) },
		ptpProgram:    func() { plugin.Main(ptpProgram, ptp.Commands()) },
		chainProgram:  func() { gate(); plugin.Main(chainProgram, chain.Commands()) },
	})
}

// quiet runs the tests, and discards the log of code that runs in the tests' own process.
type quiet struct{ *testing.M }

func (q quiet) Run() int {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	return q.M.Run()
}

// gateFD is the environment variable with the number of a file descriptor. A process reads the descriptor until the
// test closes its other end. So a hundred processes work at the same time, although to execute them takes longer than
// their work.
const gateFD = "IPAM_TEST_GATE"

func gate() {
	if fd, err := strconv.Atoi(os.Getenv(gateFD)); err == nil {
		io.Copy(io.Discard, os.NewFile(uintptr(fd), "gate"))
	}
}

// A node is a simulated instance with a namespace. Its processes find EC2 and metadata on its loopback. The links of
// its ENIs carry no packets.
type node struct {
	*simtest.Node
	conf map[string]any // the network configuration
	env  []string
	aws  aws.Options // for calls of the test's own process
	via  func(service string, h http.Handler) http.Handler

	mu      sync.Mutex
	pods    map[string]netip.Addr   // the address of each live pod's first interface
	further map[string][]netip.Addr // the addresses of their other interfaces
	cpu     time.Duration           // the CPU time of the processes of bursts
	given   string                  // an ENI that an operator has created for pods that ask for it; empty: none

	kind  kind              // of plugins
	ns    map[string]*nl.NS // of pods; nil if a path is enough for the plugins
	paths map[string]string // the paths of these namespaces
}

// subnetTags choose the pods' subnet.
var subnetTags = map[string]string{"kubernetes_kubelet": "true"}

// newNode launches an instance. Collections read all namespaces of the machine, so the instance has addresses that the
// machine and other tests are unlikely to have. The function via wraps the handlers of the services "ec2" and
// "metadata".
func newNode(t testing.TB, instanceType string, c ec2sim.Config, via func(string, http.Handler) http.Handler) *node {
	t.Helper()
	vpc := ec2sim.World(`
		vpc-1       10.213.0.0/16 100.113.0.0/16
		subnet-node 10.213.0.0/24
		subnet-pod  100.113.0.0/20 kubernetes_kubelet=true`)
	c.VPCs, c.Subnets = vpc.VPCs, vpc.Subnets
	n := &node{Node: simtest.NewNode(t), kind: alone, pods: map[string]netip.Addr{},
		further: map[string][]netip.Addr{}, via: via,
		conf: map[string]any{"cniVersion": "1.1.0", "name": "net", "type": program, "interfaceIndex": 1,
			"secGroupIds": []string{}, "subnetTags": subnetTags}}
	n.Launch(t, c, ec2sim.RunInstance{Type: instanceType, Subnet: "subnet-node"})
	mux := http.NewServeMux()
	mux.Handle("ec2/", n.EC2)
	mux.Handle("metadata/", n.Metadata())
	n.aws = aws.Options{EC2URL: "http://ec2", MetadataURL: "http://metadata", HTTP: ec2sim.Direct{Handler: mux}}
	n.env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=AKIDEXAMPLE",
		"AWS_SECRET_ACCESS_KEY=secret", "CNI_IPVLAN_VPC_STATE_DIR="+n.Dir,
		"AWS_METADATA_SERVICE_TIMEOUT=60", // this machine may be busy, and a repeated call is one more point for a kill
		"AWS_ENDPOINT_URL_EC2="+n.serve("ec2", n.EC2), "AWS_EC2_METADATA_SERVICE_ENDPOINT="+
			n.serve("metadata", n.Metadata()))
	return n
}

// serve makes the handler answer on the node's loopback, and returns the URL.
func (n *node) serve(service string, h http.Handler) (url string) {
	n.Helper()
	if n.via != nil {
		h = n.via(service, h)
	}
	return simtest.ServeIn(n, n.Host, "127.0.0.1:0", h)
}

// pool returns the node's pool, to prepare a test.
func (n *node) pool(policy lease.Policy) *ipam.Pool {
	return ipam.New(lease.Pool{Registry: n.Registry(), Host: n.Host, Policy: policy}, aws.New(n.aws))
}

// acquire gives pods addresses in the test's own process.
func (n *node) acquire(batch int, pods ...string) {
	n.Helper()
	p := n.pool(lease.Policy{MinIndex: 1, Families: []lease.Family{lease.IPv4}, SubnetTags: subnetTags,
		Provision: lease.ProvisionFull,
		Batch:     batch, ReuseWait: time.Minute, Timeout: time.Minute})
	for _, pod := range pods {
		a, err := p.Acquire(n.Context(), lease.Owner{Key: podKey(pod), NetNS: n.netns(pod)})
		if err != nil {
			n.Fatal(err)
		}
		n.pods[pod] = a.Addrs[0]
	}
}

func (n *node) end(pods ...string) {
	n.Helper()
	for _, pod := range pods {
		if err := n.pool(lease.Policy{}).End(n.Context(), podKey(pod)); err != nil {
			n.Fatal(err)
		}
		delete(n.pods, pod)
	}
}

func podKey(pod string) registry.Key {
	return registry.Key{Network: "net", Attachment: plugin.Attachment{ContainerID: pod, IfName: "eth0"}}
}

// netns returns the path of a pod's namespace. The ipam plugin only checks whether the path exists.
func (n *node) netns(pod string) string {
	n.Helper()
	if n.ns != nil {
		return n.namespace(pod)
	}
	path := filepath.Join(filepath.Dir(n.Dir), pod)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		n.Fatal(err)
	}
	return path
}

// cni returns a call of the node's plugin, or of the first plugin if the node has several.
func (n *node) cni(verb, pod string, more map[string]any) *exec.Cmd {
	n.Helper()
	return n.exec(n.kind[0], verb, pod, more)
}

// gc returns a registry-gc that releases what has been free for a minute.
func (n *node) gc() *exec.Cmd { return n.command(tool.Name, "registry-gc", "--free-after=1m") }

func (n *node) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(n.Context(), name, args...)
	cmd.Env = n.env
	cmd.Stdout, cmd.Stderr = new(bytes.Buffer), new(bytes.Buffer)
	return cmd
}

// start starts a command on the node.
func (n *node) start(cmd *exec.Cmd) {
	n.Helper()
	if err := n.Host.Do(cmd.Start); err != nil {
		n.Fatal(err)
	}
}

// run runs a command on the node, which must succeed.
func (n *node) run(cmd *exec.Cmd) {
	n.Helper()
	n.start(cmd)
	if err := cmd.Wait(); err != nil {
		n.Errorf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, cmd.Stdout, cmd.Stderr)
	}
}

// add runs an ADD, which must succeed, and records the pod's address.
func (n *node) add(pod string) {
	n.Helper()
	cmd := n.cni("ADD", pod, nil)
	n.run(cmd)
	n.got(pod, cmd)
}

// got records the address that an ADD has answered. No other pod may have it.
func (n *node) got(pod string, cmd *exec.Cmd) {
	n.Helper()
	var result types100.Result
	if err := json.Unmarshal(cmd.Stdout.(*bytes.Buffer).Bytes(), &result); err != nil || len(result.IPs) == 0 ||
		len(result.IPs) > 1 && n.conf["runtimeConfig"] == nil {
		n.Errorf("ADD of %s: %v: %s", pod, err, cmd.Stdout)
		return
	}
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP.To4())
		addrs = append(addrs, a)
	}
	n.has(pod, addrs...)
}

// has records the addresses that a pod has got, one for each interface.
func (n *node) has(pod string, addrs ...netip.Addr) {
	n.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for other := range n.pods {
		for _, a := range addrs {
			if other != pod && slices.Contains(n.addrs(other), a) {
				n.Errorf("%s and %s have %s", other, pod, a)
			}
		}
	}
	n.pods[pod], n.further[pod] = addrs[0], addrs[1:]
}

// addrs returns all addresses of a live pod.
func (n *node) addrs(pod string) []netip.Addr {
	return append([]netip.Addr{n.pods[pod]}, n.further[pod]...)
}
