// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// An ours is a node with the real code of package ipam. Each call of a method simulates a process. In a bubble of
// testing/synctest, no time passes while a goroutine waits in the kernel. So processes take the lock "grow" in turns by
// the channel turn, and not by flock(2).
type ours struct {
	*place
	*region
	way      way
	host     *host
	instance *ec2sim.Instance
	dir      string        // directory of the registry
	queue    chan struct{} // held by the ADD that asks EC2; other ADDs wait
	turn     chan struct{} // the lock "grow"
	owners   *owners

	filling sync.Mutex
}

// An owners records which pod has which address, and collects violations.
type owners struct {
	mu    sync.Mutex
	pods  map[netip.Addr]string
	addrs map[string][]netip.Addr
	bad   []string
}

func newOwners() *owners {
	return &owners{pods: map[netip.Addr]string{}, addrs: map[string][]netip.Addr{}}
}

// gets records the addresses that an ADD has returned.
func (o *owners) gets(pod string, addrs []netip.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range addrs {
		if other, taken := o.pods[a]; taken && other != pod {
			o.bad = append(o.bad, fmt.Sprintf("%s has %s, which %s has", pod, a, other))
		}
		o.pods[a] = pod
	}
	o.addrs[pod] = addrs
}

// loses records that a DEL of the pod begins.
func (o *owners) loses(pod string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range o.addrs[pod] {
		delete(o.pods, a)
	}
	delete(o.addrs, pod)
}

// launch starts the instance. If the way has a launch template with an ENI, EC2 attaches this ENI without a call of the
// node.
func (n *ours) launch() error {
	i, err := n.sim.RunInstance(ec2sim.RunInstance{Type: cmp.Or(n.way.instance, instanceType), Subnet: "subnet-nodes"})
	if err != nil {
		return err
	}
	n.instance, n.host = i, n.hostOf(i.ID)
	if n.way.launched > 0 {
		return n.attachLaunched()
	}
	return nil
}

// attachLaunched attaches the launch template's ENI, which has prefixes, to the instance.
func (n *ours) attachLaunched() error {
	token := "launch-" + n.instance.ID
	err := n.sim.Operate("CreateNetworkInterface", map[string]string{"SubnetId": podSubnet(n.index % podSubnets),
		"Description":     token,
		"Ipv4PrefixCount": fmt.Sprint(n.way.launched)})
	if err != nil {
		return err
	}
	all := n.sim.ENIs()
	return n.sim.Operate("AttachNetworkInterface", map[string]string{"NetworkInterfaceId": all[len(all)-1].ID,
		"InstanceId": n.instance.ID, "DeviceIndex": "1"})
}

// process opens the registry and the node's namespace, as each process of the plugin does.
func (n *ours) process() (*ipam.Pool, error) {
	r, err := registry.Open(n.dir)
	if err != nil {
		return nil, err
	}
	host, err := nl.Open("node", n.host.path)
	if err != nil {
		return nil, err
	}
	return ipam.New(lease.Pool{Registry: r, Host: host, Policy: n.way.policy, Shelves: []lease.Shelf{}}, nil), nil
}

// cloud returns a client of EC2 and metadata, as a process has it.
func (n *ours) cloud() *aws.Client {
	return aws.New(aws.Options{EC2URL: "http://ec2", MetadataURL: "http://imds",
		HTTP: &wire{n.region, n.place, n.instance}, Jitter: n.jitter})
}

// boot simulates cni-warm.service, which runs before the kubelet starts. Without warm addresses, boot does nothing.
func (n *ours) boot(ctx context.Context) error {
	if n.way.policy.Warm.Min == 0 {
		return nil
	}
	_ = n.fill(ctx) // the kubelet starts even if fill fails
	return nil
}

// fill simulates the command "cni-tool warm".
func (n *ours) fill(ctx context.Context) error {
	const filling = 170 * time.Second // as in package tool
	ctx, cancel := context.WithTimeout(ctx, filling)
	defer cancel()
	if err := os.Remove(filepath.Join(n.dir, lease.Refill)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	p, err := n.process()
	if err != nil {
		return err
	}
	defer p.Host.Close()
	p.Cloud = n.cloud()
	if err := n.waitTurn(ctx); err != nil {
		return err
	}
	defer func() { <-n.turn }()
	_, err = p.Fill(ctx)
	return err
}

func (n *ours) waitTurn(ctx context.Context) error { return hold(ctx, n.turn) }

func hold(ctx context.Context, lock chan struct{}) error {
	select {
	case lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func owner(n *ours, pod string) lease.Owner {
	return lease.Owner{Key: registry.Key{Network: "net", Attachment: plugin.Attachment{ContainerID: pod,
		IfName: "eth0"}},
		Pod: plugin.Pod{Namespace: "default", Name: pod}, NetNS: n.dir}
}

func (n *ours) add(ctx context.Context, pod string) error {
	ctx, cancel := context.WithTimeout(ctx, n.way.policy.Timeout)
	defer cancel()
	p, err := n.process()
	if err != nil {
		return err
	}
	defer func() { p.Host.Close() }()
	got, _, err := p.Obtain(ctx, owner(n, pod), func(ctx context.Context, o lease.Owner) (lease.Allocation, error) {
		return n.acquire(ctx, p, o)
	})
	if err != nil {
		return err
	}
	n.owners.gets(pod, got.Addrs)
	if p.Registry.Marked(lease.Refill) && n.filling.TryLock() {
		go func() { // as cni-warm.path does
			defer n.filling.Unlock()
			_ = n.fill(context.WithoutCancel(ctx))
		}()
	}
	return nil
}

// acquire is like ipam.Pool.Acquire. But while an ADD waits for other ADDs, its file of the node's namespace is closed.
// This process simulates tens of thousands of processes, which would have too many open files.
func (n *ours) acquire(ctx context.Context, p *ipam.Pool, o lease.Owner) (lease.Allocation, error) {
	a, err := p.Take(ctx, o)
	if !lease.IsNone(err) {
		return a, err
	}
	if err := p.Host.Close(); err != nil {
		return a, err
	}
	failed := hold(ctx, n.queue)
	if p.Host, err = nl.Open("node", n.host.path); err != nil {
		return a, err
	}
	if failed != nil {
		return a, errors.Join(failed, p.GiveUp(ctx, o))
	}
	defer func() { <-n.queue }()
	if a, err = p.Take(ctx, o); !lease.IsNone(err) {
		return a, err // the previous growth has got addresses for this ADD, too
	}
	if err := n.waitTurn(ctx); err != nil {
		return a, errors.Join(err, p.GiveUp(ctx, o))
	}
	p.Cloud = n.cloud()
	a, err = p.Lease(ctx, o)
	rest := *p
	go func() { // the process that has asked EC2 finishes its work after its ADD has answered
		defer func() { <-n.turn }()
		rest.Finish(ctx)
	}()
	return a, err
}

func (n *ours) del(ctx context.Context, pod string) error {
	p, err := n.process()
	if err != nil {
		return err
	}
	defer p.Host.Close()
	n.owners.loses(pod)
	return p.End(ctx, owner(n, pod).Key)
}

// collect simulates the command "cni-tool registry-gc".
func (n *ours) collect(ctx context.Context) error {
	const freeAfter = 15 * time.Minute // as in cni-gc.service
	// The program has no deadline, so it does not wait for EC2.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer time.AfterFunc(3*time.Minute, cancel).Stop() // TimeoutStartSec= of cni-gc.service
	if err := n.waitTurn(ctx); err != nil {
		return err
	}
	defer func() { <-n.turn }()
	p, err := n.process()
	if err != nil {
		return err
	}
	defer p.Host.Close()
	p.Cloud = n.cloud()
	p.Policy = lease.Policy{Provision: n.way.policy.Provision, Families: n.way.policy.Families}
	_, err = p.Collect(ctx, less.Collection{FreeAfter: freeAfter + n.jitter(freeAfter*15/100), Max: -1})
	return err
}

// idle returns the number of addresses without a pod, on the ENIs that serve pods.
func (n *ours) idle() (idle int, _ error) {
	s, err := n.state()
	if err != nil {
		return 0, err
	}
	for _, e := range n.instance.ENIs() {
		if e.Index > 0 {
			idle += len(e.Addrs) + 16*len(e.Prefixes)
		}
	}
	return idle - s.Leases.Len(), nil
}

func (n *ours) state() (*registry.State, error) {
	r, err := registry.Open(n.dir)
	if err != nil {
		return nil, err
	}
	return r.View()
}

// leaks returns the differences between the registry, EC2 and the number of pods.
func (n *ours) leaks(pods int) (bad []string) {
	s, err := n.state()
	if err != nil {
		return []string{err.Error()}
	}
	if s.Leases.Len() != pods {
		bad = append(bad, fmt.Sprintf("%s has %d leases and %d pods", n.instance.ID, s.Leases.Len(), pods))
	}
	if len(s.Intents)+len(s.Waiters) > 0 {
		bad = append(bad, fmt.Sprintf("%s has intents %v and waiters %v", n.instance.ID, s.Intents, s.Waiters))
	}
	for _, e := range n.instance.ENIs() {
		known := s.ENIs[e.ID]
		for _, a := range e.Addrs {
			if !slices.Contains(known.Addrs, a) {
				bad = append(bad, fmt.Sprintf("%s has %s on %s, and the registry does not", n.instance.ID, a, e.ID))
			}
		}
		if len(known.Addrs) != len(e.Addrs) || len(known.Prefixes) != len(e.Prefixes) {
			bad = append(bad, fmt.Sprintf("%s: the registry has %d addresses and %d prefixes on %s, EC2 has %d and %d",
				n.instance.ID,
				len(known.Addrs), len(known.Prefixes), e.ID, len(e.Addrs), len(e.Prefixes)))
		}
	}
	return bad
}
