// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// A size is an instance type of a node. The field podLimit is how many pods fit on the node without delegated prefixes
// (EC2 user guide, "Maximum IP addresses per network interface"). If the field interfaceIndex is 0, the boot ENI also
// serves pods.
type size struct {
	ec2sim.InstanceType
	podLimit       int
	interfaceIndex int // the key interfaceIndex of the conflist
}

var (
	small = size{ec2sim.InstanceType{Name: "m5.4xlarge", ENIs: 8, IPv4PerENI: 30, IPv6PerENI: 30}, 7 * 30, 1}
	large = size{ec2sim.InstanceType{Name: "c8i.48xlarge", ENIs: 24, IPv4PerENI: 64, IPv6PerENI: 64}, 24*64 - 1, 0}
	cards = size{ec2sim.InstanceType{Name: "p4d.24xlarge", ENIs: 60, IPv4PerENI: 50, IPv6PerENI: 50,
		Cards: []int{15, 15, 15, 15}}, (60-3)*50 - 1, 0}
)

const maxConcurrency = 64

// nodeSize returns the size for the options: small if all pods fit on a small node.
func (o options) nodeSize() size {
	switch {
	case o.cards:
		return cards
	case o.pods <= small.podLimit:
		return small
	}
	return large
}

// A world is a simulated VPC, and a tmpfs for the files that a real node has in /run and /var/lib, so that no chain
// waits for a disk.
type world struct {
	*vpcsim.Fabric
	size
	dir   string
	nodes []*node
}

func newWorld(nodes size) (*world, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=700"); err != nil {
		return nil, errors.Join(fmt.Errorf("mount a tmpfs on %s: %w", dir, err), os.Remove(dir))
	}
	w := &world{dir: dir, size: nodes}
	// subnet-nodes has enough addresses for the delegated prefixes of two boot ENIs.
	c := ec2sim.World(`
		vpc-1        10.0.0.0/16
		subnet-nodes 10.0.0.0/20
		subnet-pods  10.0.16.0/20 kubernetes_kubelet=true`)
	c.InstanceTypes = []ec2sim.InstanceType{small.InstanceType, large.InstanceType, cards.InstanceType}
	w.Fabric, err = vpcsim.New(c)
	if err != nil {
		return nil, errors.Join(err, w.removeDir())
	}
	return w, nil
}

func (w *world) close() error { return errors.Join(w.Fabric.Close(), w.removeDir()) }

func (w *world) removeDir() error { return errors.Join(syscall.Unmount(w.dir, 0), os.Remove(w.dir)) }

// A node is an instance on which chains are measured.
type node struct {
	*vpcsim.Instance
	world    *world
	dir      string
	env      []string // of the plugins
	podCount int      // the number of pods that the node has had so far
}

func (w *world) newNode(name string) (*node, error) {
	i, err := w.RunInstance(name, ec2sim.RunInstance{Type: w.Name, Subnet: "subnet-nodes"})
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(w.dir, name)
	env := append(i.Env(), "CNI_IPVLAN_VPC_STATE_DIR="+filepath.Join(dir, "run"))
	n := &node{Instance: i, world: w, dir: dir, env: env}
	w.nodes = append(w.nodes, n)
	return n, os.Mkdir(dir, 0o700)
}

// reportCalls adds the calls of this measurement to the report.
func (w *world) reportCalls(r *report) {
	var metadata []string
	for _, n := range w.nodes {
		metadata = append(metadata, n.MetadataCalls()...)
	}
	r.recordCalls(w.EC2.Calls(), metadata)
}

// A pod is a namespace for which chains are executed.
type pod struct {
	*vpcsim.Namespace
	id   string
	args [][2]string
}

// newPods creates namespaces that no chain has used yet. At the end, world.close closes those that are still open.
func (n *node) newPods(count int) (pods, error) {
	var made pods
	for range count {
		n.podCount++
		name := fmt.Sprintf("%s-pod%d", n.Name, n.podCount)
		ns, err := n.world.NewNamespace(name)
		if err != nil {
			return nil, err
		}
		made = append(made, pod{ns, name, [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "bench"},
			{"K8S_POD_NAME", name}}})
	}
	return made, nil
}

type pods []pod

func (ps pods) close() (err error) {
	for _, p := range ps {
		err = errors.Join(err, p.Close())
	}
	return err
}
