// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/acceptance/ends"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// mostPods is the maximum number of pods on the first node. The test needs addresses of pods on two ENIs, and fails if
// this many pods are not enough.
const mostPods = 40

// A podTest is the part of the test with pods.
type podTest struct {
	cloud  *aws.Client
	out    output
	nodes  []*node
	whoami string
	before [][]string // the state of the nodes before the first pod

	failures int
	pods     map[*node][]ends.Pod // in the order of their creation
	eni      map[netip.Addr]int   // key: the pod's address; value: the device index of the ENI that has the address
}

// testPods runs the part of the test with pods, and returns the number of failed checks. At the end, EC2 and the nodes
// must be as they were before the first pod.
func (c *cloud) testPods(ctx context.Context, o options, p plan, m *madeObjects, out output) (failures int, err error) {
	session, err := c.nodeSession(ctx)
	if err != nil {
		return 0, err
	}
	conflist, err := p.conflist(o.conflist, m.group)
	if err != nil {
		return 0, err
	}
	for _, n := range m.nodes {
		if err := n.install(ctx, o, conflist, session, c); err != nil {
			return 0, fmt.Errorf("%s: %w", n.name, err)
		}
		out.line("ready  %s has the suite", n.name)
	}
	s := &podTest{cloud: aws.New(aws.Options{}), out: out, nodes: m.nodes, whoami: o.whoami,
		pods: map[*node][]ends.Pod{}, eni: map[netip.Addr]int{}}
	for _, step := range []func(context.Context) error{s.recordStates, s.addPods, s.tryPaths, s.tryServices,
		s.tryMetadata, s.forEachPod("Check"), s.forEachPod("Del"), s.compareStates} {
		if err := step(ctx); err != nil {
			return s.failures, err
		}
	}
	return s.failures, nil
}

func (s *podTest) verdict(name, detail string, err error) {
	if err != nil {
		s.failures++
	}
	s.out.verdict(name, detail, err)
}

func (s *podTest) recordStates(context.Context) error {
	for _, n := range s.nodes {
		var lines []string
		if err := n.ends.call("State", true, &lines); err != nil {
			return err
		}
		s.before = append(s.before, lines)
	}
	return nil
}

// addPods makes pods on the first node, until the first ENI for pods has two pods and the second ENI has one pod. Then
// it makes one pod on the second node.
func (s *podTest) addPods(ctx context.Context) error {
	first := s.nodes[0]
	for len(s.podsOnENI(1)) < 2 || len(s.podsOnENI(2)) < 1 {
		if len(s.pods[first]) == mostPods {
			return fmt.Errorf("after %d pods, %s has no pod on a second ENI", mostPods, first.name)
		}
		if err := s.addPod(ctx, first); err != nil {
			return err
		}
	}
	return s.addPod(ctx, s.nodes[1])
}

func (s *podTest) addPod(ctx context.Context, n *node) error {
	name := fmt.Sprintf("%s-pod%d", n.name, len(s.pods[n])+1)
	var p ends.Pod
	start := time.Now()
	if err := n.ends.call("Add", name, &p); err != nil {
		return err
	}
	took := time.Since(start)
	s.pods[n] = append(s.pods[n], p)
	enis, err := s.cloud.DescribeENIs(ctx, aws.ByInstance(n.id))
	if err != nil {
		return err
	}
	for _, e := range enis {
		if slices.Contains(e.Addrs, p.Addr) {
			s.eni[p.Addr] = e.Index
		}
	}
	err = nil
	if s.eni[p.Addr] == 0 {
		err = fmt.Errorf("EC2 shows the address %s on no ENI for pods of %s", p.Addr, n.id)
	}
	s.verdict("ADD "+name, fmt.Sprintf("%s, of the ENI at index %d, after %v", p.Addr, s.eni[p.Addr],
		took.Round(10*time.Millisecond)), err)
	if err != nil {
		return errors.New("the further checks need a pod whose address is on an ENI for pods")
	}
	return nil
}

// podsOnENI returns the pods on one ENI of the first node. The ordinal 1 means the first ENI for pods, and 2 means the
// second.
func (s *podTest) podsOnENI(ordinal int) []ends.Pod {
	var indices []int
	for _, p := range s.pods[s.nodes[0]] {
		if !slices.Contains(indices, s.eni[p.Addr]) {
			indices = append(indices, s.eni[p.Addr])
		}
	}
	if len(indices) < ordinal {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.pods[s.nodes[0]]), func(p ends.Pod) bool {
		return s.eni[p.Addr] != indices[ordinal-1]
	})
}

// An end is a pod, or the node itself.
type end struct {
	node *node
	pod  string // empty: the node
	addr netip.Addr
}

func (s *podTest) podEnd(n *node, p ends.Pod) end { return end{n, p.Name, p.Addr} }
func nodeEnd(n *node) end                         { return end{n, "", n.addr} }

// A path has a sender and a receiver. The receiver must see the sender's own address.
type path struct {
	name     string
	from, to end
}

// tryPaths tries each path with ping, TCP and UDP, as make demo does. make demo also has hosts outside Kubernetes. This
// test has no such hosts. Instead, pods of the first node call the second node.
func (s *podTest) tryPaths(ctx context.Context) error {
	one, two := s.nodes[0], s.nodes[1]
	pod1, sibling := s.podEnd(one, s.podsOnENI(1)[0]), s.podEnd(one, s.podsOnENI(1)[1])
	cousin, remote := s.podEnd(one, s.podsOnENI(2)[0]), s.podEnd(two, s.pods[two][0])
	for _, p := range []path{
		{"pod to pod, on one ENI", pod1, sibling},
		{"pod to pod, on two ENIs of a node", pod1, cousin},
		{"pod to pod, on two nodes", pod1, remote},
		{"pod to pod, on two nodes, back", remote, pod1},
		{"pod to its node", pod1, nodeEnd(one)},
		{"node to its pod", nodeEnd(one), pod1},
		{"pod to another node", pod1, nodeEnd(two)},
		{"pod of the other ENI to another node", cousin, nodeEnd(two)},
		{"node to a pod of another node", nodeEnd(two), pod1},
		{"node to a pod of the other ENI", nodeEnd(two), cousin},
	} {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.verdict(p.name, fmt.Sprintf("%s > %s ping, tcp, udp, as %[1]s", p.from.addr, p.to.addr), p.tryPath())
	}
	s.verdict("pod to the internet", fmt.Sprintf("%s > %s, as %s", pod1.addr, s.whoami, one.public),
		s.tryInternet(ctx, pod1))
	return nil
}

func (p path) tryPath() error {
	var errs []error
	to := netip.AddrPortFrom(p.to.addr, ends.Port)
	for _, network := range []string{"ping", "tcp", "udp"} {
		var seen netip.AddrPort
		err := p.from.node.ends.call("Call", ends.Call{From: p.from.pod, Network: network, To: to}, &seen)
		if err == nil && network != "ping" && seen.Addr() != p.from.addr {
			err = fmt.Errorf("the receiver sees %s as %s", p.from.addr, seen.Addr())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", network, err))
		}
	}
	return errors.Join(errs...)
}

// tryInternet sends a request from a pod to a server in the internet. The server must see the public address of the
// pod's node. The machine on which the acceptance test runs resolves the server's name.
func (s *podTest) tryInternet(ctx context.Context, from end) error {
	u, err := url.Parse(s.whoami)
	if err != nil {
		return err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", u.Hostname())
	if err != nil {
		return err
	}
	port := uint16(443)
	if u.Scheme == "http" {
		port = 80
	}
	body, err := from.fetch(s.whoami, netip.AddrPortFrom(addrs[0].Unmap(), port), time.Minute)
	if err != nil {
		return err
	}
	seen, err := parseAddress(body)
	if err == nil && seen != from.node.public {
		err = fmt.Errorf("the internet sees %s as %s, want %s", from.addr, seen, from.node.public)
	}
	return err
}

func (e end) fetch(url string, to netip.AddrPort, patience time.Duration) (body string, err error) {
	err = e.node.ends.call("Fetch", ends.Fetch{From: e.pod, URL: url, To: to, Timeout: patience}, &body)
	return body, err
}

// tryServices checks paths from a pod to Services. Rules on the first node replace the address of a Service by the
// address of a pod, as kube-proxy's rules do.
func (s *podTest) tryServices(context.Context) error {
	one, two := s.nodes[0], s.nodes[1]
	from := s.podEnd(one, s.podsOnENI(1)[0])
	var all []ends.Service
	var paths []path
	for i, to := range []struct {
		name string
		pod  ends.Pod
	}{
		{"pod to a service, another node", s.pods[two][0]},
		{"pod to a service, the same ENI", s.podsOnENI(1)[1]},
		{"pod to a service, the other ENI", s.podsOnENI(2)[0]},
	} {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 20, 0, byte(10 + i)}), 80)
		all = append(all, ends.Service{Addr: addr, Backend: netip.AddrPortFrom(to.pod.Addr, ends.Port)})
		paths = append(paths, path{to.name, from, end{addr: addr.Addr()}})
	}
	var done bool
	if err := one.ends.call("Proxy", all, &done); err != nil {
		return err
	}
	for i, p := range paths {
		var seen netip.AddrPort
		err := one.ends.call("Call", ends.Call{From: from.pod, Network: "tcp", To: all[i].Addr}, &seen)
		if err == nil && seen.Addr() != from.addr {
			err = fmt.Errorf("the receiver sees %s as %s", from.addr, seen.Addr())
		}
		s.verdict(p.name, fmt.Sprintf("%s > %s, as %[1]s", from.addr, all[i].Addr), err)
	}
	return one.ends.call("Proxy", []ends.Service(nil), &done)
}

// tryMetadata checks that the first node reaches the metadata service, and that the node's pods do not.
func (s *podTest) tryMetadata(context.Context) error {
	to := netip.MustParseAddrPort("169.254.169.254:80")
	const document, brief = "http://169.254.169.254/latest/meta-data/", 5 * time.Second
	n := s.nodes[0]
	_, err := nodeEnd(n).fetch(document, to, time.Minute)
	s.verdict("node to metadata", "it answers", err)
	for _, p := range []ends.Pod{s.podsOnENI(1)[0], s.podsOnENI(2)[0]} {
		body, err := s.podEnd(n, p).fetch(document, to, brief)
		if err == nil {
			err = fmt.Errorf("the metadata service must not answer the pod, but it answers %.80q", body)
		} else {
			err = nil
		}
		s.verdict("no pod to metadata, "+p.Name, "it does not answer", err)
	}
	return nil
}

// forEachPod returns a function that calls ends.Node.Check or ends.Node.Del for all pods.
func (s *podTest) forEachPod(method string) func(context.Context) error {
	return func(context.Context) error {
		for _, n := range s.nodes {
			var errs []error
			for _, p := range s.pods[n] {
				var done bool
				errs = append(errs, n.ends.call(method, p.Name, &done))
			}
			s.verdict(strings.ToUpper(method)+", "+n.name, fmt.Sprintf("%d pods", len(s.pods[n])), errors.Join(errs...))
		}
		return nil
	}
}

// compareStates waits until registry-gc has released all addresses. Then it checks that EC2 and the nodes are as they
// were before the first pod.
func (s *podTest) compareStates(ctx context.Context) error {
	for _, n := range s.nodes {
		s.verdict("EC2 is as it was before, "+n.name, "only the ENI of the launch, with one address",
			s.waitForRelease(ctx, n))
	}
	for i, n := range s.nodes {
		var now []string
		if err := n.ends.call("State", true, &now); err != nil {
			return err
		}
		s.verdict(n.name+" is as it was before", "the same links, addresses, routes, rules, tables",
			diffStates(s.before[i], now))
	}
	return nil
}

// waitForRelease runs registry-gc until EC2 shows only the node's boot ENI. registry-gc deletes an ENI only after its
// addresses have been free for one second (--free-after), and EC2 takes some seconds to detach the ENI.
func (s *podTest) waitForRelease(ctx context.Context, n *node) error {
	const tries = 12
	var err error
	for range tries {
		var printed string
		if err := n.ends.call("Tool", []string{"registry-gc", "--free-after=1s"}, &printed); err != nil {
			return err
		}
		var enis []aws.ENI
		if enis, err = s.cloud.DescribeENIs(ctx, aws.ByInstance(n.id)); err != nil {
			return err
		}
		if len(enis) == 1 && len(enis[0].Addrs) == 1 {
			return nil
		}
		var left []string
		for _, e := range enis {
			left = append(left, fmt.Sprintf("%s at index %d with %d addresses", e.ID, e.Index, len(e.Addrs)))
		}
		err = errors.New("EC2 shows " + strings.Join(left, ", "))
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return err
}

// diffStates returns an error with the lines that only one of the two states has.
func diffStates(before, now []string) error {
	var lines []string
	for _, l := range now {
		if !slices.Contains(before, l) {
			lines = append(lines, "left: "+l)
		}
	}
	for _, l := range before {
		if !slices.Contains(now, l) {
			lines = append(lines, "gone: "+l)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New("the state differs\n" + strings.Join(lines, "\n"))
}
