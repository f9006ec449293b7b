// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package cluster runs a Kubernetes cluster on the simulated VPC. It uses released versions of etcd, the control plane,
// containerd, kubelet, kube-proxy and CoreDNS. It installs our plugins as on a real node.
//
//	master    10.0.1.0/24   etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//	node1 ... 10.0.0.0/24   containerd, kubelet, kube-proxy; pods from 100.64.0.0/16
//	peer      10.1.0.0/24   a host in a peered VPC
//
// All machines share one kernel. The master and the nodes are machines of package machine. The package needs root,
// cgroup v2 and a kernel with ipvlan and overlayfs. nl/nltest/vm/exec runs a VM with such a kernel.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// Options are the settings of a cluster. The Makefile puts the programs into these directories.
type Options struct {
	Plugins  string // directory of our programs
	Programs string // directory of Kubernetes, etcd and CoreDNS
	Runtime  string // directory of containerd, ctr, runc and pause
	Units    string // directory of our units
	Peers    string // directory of portmap and other CNI plugins
	Logs     string // directory for the output of the programs
	Proxy    string // mode of kube-proxy: nftables or iptables
}

// services and services6 are the ranges of the Services' addresses. apiAddr and DNS are the Service addresses of the
// API server and of the name server.
var (
	services  = netip.MustParsePrefix("172.20.0.0/16")
	services6 = netip.MustParsePrefix("fd00:20::/112")
	apiAddr   = netip.MustParseAddr("172.20.0.1")
	DNS       = netip.MustParseAddr("172.20.0.10")
)

const apiPort = 6443

// A Cluster is a control plane and its nodes in a simulated VPC.
type Cluster struct {
	Fabric *vpcsim.Fabric
	Master *machine.Machine
	Nodes  []*Node
	Peer   *vpcsim.Instance

	options Options
	dir     string // has the certificates and images; Close removes it
	certs   certificates
}

// Start starts the VPC, the control plane, and a node for each NodeOptions. It returns when all nodes are Ready.
func Start(ctx context.Context, o Options, nodes ...NodeOptions) (*Cluster, error) {
	c := &Cluster{options: o}
	if err := c.start(ctx, nodes); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, nodes []NodeOptions) (err error) {
	if err := c.options.makePathsAbsolute(); err != nil {
		return err
	}
	if c.dir, err = os.MkdirTemp("/run", "cluster"); err != nil {
		return err
	}
	if c.Fabric, err = vpcsim.New(vpc()); err != nil {
		return err
	}
	if c.Peer, err = c.Fabric.RunInstance("peer", ec2sim.RunInstance{Type: "m5.large",
		Subnet: "subnet-peer"}); err != nil {
		return err
	}
	if err := c.startMaster(); err != nil {
		return err
	}
	if err := c.writeImages(); err != nil {
		return err
	}
	for i, n := range nodes {
		if _, err := c.AddNode(ctx, fmt.Sprintf("node%d", i+1), n); err != nil {
			return err
		}
	}
	if err := c.awaitAPIServer(ctx); err != nil {
		return err
	}
	if err := c.startManagers(); err != nil {
		return err
	}
	if err := c.NodesReady(ctx); err != nil {
		return err
	}
	return c.Apply(ctx, render("coredns.yaml", map[string]string{"CoreDNS": CoreDNS, "DNS": DNS.String()}))
}

// makePathsAbsolute makes all paths of the Options absolute, because each program has its own working directory. It
// also creates Logs.
func (o *Options) makePathsAbsolute() (err error) {
	for _, p := range []*string{&o.Plugins, &o.Programs, &o.Runtime, &o.Units, &o.Peers, &o.Logs} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	return os.MkdirAll(o.Logs, 0o755)
}

func vpc() ec2sim.Config {
	c := ec2sim.World(`
		vpc-main      10.0.0.0/16 100.64.0.0/16 2001:db8:0:100::/56
		subnet-nodes  10.0.0.0/24 2001:db8:0:100::/64 public
		subnet-master 10.0.1.0/24 public
		subnet-pods1  100.64.0.0/20 2001:db8:0:101::/64 kubernetes_kubelet=true
		subnet-pods2  100.64.16.0/20 2001:db8:0:102::/64 kubernetes_kubelet=true
		vpc-peer      10.1.0.0/16
		subnet-peer   10.1.0.0/24
		pcx-1         vpc-main vpc-peer`)
	c.InstanceTypes = []ec2sim.InstanceType{{Name: "t3.nano", ENIs: 2, IPv4PerENI: 2, IPv6PerENI: 2},
		{Name: "t9.three", ENIs: 2, IPv4PerENI: 3, IPv6PerENI: 3},
		{Name: "t9.forty", ENIs: 2, IPv4PerENI: 40, IPv6PerENI: 40}}
	return c
}

// startMaster starts etcd and the API server.
func (c *Cluster) startMaster() error {
	i, err := c.Fabric.RunInstance("master", ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-master"})
	if err != nil {
		return err
	}
	if c.certs, err = newCertificates(filepath.Join(c.dir, "pki"), i.Addr(), apiAddr); err != nil {
		return err
	}
	if c.Master, err = machine.Boot(i, "master", c.pathVariable(), "/var/lib/etcd"); err != nil {
		return err
	}
	if err := c.giveCertificates(c.Master); err != nil {
		return err
	}
	const etcd = "http://127.0.0.1:2379"
	return errors.Join(
		c.keepRunning(c.Master, "etcd", "--data-dir=/var/lib/etcd", "--unsafe-no-fsync", "--listen-client-urls="+etcd,
			"--advertise-client-urls="+etcd),
		c.keepRunning(c.Master, "kube-apiserver", "--etcd-servers="+etcd, "--advertise-address="+i.Addr().String(),
			fmt.Sprint("--secure-port=", apiPort),
			fmt.Sprintf("--service-cluster-ip-range=%s,%s", services, services6),
			"--tls-cert-file="+c.certs.file("apiserver.crt"), "--tls-private-key-file="+c.certs.file("apiserver.key"),
			"--client-ca-file="+c.certs.file("ca.crt"),
			"--service-account-key-file="+c.certs.file("sa.pub"), "--service-account-signing-key-file="+
				c.certs.file("sa.key"),
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--kubelet-client-certificate="+c.certs.file("admin.crt"), "--kubelet-client-key="+
				c.certs.file("admin.key"),
			"--kubelet-preferred-address-types=InternalIP", "--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
			"--profiling=false"))
}

// startManagers starts kube-controller-manager and kube-scheduler. Both need an API server that answers.
func (c *Cluster) startManagers() error {
	config := "--kubeconfig=" + c.certs.kubeconfig()
	return errors.Join(
		c.keepRunning(c.Master, "kube-controller-manager", config, "--service-account-private-key-file="+
			c.certs.file("sa.key"),
			"--root-ca-file="+c.certs.file("ca.crt"), "--leader-elect=false", "--profiling=false"),
		c.keepRunning(c.Master, "kube-scheduler", config, "--leader-elect=false", "--profiling=false"))
}

func (c *Cluster) giveCertificates(m *machine.Machine) error {
	return os.CopyFS(m.File(c.certs.dir), os.DirFS(c.certs.dir))
}

func (c *Cluster) pathVariable() []string {
	return []string{fmt.Sprintf("PATH=%s:%s:%s:%s", c.options.Plugins, c.options.Programs, c.options.Runtime,
		os.Getenv("PATH"))}
}

// keepRunning starts a program on a machine, and restarts the program each time it ends. The program's log is
// MACHINE-PROGRAM.log.
func (c *Cluster) keepRunning(m *machine.Machine, name string, args ...string) error {
	return m.Keep(filepath.Join(c.options.Logs, m.Name+"-"+name+".log"), name, args...)
}

// awaitAPIServer waits until the API server is ready.
func (c *Cluster) awaitAPIServer(ctx context.Context) error {
	return Await(ctx, 10*time.Minute, func() error {
		_, err := c.Kubectl(ctx, "get", "--raw", "/readyz")
		return err
	})
}

// NodesReady waits until all nodes are Ready.
func (c *Cluster) NodesReady(ctx context.Context) error {
	return Await(ctx, 10*time.Minute, func() error {
		out, err := c.Kubectl(ctx, "get", "nodes", "--no-headers")
		if err == nil && strings.Count(out, " Ready") < len(c.Nodes) {
			err = fmt.Errorf("want %d nodes Ready:\n%s", len(c.Nodes), out)
		}
		return err
	})
}

// Kubeconfig returns the path of an administrator's kubeconfig. The file has this path on all machines.
func (c *Cluster) Kubeconfig() string { return c.certs.kubeconfig() }

// KubeletConfig writes a kubeconfig with the permissions of a node's kubelet, and returns the path of this kubeconfig.
// A kubelet may change only its own node. Only machines that start after this call have the kubeconfig.
func (c *Cluster) KubeletConfig(node string) (string, error) {
	return c.certs.writeNodeCertificate(node)
}

// Kubectl runs kubectl on the master, as an administrator, and returns its standard output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return machine.Output("master", c.kubectl(ctx, args...))
}

func (c *Cluster) kubectl(ctx context.Context, args ...string) *exec.Cmd {
	return c.Master.Command(ctx, "kubectl", append([]string{"--kubeconfig=" + c.certs.kubeconfig()}, args...)...)
}

// Apply applies objects, as YAML or JSON. kubectl does not validate the objects. For a validation, kubectl would ask
// the API server for the schema of all kinds, and a busy API server would answer too late.
func (c *Cluster) Apply(ctx context.Context, objects string, flags ...string) error {
	k := c.kubectl(ctx, append([]string{"apply", "--validate=ignore", "-f", "-"}, flags...)...)
	k.Stdin = strings.NewReader(objects)
	_, err := machine.Output("master", k)
	return err
}

// Await calls attempt again and again until it returns no error. After the timeout, Await returns the last error.
func Await(ctx context.Context, timeout time.Duration, attempt func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := attempt()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %v: %w", timeout, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Close ends the cluster, and removes everything that the cluster has made, except the logs. A second Close does
// nothing.
func (c *Cluster) Close() (err error) {
	for _, n := range c.Nodes {
		err = errors.Join(err, n.Close())
	}
	if c.Master != nil {
		err = errors.Join(err, c.Master.Close())
	}
	if c.Fabric != nil {
		err = errors.Join(err, c.Fabric.Close())
	}
	if c.dir != "" {
		err = errors.Join(err, os.RemoveAll(c.dir))
	}
	return err
}
