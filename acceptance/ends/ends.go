// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ends implements the program that the acceptance test runs on each instance. The program makes pods with the
// installed plugins, as a container runtime does, and sends packets between ends: the pods and the instance. The test
// calls the methods of a [Node] through net/rpc, over an SSH session. When the session closes, the program removes the
// namespaces of its pods and exits.
package ends

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// Port is the TCP and UDP port at which all ends answer.
const Port = 8080

// Name is the name of the [Node] in net/rpc. A client writes it before the name of a method, as in "Node.Add".
const Name = "Node"

// A Setup is the argument of [Node.Start]. It has the paths of files on the instance, and environment variables for the
// suite's programs.
type Setup struct {
	Env      []string // credentials for the plugins and the tool
	BinDir   string   // the directory of the plugins
	Conflist string   // the network configuration
	Tool     string   // the suite's tool
	StateDir string   // the cache directory of libcni
}

// A Pod is a pod that the program has made.
type Pod struct {
	Name string
	Addr netip.Addr
}

// A Call describes packets from one end to the address of another end.
type Call struct {
	From    string // the name of a pod; empty: the instance
	Network string // ping, tcp or udp
	To      netip.AddrPort
}

// A Fetch describes an HTTP GET request from an end. The program connects to the address in the field To, and does not
// resolve the URL's host name.
type Fetch struct {
	From    string
	URL     string
	To      netip.AddrPort
	Timeout time.Duration
}

// A Service is a Kubernetes Service with one backend: see Node.Proxy.
type Service struct{ Addr, Backend netip.AddrPort }

// A Node has the methods that the test calls through net/rpc. The test makes one call at a time.
type Node struct {
	setup Setup
	here  *vpcsim.Namespace
	pods  map[string]*vpcsim.Namespace
	cni   *libcni.CNIConfig
	list  *libcni.NetworkConfigList
}

// Serve answers calls of the methods of a [Node] until the test closes the connection. It then removes the namespaces
// of the remaining pods.
func Serve(c io.ReadWriteCloser) error {
	ns, err := nl.Node()
	if err != nil {
		return err
	}
	n := &Node{here: &vpcsim.Namespace{NS: ns}, pods: map[string]*vpcsim.Namespace{}}
	s := rpc.NewServer()
	if err := s.RegisterName(Name, n); err != nil {
		return err
	}
	s.ServeConn(c)
	for _, p := range n.pods {
		err = errors.Join(err, p.Close())
	}
	return err
}

// Start reads the conflist, and checks that the kernel has ipvlan and that the plugins support the conflist's version.
// After Start, the instance answers at Port.
func (n *Node) Start(s Setup, done *bool) error {
	for _, e := range s.Env {
		name, value, _ := strings.Cut(e, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	list, err := libcni.NetworkConfFromFile(s.Conflist)
	if err != nil {
		return err
	}
	n.setup, n.list = s, list
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{s.BinDir}, s.StateDir, nil)
	if err := (nl.IPVlan{}).Supported(n.here.NS); err != nil {
		return fmt.Errorf("the kernel of the instance has no ipvlan: %w", err)
	}
	if _, err := n.cni.ValidateNetworkList(context.Background(), list); err != nil {
		return err
	}
	*done = true
	return n.here.Answer(Port)
}

// Add makes a pod, which answers at Port.
func (n *Node) Add(name string, p *Pod) error {
	ns, err := vpcsim.MakeNamespace(name, filepath.Base(n.nsPath(name)))
	if err != nil {
		return err
	}
	n.pods[name] = ns
	r, err := n.cni.AddNetworkList(context.Background(), n.list, n.runtimeConf(name))
	if err != nil {
		return fmt.Errorf("ADD %s: %w", name, err)
	}
	result, err := types100.GetResult(r)
	if err != nil {
		return fmt.Errorf("ADD %s: %w", name, err)
	}
	if len(result.IPs) != 1 {
		return fmt.Errorf("ADD %s: the result has %d addresses, want one", name, len(result.IPs))
	}
	a, _ := netip.AddrFromSlice(result.IPs[0].Address.IP)
	*p = Pod{name, a.Unmap()}
	return ns.Answer(Port)
}

// Check calls the plugins with the CNI verb CHECK for a pod.
func (n *Node) Check(name string, done *bool) error {
	*done = true
	return n.cni.CheckNetworkList(context.Background(), n.list, n.runtimeConf(name))
}

// Del deletes a pod as a runtime does: its network first, then its namespace.
func (n *Node) Del(name string, done *bool) error {
	*done = true
	if err := n.cni.DelNetworkList(context.Background(), n.list, n.runtimeConf(name)); err != nil {
		return fmt.Errorf("DEL %s: %w", name, err)
	}
	ns := n.pods[name]
	delete(n.pods, name)
	return ns.Close()
}

func (n *Node) nsPath(pod string) string { return filepath.Join("/run/netns", "acceptance-"+pod) }

func (n *Node) runtimeConf(pod string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: "acceptance-" + pod, NetNS: n.nsPath(pod), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", pod}}}
}

// namespaceOf returns the network namespace of a pod, or that of the instance if the name is empty.
func (n *Node) namespaceOf(name string) (*vpcsim.Namespace, error) {
	if name == "" {
		return n.here, nil
	}
	if p, ok := n.pods[name]; ok {
		return p, nil
	}
	return nil, fmt.Errorf("no pod %s on this instance", name)
}

// Call sends packets, and returns the source address that the other end saw. For a ping, it returns the zero AddrPort.
func (n *Node) Call(c Call, seen *netip.AddrPort) error {
	from, err := n.namespaceOf(c.From)
	if err != nil {
		return err
	}
	if c.Network == "ping" {
		return from.Ping(c.To.Addr())
	}
	*seen, err = from.Call(c.Network, c.To)
	return err
}

// Fetch makes a GET request, and returns the body of the answer, whatever the HTTP status is.
func (n *Node) Fetch(f Fetch, body *string) error {
	from, err := n.namespaceOf(f.From)
	if err != nil {
		return err
	}
	var c net.Conn
	err = from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", f.To.String(), f.Timeout)
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	dialled := func(context.Context, string, string) (net.Conn, error) { return c, nil }
	client := http.Client{Timeout: f.Timeout, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialled}}
	a, err := client.Get(f.URL)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	b, err := io.ReadAll(io.LimitReader(a.Body, 1<<16))
	*body = string(b)
	return err
}

// State returns the links, addresses, routes, rules and nftables tables of the instance, as lines of text.
func (n *Node) State(_ bool, lines *[]string) (err error) {
	*lines, err = vpcsim.State(n.here.NS)
	return err
}

// Tool runs the suite's tool with these arguments, and returns its output.
func (n *Node) Tool(args []string, output *string) error {
	out, err := exec.Command(n.setup.Tool, args...).CombinedOutput()
	*output = string(out)
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(n.setup.Tool), strings.Join(args, " "), err, out)
	}
	return nil
}

// Proxy adds rules for these Services to the instance, as kube-proxy does. The rules replace the rules of the previous
// call of Proxy. Without Services, Proxy only removes the rules.
func (n *Node) Proxy(services []Service, done *bool) error {
	*done = true
	c := nl.Chain{Name: "services", Type: "nat", Hook: "prerouting", Priority: -100}
	for _, s := range services {
		c.Rules = append(c.Rules, nl.NFRule{nl.DAddr(netip.PrefixFrom(s.Addr.Addr(), s.Addr.Addr().BitLen())),
			nl.DPort("tcp", s.Addr.Port(), s.Addr.Port()), nl.DNAT(s.Backend)})
	}
	w := nl.Wiring{{NS: n.here.NS, Object: nl.Table{Family: "ip", Name: "acceptance", Chains: []nl.Chain{c}}}}
	if len(services) == 0 {
		return w.Del()
	}
	return w.Add()
}
