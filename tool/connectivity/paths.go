// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ask"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// A path has a sender, a receiver, and a way to find out whether packets arrive.
type path struct {
	name    string
	family  nl.Family
	from    *nl.NS
	pod     *pod // that sends; nil: the node does
	to      netip.AddrPort
	target  *pod // that receives; nil: another host
	probe   func(ctx context.Context) error
	note    func() string // about a path that works
	skip    string        // why nothing is sent
	outside string        // what to look at if the packet leaves the node and no answer comes
}

// try sends packets. It waits at most for the time most.
func (p path) try(ctx context.Context, most time.Duration) Row {
	row := Row{Path: p.name, Family: p.family.String(), To: p.to.String(), State: Skipped, Cause: p.skip,
		From: p.from.Name}
	if p.to.Port() == 0 {
		row.To = p.to.Addr().String()
	}
	if !p.to.Addr().IsValid() {
		row.To = "-"
	}
	if p.skip == "" && ctx.Err() != nil {
		row.Cause = "there was no time"
	}
	if row.Cause != "" {
		return row
	}
	ctx, cancel := context.WithTimeout(ctx, most)
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

// paths are those that the configuration has: docs/node.md.
func (s *scene) paths() (all []path) {
	s.askPeer()
	for _, f := range nl.Families {
		if !s.pods[0].addr(f).IsValid() {
			continue
		}
		all = append(all, s.within(f)...)
		all = append(all, s.metadata(f)...)
		all = append(all, s.beyond(f)...)
		if s.Peer.IsValid() {
			all = append(all, s.toPeer(f)...)
		}
	}
	return all
}

// within are the paths to the other pod, to the node and to the VPC router.
func (s *scene) within(f nl.Family) (all []path) {
	a := s.pods[0]
	if len(s.pods) > 1 {
		b := s.pods[1]
		all = append(all, s.toServer("pod to pod", f, a, b))
	}
	all = append(all, s.toServer("node to pod", f, nil, a))
	if host := s.nodeAddr(f); host.IsValid() {
		to := netip.AddrPortFrom(host, kubelet)
		all = append(all, path{name: "pod to node", family: f, from: a.ns, pod: a, to: to,
			probe: func(ctx context.Context) error {
				return reached(connect(ctx, a.ns, to))
			}})
	}
	for _, gw := range a.gws {
		if nl.FamilyOf(gw) == f && a.slave {
			all = append(all, path{name: "pod to VPC gateway", family: f, from: a.ns, pod: a,
				to:    netip.AddrPortFrom(gw, 0),
				probe: func(ctx context.Context) error { return neighbour(ctx, a.ns, gw) },
				outside: "the VPC router answers each ENI that is attached: look at " + cli.Name + " status " +
					"--diff and " + cli.Name + " doctor --check links"})
		}
	}
	return all
}

// kubelet is the port of the kubelet, which pods may reach. A refusal shows that the packets arrive, too.
const kubelet = 10250

// reached turns a refusal into a success: the other host has sent it.
func reached(err error) error {
	if errors.Is(err, errRefused) {
		return nil
	}
	return err
}

// toServer is a path to a pod of this test, by small and by large packets.
func (s *scene) toServer(name string, f nl.Family, from, to *pod) path {
	sender := s.node
	if from != nil {
		sender = from.ns
	}
	at := netip.AddrPortFrom(to.addr(f), to.server.port())
	return path{name: name, family: f, from: sender, pod: from, to: at, target: to,
		probe:   func(ctx context.Context) error { return both(ctx, sender, at) },
		outside: groups}
}

// groups is what keeps packets of the VPC from a pod's ENI.
const groups = "the security groups of the ENIs at both ends, and the network ACLs and route tables of their " +
	"subnets, must allow it"

// both makes a small call and then a large one.
func both(ctx context.Context, n *nl.NS, to netip.AddrPort) error {
	if _, err := query(ctx, n, to, call{Size: little}); err != nil {
		return reason(err)
	}
	a, err := query(ctx, n, to, call{Size: large})
	if err != nil || a.Bytes != large {
		return fmt.Errorf("%w: %v", errLarge, err)
	}
	return nil
}

// nodeAddr is the node's address that its pods use.
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

// metadata returns two paths to the metadata service: the node's, which the plugins need, and the pods'. IPv6 is an
// option that most instances do not have, so only the block of pods is tried.
func (s *scene) metadata(f nl.Family) (all []path) {
	to, a := metadataAddrs[f], s.pods[0]
	if f == nl.IPv4 {
		all = append(all, path{name: "node to metadata", family: f, from: s.node, to: to,
			probe: func(ctx context.Context) error { return http(ctx, s.node, to) },
			outside: "the metadata service must be enabled: aws ec2 describe-instances shows HttpEndpoint in " +
				"MetadataOptions. " +
				"Without it, the node cannot get more addresses"})
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
			ctx, cancel := context.WithTimeout(ctx, tryFor/2)
			defer cancel()
			answered = http(ctx, a.ns, to) == nil
			if answered && blocked {
				return errors.New("the configuration blocks it, and it answers")
			}
			return nil
		},
		note: func() string {
			switch {
			case blocked:
				return "blocked, as the configuration says"
			case answered:
				return "it answers: pods can get the node's role"
			}
			return "it does not answer pods: EC2's hop limit is 1"
		}})
}

// beyond are the paths that need Kubernetes or the internet.
func (s *scene) beyond(f nl.Family) []path {
	return append(s.services(f), s.internet(f)...)
}

func (s *scene) services(f nl.Family) []path {
	a := s.pods[0]
	api := path{name: "pod to Service", family: f, from: a.ns, pod: a, to: s.Service,
		outside: "the backends of the Service must allow this pod in their security groups"}
	if !api.to.IsValid() {
		api.to = s.kubernetes(f)
	}
	api.probe = func(ctx context.Context) error { return connect(ctx, a.ns, api.to) }
	dns := path{name: "pod to DNS", family: f, from: a.ns, pod: a, to: netip.AddrPortFrom(s.DNS, 53),
		outside: "the DNS pods must run (kubectl -n kube-system get pods), and their security groups allow UDP " +
			"and TCP port 53"}
	dns.probe = func(ctx context.Context) error { return lookup(ctx, a.ns, dns.to, s.Name) }
	if !api.to.IsValid() {
		api.skip = "kube-proxy has no rules for Services here: name one by --service ADDRESS:PORT"
	}
	if !s.DNS.IsValid() {
		dns.skip = "the kubelet's configuration names no DNS server: name one by --dns ADDRESS"
	}
	var all []path
	for _, p := range []path{api, dns} {
		if !p.to.Addr().IsValid() && f == nl.IPv4 || nl.FamilyOf(p.to.Addr()) == f {
			all = append(all, p)
		}
	}
	return all
}

// kubernetes is the Service of the API server: the API server takes the first address of the range for it.
func (s *scene) kubernetes(f nl.Family) netip.AddrPort {
	addrs, err := s.node.ClusterIPs(f)
	if err != nil || len(addrs) == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addrs[0], 443)
}

// internet is the path outside of the VPC.
func (s *scene) internet(f nl.Family) []path {
	a := s.pods[0]
	p := path{name: "pod to internet", family: f, from: a.ns, pod: a, outside: s.outsideOf(f)}
	to, err := s.host(f)
	switch {
	case s.Internet == "":
		p.skip = "no host is named: name one by --internet HOST:PORT"
	case err != nil:
		p.skip = err.Error()
	default:
		p.to = to
		if dev, err := ask.Leaves(a.ns, a.addr(f), to.Addr()); err == nil && len(dev) > 6 && dev[:6] == "egress" {
			p.name = "pod to internet, by egress"
			p.outside = "the routers of the egress must run and reach the internet: " + cli.Name + " egress"
		}
		if !s.Explicit && connectShortly(s.node, to) != nil {
			p.skip = "the node itself does not reach it: name another host by --internet HOST:PORT"
		}
	}
	if f == nl.IPv6 && p.skip != "" {
		return nil
	}
	p.probe = func(ctx context.Context) error { return connect(ctx, a.ns, p.to) }
	return []path{p}
}

func (s *scene) outsideOf(f nl.Family) string {
	if f == nl.IPv6 {
		return "the subnet of the pod's ENI must have a route to an internet gateway or an egress-only one, and its " +
			"security groups must allow it"
	}
	return "the subnet of " + s.Network.Pair.HostInterface + " needs a route to a NAT gateway. Without one, " +
		"this ENI needs a public address, and a route to an internet gateway. Its security groups must allow it"
}

// host resolves the host of the internet, as the node does.
func (s *scene) host(f nl.Family) (netip.AddrPort, error) {
	name, text, err := net.SplitHostPort(s.Internet)
	if err != nil {
		return netip.AddrPort{}, err
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	network := "ip4"
	if f == nl.IPv6 {
		network = "ip6"
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, network, name)
	if err != nil || len(addrs) == 0 {
		return netip.AddrPort{}, fmt.Errorf("the node does not resolve %s: name a host by --internet HOST:PORT", name)
	}
	a := addrs[0].Unmap()
	if a.IsPrivate() && !s.Explicit {
		return netip.AddrPort{}, fmt.Errorf("%s is %s here, which is not the internet: name a host by --internet "+
			"HOST:PORT", name, a)
	}
	return netip.AddrPortFrom(a, uint16(number)), nil
}

func connectShortly(n *nl.NS, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	return connect(ctx, n, to)
}
