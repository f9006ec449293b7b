// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

const tool = "cni-ipvlan-vpc-k8s-tool"

// A nodeState has the state of a node at one time, from each source.
type nodeState struct {
	registry  *registry.State
	pods      map[string][]netip.Addr // by NAMESPACE/NAME, from the API; without pods that have the network of the node
	sandboxes []string                // the IDs of the sandboxes and containers that containerd runs
	netns     []string                // names of the files in /run/netns
	programs  []string                // names of the files in /sys/fs/bpf
	links     []link
	enis      []ec2sim.ENI // from EC2: the ENIs of the node's instance
	kernel    []string     // a line for each kernel object that belongs to no pod and to no ENI
}

// A link is a link in the output of "ip -json link".
type link struct{ Ifname, Address, Ifalias string }

// remember waits until CoreDNS runs on both nodes, and then stores the state of each node.
func (w *world) remember(t *testing.T) *world {
	t.Helper()
	w.rolledOut(t, "coredns", "--namespace=kube-system")
	w.before = map[string]*nodeState{}
	for _, n := range w.Nodes {
		s, err := w.state(t.Context(), n)
		check(t, err)
		w.before[n.Name] = s
	}
	return w
}

func (w *world) state(ctx context.Context, n *cluster.Node) (s *nodeState, err error) {
	s = &nodeState{}
	for _, read := range []func() error{
		func() (err error) { s.registry, err = leases(n); return err },
		func() (err error) { s.pods, err = w.podsOf(ctx, n.Name); return err },
		func() (err error) { s.sandboxes, err = running(ctx, n); return err },
		func() (err error) { s.netns, err = files(n, "/run/netns"); return err },
		func() (err error) { s.programs, err = files(n, "/sys/fs/bpf"); return err },
		func() (err error) { s.links, err = links(ctx, n); return err },
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	for _, e := range w.Fabric.EC2.ENIs() {
		if e.Instance == n.ID {
			s.enis = append(s.enis, e)
		}
	}
	s.kernel, err = kernel(ctx, n, s.known())
	return s, err
}

func leases(n *cluster.Node) (*registry.State, error) {
	r, err := registry.Open(n.File(state))
	if err != nil {
		return nil, err
	}
	return r.View()
}

// podsOf returns the pods of a node that have not ended, with their addresses of all families.
func (w *world) podsOf(ctx context.Context, node string) (map[string][]netip.Addr, error) {
	out, err := w.Kubectl(ctx, "get", "pods", "-A", "-o", "json", "--field-selector=spec.nodeName="+node+
		",status.phase!=Failed,status.phase!=Succeeded")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct{ Namespace, Name string }
			Spec     struct{ HostNetwork bool }
			Status   struct{ PodIPs []struct{ IP netip.Addr } }
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	pods := map[string][]netip.Addr{}
	for _, i := range list.Items {
		if i.Spec.HostNetwork {
			continue
		}
		name := i.Metadata.Namespace + "/" + i.Metadata.Name
		for _, a := range i.Status.PodIPs {
			pods[name] = append(pods[name], a.IP)
		}
		if pods[name] == nil {
			pods[name] = []netip.Addr{{}} // the pod has no address yet
		}
	}
	return pods, nil
}

func running(ctx context.Context, n *cluster.Node) ([]string, error) {
	out, err := n.Run(ctx, "ctr", "--address=/run/containerd/containerd.sock", "--namespace=k8s.io", "tasks", "ls")
	var ids []string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "RUNNING" {
			ids = append(ids, f[0])
		}
	}
	return ids, err
}

func files(n *cluster.Node, dir string) (names []string, err error) {
	all, err := os.ReadDir(n.File(dir))
	for _, f := range all {
		names = append(names, f.Name())
	}
	return names, err
}

func links(ctx context.Context, n *cluster.Node) (all []link, err error) {
	out, err := n.Run(ctx, "ip", "-json", "link")
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal([]byte(out), &all)
}

// known returns the names of the links that belong to an ENI, or to a pod with a sandbox and a lease.
func (s *nodeState) known() []string {
	var names []string
	for _, l := range s.links {
		if s.isENI(l) || s.isPod(l) {
			names = append(names, l.Ifname)
		}
	}
	return names
}

func (s *nodeState) isENI(l link) bool {
	return slices.ContainsFunc(s.enis, func(e ec2sim.ENI) bool { return e.MAC == l.Address && e.Index > 0 })
}

// isPod reports whether a link is the node's end of a running pod's pair. The link's alias has five words: plugin,
// network, container, interface, and NAMESPACE/NAME of the pod.
func (s *nodeState) isPod(l link) bool {
	alias := strings.Fields(l.Ifalias)
	for _, lease := range s.registry.Leases.All() {
		if len(alias) == 5 && alias[2] == lease.ContainerID && alias[4] == podOf(lease) {
			return slices.Contains(s.sandboxes, lease.ContainerID)
		}
	}
	return false
}

func podOf(l registry.Lease) string { return l.PodNamespace + "/" + l.PodName }

// kernel returns the kernel objects of a node, except the objects with the name of a known link.
func kernel(ctx context.Context, n *cluster.Node, known []string) (lines []string, err error) {
	for _, look := range []string{
		"ip -o link", "ip -o address", "ip rule", "ip -6 rule", "ip route show table all", "ip -6 route show table all",
		"nft --stateless list table inet cni_ipvlan_vpc_k8s",
	} {
		c := strings.Fields(look)
		out, err := n.Run(ctx, c[0], c[1:]...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			line = index.ReplaceAllString(strings.TrimSpace(line), "")
			if !names(line, known) && !vethRule.MatchString(line) {
				lines = append(lines, look+": "+line)
			}
		}
	}
	return lines, nil
}

// index matches the number of a link, with which a line of "ip -o" begins. It does not match the preference of a rule,
// because a tab follows the colon there.
var index = regexp.MustCompile(`^\d+: `)

// vethRule is a rule that all routed pods of a node share. It stays until the node has no pods.
var vethRule = regexp.MustCompile(`^1014:\s.* lookup 2147483720\b`)

func names(line string, links []string) bool {
	words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t:@\\\"", r) })
	return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(links, w) })
}

// asBefore returns an error for each leftover of a pod, and for each object that the node has lost since the start. The
// node may have other ENIs for pods and other free addresses than at the start.
func (w *world) asBefore(ctx context.Context, n *cluster.Node) error {
	s, err := w.state(ctx, n)
	if err != nil {
		return err
	}
	before := w.before[n.Name]
	err = errors.Join(
		s.leasesOfPods(), s.namespacesOfPods(), s.linksOfENIs(), s.addressesOfENIs(), s.settled(),
		differ("the kernel", before.kernel, s.kernel), differ("/sys/fs/bpf", before.programs, s.programs),
		agrees(ctx, n))
	if err != nil {
		err = fmt.Errorf("%s is not as before:\n%w", n.Name, err)
	}
	return err
}

// leasesOfPods compares the leases with the API's pods and with the sandboxes.
func (s *nodeState) leasesOfPods() error {
	var errs []error
	lacks := maps.Clone(s.pods)
	for a, l := range s.registry.Leases.All() {
		switch has, ok := s.pods[podOf(l)]; {
		case !ok:
			errs = append(errs, fmt.Errorf("%s is leased to %s, which is no pod of this node", a, podOf(l)))
		case !slices.Contains(has, a):
			errs = append(errs, fmt.Errorf("%s is leased to %s, which has %s in the API", a, podOf(l), has))
		}
		if !slices.Contains(s.sandboxes, l.ContainerID) {
			errs = append(errs, fmt.Errorf("%s is leased to the sandbox %s of %s, which does not run", a,
				l.ContainerID, podOf(l)))
		}
		lacks[podOf(l)] = slices.DeleteFunc(slices.Clone(lacks[podOf(l)]), func(b netip.Addr) bool { return a == b })
	}
	for name, addrs := range lacks {
		for _, a := range addrs {
			errs = append(errs, fmt.Errorf("%s has the address %s, and no lease", name, a))
		}
	}
	return errors.Join(errs...)
}

func (s *nodeState) namespacesOfPods() error {
	var want []string
	for _, l := range s.registry.Leases.All() {
		want = append(want, path.Base(l.NetNS))
	}
	return differ("/run/netns", want, s.netns)
}

// linksOfENIs checks that each ENI has its link.
func (s *nodeState) linksOfENIs() error {
	var errs []error
	for _, e := range s.enis {
		if !slices.ContainsFunc(s.links, func(l link) bool { return l.Address == e.MAC }) {
			errs = append(errs, fmt.Errorf("%s has no link", e.ID))
		}
	}
	return errors.Join(errs...)
}

// addressesOfENIs compares the registry's addresses with the addresses that the pods' ENIs have in EC2. It omits the
// addresses in delegated prefixes, because EC2 lists only the prefixes.
func (s *nodeState) addressesOfENIs() error {
	var ec2, ours []string
	var prefixes []netip.Prefix
	for _, e := range s.enis {
		if e.Index == 0 {
			continue
		}
		for _, a := range slices.Concat(e.Addrs, e.IPv6Addrs) {
			ec2 = append(ec2, a.String())
		}
		prefixes = slices.Concat(prefixes, e.Prefixes, e.IPv6Prefixes)
	}
	for _, keys := range []iter.Seq[netip.Addr]{s.registry.Free.Keys(), s.registry.Leases.Keys()} {
		for a := range keys {
			if !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
				ours = append(ours, a.String())
			}
		}
	}
	return differ("the registry, compared with EC2,", ec2, ours)
}

// settled checks that the registry has no waiters and no intents. One kind of intent may remain for 15 minutes: a
// killed process may have begun to create an ENI, and a later process has found an ENI that may be this one. The intent
// remains, because EC2 may still show another ENI. Such an intent names no subnet, and no process repeats its call.
func (s *nodeState) settled() error {
	var errs []error
	for _, i := range s.registry.Intents {
		if i.Action != "CreateNetworkInterface" || i.Subnet != "" {
			errs = append(errs, fmt.Errorf("the registry has the intent %+v", i))
		}
	}
	for _, w := range s.registry.Waiters {
		errs = append(errs, fmt.Errorf("the registry has the waiter %+v", w))
	}
	return errors.Join(errs...)
}

// agrees checks that registry, kernel, metadata and EC2 agree, and that doctor finds no leftovers on a node.
func agrees(ctx context.Context, n *cluster.Node) error {
	_, err := n.Run(ctx, tool, "status", "--diff")
	_, err2 := n.Run(ctx, tool, "doctor", "--check=addresses,leftovers,answers,state,refusals,agreement")
	return errors.Join(err, err2)
}

// differ returns an error with the lines that only one of the two lists has.
func differ(where string, before, now []string) error {
	var errs []error
	for _, l := range now {
		if !slices.Contains(before, l) {
			errs = append(errs, fmt.Errorf("%s has too much: %s", where, l))
		}
	}
	for _, l := range before {
		if !slices.Contains(now, l) {
			errs = append(errs, fmt.Errorf("%s has lost: %s", where, l))
		}
	}
	return errors.Join(errs...)
}

// collect runs the commands of cni-gc.service on all nodes.
func (w *world) collect(ctx context.Context, freeAfter string) error {
	for _, n := range w.Nodes {
		_, err := n.Run(ctx, tool, "repair")
		_, err2 := n.Run(ctx, tool, "registry-gc", "--free-after="+freeAfter)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
	}
	return nil
}

// interval is how long addresses stay free before the collections of cni-gc.timer release them.
const interval = "15m"

func (w *world) allAsBefore(ctx context.Context) error {
	if err := w.collect(ctx, interval); err != nil {
		return err
	}
	errs := []error{w.apart()}
	for _, n := range w.Nodes {
		errs = append(errs, w.asBefore(ctx, n))
	}
	return errors.Join(errs...)
}

// apart checks that no address is leased on two nodes.
func (w *world) apart() error {
	owner := map[netip.Addr]string{}
	for _, n := range w.Nodes {
		s, err := leases(n)
		if err != nil {
			return err
		}
		for a, l := range s.Leases.All() {
			if other, ok := owner[a]; ok {
				return fmt.Errorf("%s is leased to %s and to %s", a, other, podOf(l))
			}
			owner[a] = podOf(l)
		}
	}
	return nil
}

// allReleased checks that each ENI is attached. Each ENI for pods must have pods, and these pods must use all secondary
// addresses of the ENI.
func (w *world) allReleased() error {
	used := map[netip.Addr]bool{}
	for _, n := range w.Nodes {
		s, err := leases(n)
		if err != nil {
			return err
		}
		for a := range s.Leases.Keys() {
			used[a] = true
		}
	}
	var errs []error
	for _, e := range w.Fabric.EC2.ENIs() {
		if e.Instance == "" {
			errs = append(errs, fmt.Errorf("%s is attached to no instance", e.ID))
		}
		if e.Index == 0 {
			continue
		}
		for _, a := range e.Addrs[1:] {
			if !used[a] {
				errs = append(errs, fmt.Errorf("%s still has the address %s", e.ID, a))
			}
		}
		if !slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return used[a] }) {
			errs = append(errs, fmt.Errorf("%s has no pods, and is still there", e.ID))
		}
	}
	return errors.Join(errs...)
}

// theEnd checks that the scenarios have left nothing behind. It also checks that collections release all ENIs and
// addresses that no pod uses.
func (w *world) theEnd(t *testing.T) {
	await(t, func() error { return w.allAsBefore(t.Context()) })
	await(t, func() error {
		return errors.Join(w.collect(t.Context(), "1s"), w.allReleased())
	})
	await(t, func() error { return w.allAsBefore(t.Context()) })
	check(t, w.Fabric.Err())
	drops, err := w.Fabric.Drops()
	check(t, err)
	t.Logf("the fabric has dropped: %s", drops)
	if drops.Spoofed != w.spoofed {
		packets, err := w.Fabric.Spoofed()
		t.Errorf("the nodes have sent %d packets from addresses that they do not have, want %d: %v\n%s", drops.Spoofed,
			w.spoofed, err, strings.Join(packets, "\n"))
	}
}
