// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"text/template"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
)

//go:embed config
var configs embed.FS

var templates = template.Must(template.ParseFS(configs, "config/*"))

// render returns a file of config with its values.
func render(name string, values any) string {
	var b strings.Builder
	if err := templates.ExecuteTemplate(&b, name, values); err != nil {
		panic(err) // file and values are ours
	}
	return b.String()
}

// NodeOptions are the configuration of a node.
type NodeOptions struct {
	Conflist []byte
	Type     string         // of the instance; m5.xlarge by default, with an ENI for a pool whatever the scheduler does
	MaxPods  int            // what cni-tool maxpods prints by default
	IPv6     int            // number of IPv6 addresses of the boot ENI
	LogLevel string         // of containerd; info by default
	Template LaunchTemplate // further ENIs
	Bare     bool           // it has nothing of ours, and is not ready; MaxPods is to be given
}

// ours is the name of the plugin that is all three in one process, and how the other programs' names begin.
const ours = "cni-ipvlan-vpc-k8s"

// A Node is an instance with a kubelet. Its containers have their cgroups below the machine's.
type Node struct {
	*machine.Machine

	options NodeOptions
	cluster *Cluster
	off     atomic.Bool
}

// own are the directories that are the node's own, and survive a reboot.
var own = []string{
	"/etc/cni", "/etc/containerd", "/etc/systemd", "/opt", "/usr/local/bin", "/var/lib/cni", "/var/lib/containerd",
	"/var/lib/kubelet", "/var/lib/kube-proxy", "/var/log",
	"/usr/libexec/kubernetes",
}

// AddNode launches an instance and starts its kubelet, which registers the node.
func (c *Cluster) AddNode(ctx context.Context, name string, o NodeOptions) (*Node, error) {
	if o.Type == "" {
		o.Type = "m5.xlarge"
	}
	i, err := c.Fabric.RunInstance(name, ec2sim.RunInstance{Type: o.Type, Subnet: "subnet-nodes", IPv6: o.IPv6})
	if err != nil {
		return nil, err
	}
	if err := o.Template.attach(c.Fabric, i); err != nil {
		return nil, err
	}
	m, err := machine.Boot(i, name, c.path(), own...)
	if err != nil {
		return nil, err
	}
	n := &Node{Machine: m, options: o, cluster: c}
	c.Nodes = append(c.Nodes, n)
	return n, n.start(ctx)
}

// RemoveNode deletes the pods of a node, removes it from the cluster, and terminates its instance.
func (c *Cluster) RemoveNode(ctx context.Context, n *Node) error {
	_, undrained := c.Kubectl(ctx, "drain", "--force", "--ignore-daemonsets", "--delete-emptydir-data",
		"--timeout=5m", n.Name)
	c.Nodes = slices.DeleteFunc(c.Nodes, func(o *Node) bool { return o == n })
	err := errors.Join(undrained, n.Close())
	_, undeleted := c.Kubectl(ctx, "delete", "node", n.Name)
	return errors.Join(err, undeleted, c.Fabric.EC2.TerminateInstance(n.ID), n.Instance.Close())
}

// start installs the plugins and starts the node's programs.
func (n *Node) start(ctx context.Context) error {
	err := n.installOthers()
	if !n.options.Bare {
		err = errors.Join(err, n.install(), n.Configure(ctx, n.options.Conflist))
	}
	if err := errors.Join(err, n.startContainerd(ctx), n.importImages(ctx)); err != nil {
		return err
	}
	return n.startKubelet(ctx)
}

// PowerOff ends the node at once, without a warning to its programs. EC2 says that its instance is stopped.
func (n *Node) PowerOff() error {
	err := n.Off()
	n.Stop(false)
	n.off.Store(err == nil)
	return err
}

// IsOff reports whether the node is off, by EC2, too.
func (n *Node) IsOff() bool { return n.off.Load() }

// PowerOn starts the instance of a node that is off, and its programs.
func (n *Node) PowerOn(ctx context.Context) error {
	n.Instance.Start()
	err := n.Reboot(ctx)
	n.off.Store(err != nil)
	return err
}

// Reboot reboots the node, without a warning to its programs, and starts them again.
func (n *Node) Reboot(ctx context.Context) error {
	if err := errors.Join(n.Machine.Reboot(), n.startContainerd(ctx)); err != nil {
		return err
	}
	return n.startKubelet(ctx)
}

// Configure installs or replaces the conflist as an administrator does: if it has no mistake, and by a rename.
func (n *Node) Configure(ctx context.Context, conflist []byte) error {
	name := "10-" + n.Name + ".conflist"
	if err := n.WriteFile("/run/"+name, conflist, 0o644); err != nil {
		return err
	}
	if bytes.Contains(conflist, []byte(ours)) { // others are compared with ours
		if _, err := n.Run(ctx, ours+"-tool", "validate", "/run/"+name); err != nil {
			return err
		}
	}
	installed := "/etc/cni/net.d/" + name
	if err := n.WriteFile(installed+".new", conflist, 0o644); err != nil {
		return err
	}
	return os.Rename(n.File(installed+".new"), n.File(installed))
}

// installOthers puts the plugins of others in place.
func (n *Node) installOthers() error {
	peers := n.cluster.options.Peers
	return n.installPlugins(map[string]string{"portmap": peers, "ptp": peers, "host-local": peers,
		"loopback": n.cluster.options.Runtime})
}

// install puts our plugins, the tool and our units in place.
func (n *Node) install() error {
	return errors.Join(machine.InstallUnits(n.File("/"), n.cluster.options.Units, "cni-gc.timer"),
		n.Install(n.cluster.options.Plugins))
}

// Install puts our plugins and the tool of a directory in place of those that the node has. A release need not have all
// of the plugins: those that it lacks are removed.
func (n *Node) Install(dir string) error {
	files, errs := map[string]string{}, []error(nil)
	for _, p := range []string{"", "-grow", "-ipam", "-ipvlan", "-unnumbered-ptp", "-egress"} {
		if _, err := os.Stat(filepath.Join(dir, ours+p)); err == nil {
			files[ours+p] = dir
		} else if err := os.Remove(n.File("/opt/cni/bin/" + ours + p)); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	link := n.File("/usr/local/bin/cni-tool")
	return errors.Join(append(errs, n.installPlugins(files), os.RemoveAll(link),
		os.Symlink(filepath.Join(dir, ours+"-tool"), link))...)
}

// installPlugins copies programs from directories of this machine, each by a rename.
func (n *Node) installPlugins(from map[string]string) error {
	var errs []error
	for name, dir := range from {
		content, err := os.ReadFile(filepath.Join(dir, name))
		errs = append(errs, err)
		if err == nil {
			file := "/opt/cni/bin/" + name
			errs = append(errs, n.WriteFile(file+".new", content, 0o755), os.Rename(n.File(file+".new"), n.File(file)))
		}
	}
	return errors.Join(errs...)
}

// ImportLayout imports the images of an OCI layout, whose names begin with this one.
func (n *Node) ImportLayout(ctx context.Context, dir, name string) error {
	tar := exec.CommandContext(ctx, "tar", "-C", dir, "-c", ".")
	archive, err := tar.StdoutPipe()
	if err != nil {
		return err
	}
	if err := tar.Start(); err != nil {
		return err
	}
	c := n.ctr(ctx, "image", "import", "--base-name="+name, "-")
	c.Stdin = archive
	_, err = machine.Output(n.Name, c)
	return errors.Join(err, tar.Wait())
}

// startContainerd starts it and waits until it answers.
func (n *Node) startContainerd(ctx context.Context) error {
	if err := n.cluster.giveCertificates(n.Machine); err != nil {
		return err
	}
	const config = "/etc/containerd/config.toml"
	if err := n.WriteFile(config,
		[]byte(render("containerd.toml", map[string]string{"Pause": Pause,
			"LogLevel": cmp.Or(n.options.LogLevel, "info")})), 0o644); err != nil {
		return err
	}
	if err := n.cluster.keep(n.Machine, "containerd", "--config="+config); err != nil {
		return err
	}
	answers := func() error {
		_, err := machine.Output(n.Name, n.ctr(ctx, "version"))
		return err
	}
	return Await(ctx, 5*time.Minute, answers)
}

func (n *Node) importImages(ctx context.Context) error {
	for _, archive := range n.cluster.archives() {
		if err := n.importImage(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) importImage(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	c := n.ctr(ctx, "image", "import", "-")
	c.Stdin = f
	_, err = machine.Output(n.Name, c)
	return err
}

// ctr is the client of containerd.
func (n *Node) ctr(ctx context.Context, args ...string) *exec.Cmd {
	return n.Command(ctx, "ctr", append([]string{"--address=/run/containerd/containerd.sock", "--namespace=k8s.io"},
		args...)...)
}

// startKubelet starts kubelet and kube-proxy.
func (n *Node) startKubelet(ctx context.Context) error {
	pods, err := n.maxPods(ctx)
	if err != nil {
		return err
	}
	certs := n.cluster.certs
	values := map[string]string{"PKI": certs.dir, "DNS": DNS.String(), "MaxPods": pods,
		"Proxy": n.cluster.options.Proxy, "Name": n.Name}
	const kubelet, proxy = "/run/kubelet.yaml", "/run/kube-proxy.yaml"
	return errors.Join(
		n.WriteFile("/run/resolv.conf", []byte("nameserver 10.0.0.2\n"), 0o644),
		n.WriteFile(kubelet, []byte(render("kubelet.yaml", values)), 0o644),
		n.WriteFile(proxy, []byte(render("kube-proxy.yaml", values)), 0o644),
		n.cluster.keep(n.Machine, "kubelet", "--config="+kubelet, "--kubeconfig="+certs.kubeconfig(),
			"--hostname-override="+n.Name,
			"--node-ip="+n.nodeIPs(), "--v=2"),
		n.cluster.keep(n.Machine, "kube-proxy", "--config="+proxy))
}

func (n *Node) nodeIPs() string {
	if a := n.Addr6(); a.IsValid() {
		return fmt.Sprintf("%s,%s", n.Addr(), a)
	}
	return n.Addr().String()
}

func (n *Node) maxPods(ctx context.Context) (string, error) {
	if n.options.MaxPods != 0 {
		return fmt.Sprint(n.options.MaxPods), nil
	}
	out, err := n.Run(ctx, ours+"-tool", "maxpods")
	return strings.TrimSpace(out), err
}
