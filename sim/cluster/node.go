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

// render executes the template of this name in the directory config.
func render(name string, values any) string {
	var b strings.Builder
	if err := templates.ExecuteTemplate(&b, name, values); err != nil {
		panic(err) // the templates and values are from this package
	}
	return b.String()
}

// NodeOptions are the configuration of a node.
type NodeOptions struct {
	Conflist []byte
	Type     string         // the instance type; default m5.xlarge, which has enough ENIs for all pools
	MaxPods  int            // default: the number that cni-tool maxpods prints
	IPv6     int            // number of IPv6 addresses of the boot ENI
	LogLevel string         // the log level of containerd; default: info
	Template LaunchTemplate // the instance also gets the ENIs of this template
	Bare     bool           // the node has none of our programs, and is not ready; MaxPods must be set
}

// suiteName is the name of our single plugin. The names of our other programs begin with it.
const suiteName = "cni-ipvlan-vpc-k8s"

// A Node is an instance with a kubelet. The cgroups of the containers are below the cgroup of the Node's machine.
type Node struct {
	*machine.Machine

	options    NodeOptions
	cluster    *Cluster
	poweredOff atomic.Bool
}

// nodeDirs are the directories that each node has for itself. Their files survive a reboot of the node.
var nodeDirs = []string{
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
	if err := o.Template.attachENIs(c.Fabric, i); err != nil {
		return nil, err
	}
	m, err := machine.Boot(i, name, c.pathVariable(), nodeDirs...)
	if err != nil {
		return nil, err
	}
	n := &Node{Machine: m, options: o, cluster: c}
	c.Nodes = append(c.Nodes, n)
	return n, n.start(ctx)
}

// RemoveNode deletes the pods of a node, removes the node from the cluster, and terminates the node's instance.
func (c *Cluster) RemoveNode(ctx context.Context, n *Node) error {
	_, undrained := c.Kubectl(ctx, "drain", "--force", "--ignore-daemonsets", "--delete-emptydir-data",
		"--timeout=5m", n.Name)
	c.Nodes = slices.DeleteFunc(c.Nodes, func(o *Node) bool { return o == n })
	err := errors.Join(undrained, n.Close())
	_, undeleted := c.Kubectl(ctx, "delete", "node", n.Name)
	return errors.Join(err, undeleted, c.Fabric.EC2.TerminateInstance(n.ID), n.Instance.Close())
}

func (n *Node) start(ctx context.Context) error {
	err := n.installOthers()
	if !n.options.Bare {
		err = errors.Join(err, n.installOurs(), n.Configure(ctx, n.options.Conflist))
	}
	if err := errors.Join(err, n.startContainerd(ctx), n.importImages(ctx)); err != nil {
		return err
	}
	return n.startKubelet(ctx)
}

// PowerOff ends the node at once, without a warning to its programs. EC2 then shows the instance as stopped.
func (n *Node) PowerOff() error {
	err := n.Off()
	n.Stop(false)
	n.poweredOff.Store(err == nil)
	return err
}

// IsOff reports whether the node is off: after PowerOff, and before the next PowerOn.
func (n *Node) IsOff() bool { return n.poweredOff.Load() }

// PowerOn starts the instance and the programs of a node that is off.
func (n *Node) PowerOn(ctx context.Context) error {
	n.Instance.Start()
	err := n.Reboot(ctx)
	n.poweredOff.Store(err != nil)
	return err
}

// Reboot reboots the node without a warning to its programs, and then starts the programs again.
func (n *Node) Reboot(ctx context.Context) error {
	if err := errors.Join(n.Machine.Reboot(), n.startContainerd(ctx)); err != nil {
		return err
	}
	return n.startKubelet(ctx)
}

// Configure installs the conflist of the node. It renames a new file to the conflist's name, so the new conflist
// replaces an older one in one step. If the conflist has our plugins, Configure first validates the conflist.
func (n *Node) Configure(ctx context.Context, conflist []byte) error {
	name := "10-" + n.Name + ".conflist"
	if err := n.WriteFile("/run/"+name, conflist, 0o644); err != nil {
		return err
	}
	if bytes.Contains(conflist, []byte(suiteName)) { // tests also use conflists of other plugins
		if _, err := n.Run(ctx, suiteName+"-tool", "validate", "/run/"+name); err != nil {
			return err
		}
	}
	installed := "/etc/cni/net.d/" + name
	if err := n.WriteFile(installed+".new", conflist, 0o644); err != nil {
		return err
	}
	return os.Rename(n.File(installed+".new"), n.File(installed))
}

func (n *Node) installOthers() error {
	peers := n.cluster.options.Peers
	return n.installPlugins(map[string]string{"portmap": peers, "ptp": peers, "host-local": peers,
		"loopback": n.cluster.options.Runtime})
}

// installOurs installs our plugins, the tool and our units.
func (n *Node) installOurs() error {
	return errors.Join(machine.InstallUnits(n.File("/"), n.cluster.options.Units, "cni-gc.timer"),
		n.Install(n.cluster.options.Plugins))
}

// Install replaces our plugins and the tool on the node with the programs in a directory. An earlier release may lack a
// plugin. Install then removes this plugin from the node.
func (n *Node) Install(dir string) error {
	files, errs := map[string]string{}, []error(nil)
	for _, p := range []string{"", "-grow", "-ipam", "-ipvlan", "-unnumbered-ptp", "-egress"} {
		if _, err := os.Stat(filepath.Join(dir, suiteName+p)); err == nil {
			files[suiteName+p] = dir
		} else if err := os.Remove(n.File("/opt/cni/bin/" + suiteName + p)); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	link := n.File("/usr/local/bin/cni-tool")
	return errors.Join(append(errs, n.installPlugins(files), os.RemoveAll(link),
		os.Symlink(filepath.Join(dir, suiteName+"-tool"), link))...)
}

// installPlugins copies programs to the node as new files, and then renames the new files. dirs has the directory of
// each program.
func (n *Node) installPlugins(dirs map[string]string) error {
	var errs []error
	for name, dir := range dirs {
		content, err := os.ReadFile(filepath.Join(dir, name))
		errs = append(errs, err)
		if err == nil {
			file := "/opt/cni/bin/" + name
			errs = append(errs, n.WriteFile(file+".new", content, 0o755), os.Rename(n.File(file+".new"), n.File(file)))
		}
	}
	return errors.Join(errs...)
}

// ImportLayout imports the images of an OCI layout, which is a directory. The names of the images begin with the
// argument "name" (ctr image import --base-name).
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

// startContainerd starts containerd and waits until it answers.
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
	if err := n.cluster.keepRunning(n.Machine, "containerd", "--config="+config); err != nil {
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

// ctr returns a command that runs ctr, the client of containerd.
func (n *Node) ctr(ctx context.Context, args ...string) *exec.Cmd {
	return n.Command(ctx, "ctr", append([]string{"--address=/run/containerd/containerd.sock", "--namespace=k8s.io"},
		args...)...)
}

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
		n.cluster.keepRunning(n.Machine, "kubelet", "--config="+kubelet, "--kubeconfig="+certs.kubeconfig(),
			"--hostname-override="+n.Name,
			"--node-ip="+n.nodeIPs(), "--v=2"),
		n.cluster.keepRunning(n.Machine, "kube-proxy", "--config="+proxy))
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
	out, err := n.Run(ctx, suiteName+"-tool", "maxpods")
	return strings.TrimSpace(out), err
}
