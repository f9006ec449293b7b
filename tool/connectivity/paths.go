// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ask"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// A path has a sender, a receiver, and a way to find out whether packets arrive.
type path struct {
	name   string
	family nl.Family
	from   *nl.NS
	pod    *pod // the pod that sends; nil: the node sends
	to     netip.AddrPort
	target *pod // the pod that receives; nil: another host receives
	probe  func(ctx context.Context) error
	note   func() string // returns a note about a path that works
	skip   string        // why the test does not try this path
	advice string        // what to look at if the packet leaves the node and no answer comes
}

// tryOnce sends the packets of a path. It waits for answers, but not longer than the timeout.
func (p path) tryOnce(ctx context.Context, timeout time.Duration) Row {
	row := Row{Path: p.name, Family: p.family.String(), To: p.to.String(), State: Skipped, Cause: p.skip,
		From: p.from.Name}
	if p.to.Port() == 0 {
		row.To = p.to.Addr().String()
	}
	if !p.to.Addr().IsValid() {
		row.To = "-"
	}
	if p.skip == "" && ctx.Err() != nil {
		row.Cause = "there was no time left"
	}
	if row.Cause != "" {
		return row
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	err := p.probe(ctx)
	row.State, row.Took = Works, milliseconds(start)
	if err != nil {
		row.State, row.Cause = Fails, err.Error()
	} else if p.note != nil {
		row.Cause = p.note()
	}
	return row
}

// allPaths returns the paths that pods have with this configuration (see docs/node.md).
func (s *scene) allPaths() (all []path) {
	s.askPeer()
	for _, f := range nl.Families {
		if !s.pods[0].addr(f).IsValid() {
			continue
		}
		all = append(all, s.nearPaths(f)...)
		all = append(all, s.metadataPaths(f)...)
		all = append(all, s.farPaths(f)...)
		if s.Peer.IsValid() {
			all = append(all, s.peerPaths(f)...)
		}
	}
	return all
}

// nearPaths returns the paths to the other pod, to the node and to the VPC router.
func (s *scene) nearPaths(f nl.Family) (all []path) {
	a := s.pods[0]
	if len(s.pods) > 1 {
		b := s.pods[1]
		all = append(all, s.toServer("pod to pod", f, a, b))
	}
	all = append(all, s.toServer("node to pod", f, nil, a))
	if host := s.nodeAddr(f); host.IsValid() {
		to := netip.AddrPortFrom(host, kubeletPort)
		all = append(all, path{name: "pod to node", family: f, from: a.ns, pod: a, to: to,
			probe: func(ctx context.Context) error {
				return acceptRefusal(tryConnect(ctx, a.ns, to))
			}})
	}
	for _, gw := range a.gws {
		if nl.FamilyOf(gw) == f && a.hasSlave {
			all = append(all, path{name: "pod to VPC gateway", family: f, from: a.ns, pod: a,
				to:    netip.AddrPortFrom(gw, 0),
				probe: func(ctx context.Context) error { return resolveNeighbor(ctx, a.ns, gw) },
				advice: "the VPC router answers each attached ENI that asks for the router's MAC address. Look at " +
					cli.Name + " status --diff and " + cli.Name + " doctor --check links"})
		}
	}
	return all
}

// kubeletPort is the port of the kubelet, to which the test connects. A refusal also shows that the packets arrive.
const kubeletPort = 10250

// acceptRefusal returns nil for a refusal, and all other errors unchanged.
func acceptRefusal(err error) error {
	if errors.Is(err, errRefused) {
		return nil
	}
	return err
}

// toServer returns a path to a pod of this test, with small and with large packets. The sender is the pod "from", or
// the node if "from" is nil.
func (s *scene) toServer(name string, f nl.Family, from, to *pod) path {
	sender := s.node
	if from != nil {
		sender = from.ns
	}
	at := netip.AddrPortFrom(to.addr(f), to.server.port())
	return path{name: name, family: f, from: sender, pod: from, to: at, target: to,
		probe:  func(ctx context.Context) error { return callSmallAndLarge(ctx, sender, at) },
		advice: groupsAdvice}
}

// groupsAdvice says what can stop packets in the VPC before they reach a pod's ENI.
const groupsAdvice = "at both ends of the path, the ENI's security groups and the subnet's network ACL must allow " +
	"the packets. The subnet's route table must have a route to the other end"

// callSmallAndLarge calls a server twice: with little data, and then with much data. Each call has its own timeout, so
// that a slow first call does not look like a loss of large packets. If the second call gets no connection, large
// packets are not the cause, because a connection begins with small packets.
func callSmallAndLarge(ctx context.Context, n *nl.NS, to netip.AddrPort) error {
	if _, err := callServer(ctx, n, to, call{Size: smallCall}); err != nil {
		return connError(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pathTimeout)
	defer cancel()
	a, err := callServer(ctx, n, to, call{Size: largeCall})
	if op, is := errors.AsType[*net.OpError](err); is && op.Op == "dial" {
		return connError(err)
	}
	if err != nil || a.Bytes != largeCall {
		return fmt.Errorf("%w: %v", errLarge, err)
	}
	return nil
}

// nodeAddr returns the node's address in a family. The test sends packets from a pod to this address.
func (s *scene) nodeAddr(f nl.Family) netip.Addr {
	if a, err := s.node.DefaultSource(s.Network.Pair.HostInterface, f); err == nil && a.IsValid() {
		return a
	}
	addrs, _ := s.node.Addrs(s.Network.Pair.HostInterface)
	for _, a := range addrs {
		if nl.FamilyOf(a.Prefix.Addr()) == f && a.Prefix.Addr().IsGlobalUnicast() {
			return a.Prefix.Addr()
		}
	}
	return netip.Addr{}
}

// metadataAddrs are the addresses of the metadata service (EC2 user guide, "Instance metadata and user data").
var metadataAddrs = map[nl.Family]netip.AddrPort{nl.IPv4: netip.MustParseAddrPort("169.254.169.254:80"),
	nl.IPv6: netip.MustParseAddrPort("[fd00:ec2::254]:80")}

// metadataPaths returns the paths to the metadata service: from the node, and from a pod. The plugins need the path
// from the node. Most instances have no IPv6 endpoint. So for IPv6, the test tries only the path from a pod, and only
// if the configuration blocks this path. The test then finds out whether the path is really blocked.
func (s *scene) metadataPaths(f nl.Family) (all []path) {
	to, a := metadataAddrs[f], s.pods[0]
	if f == nl.IPv4 {
		all = append(all, path{name: "node to metadata", family: f, from: s.node, to: to,
			probe: func(ctx context.Context) error { return requestHTTP(ctx, s.node, to) },
			advice: "the metadata service must be enabled (aws ec2 describe-instances shows HttpEndpoint in " +
				"MetadataOptions). Without metadata, the node cannot get more addresses"})
	}
	block := nl.Route{Dst: netip.PrefixFrom(to.Addr(), to.Addr().BitLen()), Type: "prohibit",
		Protocol: nl.RouteProtocol}
	blocked := block.Check(a.ns) == nil
	if f == nl.IPv6 && !blocked {
		return all
	}
	answered := false
	return append(all, path{name: "pod to metadata", family: f, from: a.ns, pod: a, to: to,
		probe: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, pathTimeout/2)
			defer cancel()
			answered = requestHTTP(ctx, a.ns, to) == nil
			if answered && blocked {
				return errors.New("the configuration blocks metadata for pods, but metadata answers")
			}
			return nil
		},
		note: func() string {
			switch {
			case blocked:
				return "the configuration blocks this path"
			case answered:
				return "metadata answers, so pods can get the credentials of the node's role"
			}
			return "metadata does not answer pods. Usually, the reason is EC2's hop limit of 1"
		}})
}

// farPaths returns the paths that need Kubernetes or the internet.
func (s *scene) farPaths(f nl.Family) []path {
	return append(s.servicePaths(f), s.internetPath(f)...)
}

func (s *scene) servicePaths(f nl.Family) []path {
	a := s.pods[0]
	api := path{name: "pod to Service", family: f, from: a.ns, pod: a, to: s.Service,
		advice: "the security groups of the Service's backends must allow this pod"}
	if !api.to.IsValid() {
		api.to = s.apiServer(f)
	}
	api.probe = func(ctx context.Context) error { return tryConnect(ctx, a.ns, api.to) }
	dns := path{name: "pod to DNS", family: f, from: a.ns, pod: a, to: netip.AddrPortFrom(s.DNS, 53),
		advice: "the DNS pods must run (kubectl -n kube-system get pods), and their security groups must allow UDP " +
			"and TCP port 53"}
	dns.probe = func(ctx context.Context) error { return lookUpName(ctx, a.ns, dns.to, s.Name) }
	if !api.to.IsValid() {
		api.skip = "this node has no rules of kube-proxy for Services. Choose a Service with --service ADDRESS:PORT"
	}
	if !s.DNS.IsValid() {
		dns.skip = "the kubelet's configuration has no DNS server. Choose a DNS server with --dns ADDRESS"
	}
	var all []path
	for _, p := range []path{api, dns} {
		family := s.serviceFamily()
		switch to := p.to.Addr(); {
		case !to.IsValid():
		case a.addr(nl.FamilyOf(to)).IsValid():
			family = nl.FamilyOf(to)
		default:
			p.skip = fmt.Sprintf("the pods of this test have no %v address, so they cannot reach %v",
				nl.FamilyOf(to), to)
		}
		if family == f {
			all = append(all, p)
		}
	}
	return all
}

// serviceFamily returns the first family of the cluster's Services. The API server's Service has only this family.
// Usually, the DNS server's Service also has only this family, so the DNS server's address shows the family. If the DNS
// server is not known, or the pods lack the family of its address, serviceFamily returns a family that Services and
// pods have.
func (s *scene) serviceFamily() nl.Family {
	a := s.pods[0]
	if s.DNS.IsValid() && a.addr(nl.FamilyOf(s.DNS)).IsValid() {
		return nl.FamilyOf(s.DNS)
	}
	families := slices.DeleteFunc(slices.Clone(nl.Families), func(f nl.Family) bool { return !a.addr(f).IsValid() })
	for _, f := range families {
		if addrs, err := s.node.ClusterIPs(f); err == nil && len(addrs) > 0 {
			return f
		}
	}
	return families[0]
}

// apiServer returns the address and port of the API server's Service, if it has an address of the family. Kubernetes
// gives this Service the lowest ClusterIP.
func (s *scene) apiServer(f nl.Family) netip.AddrPort {
	addrs, err := s.node.ClusterIPs(f)
	if err != nil || len(addrs) == 0 || f != s.serviceFamily() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addrs[0], 443)
}

// internetPath returns the path to a host outside of the VPC.
func (s *scene) internetPath(f nl.Family) []path {
	a := s.pods[0]
	p := path{name: "pod to internet", family: f, from: a.ns, pod: a, advice: s.internetAdvice(f)}
	to, err := s.internetHost(f)
	switch {
	case s.Internet == "":
		p.skip = "the test has no host in the internet. Choose a host with --internet HOST:PORT"
	case err != nil:
		p.skip = err.Error()
	default:
		p.to = to
		if dev, err := ask.Leaves(a.ns, a.addr(f), to.Addr()); err == nil && len(dev) > 6 && dev[:6] == "egress" {
			p.name = "pod to internet, by egress"
			p.advice = "the routers of the egress must run and reach the internet. " + cli.Name +
				" egress shows the routers of a node"
		}
		if !s.Explicit && connectShortly(s.node, to) != nil {
			p.skip = "the node itself does not reach this host. Choose another host with --internet HOST:PORT"
		}
	}
	if f == nl.IPv6 && p.skip != "" {
		return nil
	}
	p.probe = func(ctx context.Context) error { return tryConnect(ctx, a.ns, p.to) }
	return []path{p}
}

func (s *scene) internetAdvice(f nl.Family) string {
	if f == nl.IPv6 {
		return "the subnet of the pod's ENI must have a route to an internet gateway, or to an egress-only internet " +
			"gateway. The ENI's security groups must allow the packets"
	}
	return fmt.Sprintf("the subnet of %s needs a route to a NAT gateway. Or the ENI of %[1]s needs a public address, "+
		"and the subnet needs a route to an internet gateway. The security groups of this ENI must allow the packets",
		s.Network.Pair.HostInterface)
}

// internetHost returns the address and port of the test's host in the internet. The node resolves the host's name.
func (s *scene) internetHost(f nl.Family) (netip.AddrPort, error) {
	name, text, err := net.SplitHostPort(s.Internet)
	if err != nil {
		return netip.AddrPort{}, err
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), pathTimeout)
	defer cancel()
	network := "ip4"
	if f == nl.IPv6 {
		network = "ip6"
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, network, name)
	if err != nil || len(addrs) == 0 {
		return netip.AddrPort{}, fmt.Errorf("the node cannot resolve %s. Choose another host with --internet HOST:PORT",
			name)
	}
	a := addrs[0].Unmap()
	if a.IsPrivate() && !s.Explicit {
		return netip.AddrPort{}, fmt.Errorf("%s has the private address %s on this node. Choose another host with "+
			"--internet HOST:PORT", name, a)
	}
	return netip.AddrPortFrom(a, uint16(number)), nil
}

func connectShortly(n *nl.NS, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), pathTimeout)
	defer cancel()
	return tryConnect(ctx, n, to)
}
