// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package connectivity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ask"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// causeOf returns what has stopped the packet, and what an operator can do. It first looks for the causes that are
// certain.
func (s *scene) causeOf(f finding) (cause, do string) {
	down := s.downLink(f)
	switch {
	case errors.Is(f.failed, errLarge):
		return s.whyLarge()
	case down != "":
		return "the link " + down + " is down",
			"ip link set " + down + " up, and run " + cli.Name + " repair"
	case len(f.drops) > 0:
		return s.whyDropped(f)
	case f.checkErr != nil:
		return "a part of a test pod's network is missing: " + firstLine(f.checkErr),
			"run " + cli.Name + " repair, and then " + cli.Name + " doctor. Doctor looks for the program that has " +
				"removed this part"
	case errors.Is(f.failed, errRefused):
		return fmt.Sprintf("the packet arrived, but %s refuses the connection", f.to),
			fmt.Sprintf("a program must listen at %s. If this is the address of a Service, the Service needs ready "+
				"endpoints", f.to)
	}
	l, any := s.furthestSighting(f)
	if any && l.ns == s.node && !l.Out {
		if cause, do := s.whyKept(f, l); cause != "" {
			return cause, do
		}
	}
	if any && l.ns == s.node && l.Out && !slices.Contains(s.veths(), l.Link) || any && l.ns != s.node && l.Out {
		return s.whyOutside(f)
	}
	return f.withCounters(f.failed.Error()), strings.TrimSuffix("run "+cli.Name+" doctor; "+f.advice, "; ")
}

// withCounters adds the changed drop counters of the kernel to the text of a cause.
func (f finding) withCounters(cause string) string {
	if len(f.counted) == 0 {
		return cause
	}
	return cause + ". During the test, the node's kernel has counted drops, perhaps of other packets: " +
		strings.Join(f.counted, ", ")
}

// whyDropped explains why a rule of netfilter has dropped the packet.
func (s *scene) whyDropped(f finding) (cause, do string) {
	d := f.drops[0]
	family, table, _ := strings.Cut(d.Table, " ")
	if table == "kube-proxy" || strings.HasPrefix(d.Chain, "KUBE-") {
		return fmt.Sprintf("kube-proxy refuses the packet, because %s has no ready endpoints, or is no Service", f.to),
			"kubectl get endpointslices --all-namespaces shows the endpoints of Services"
	}
	if strings.HasPrefix(table, nl.OwnTable) {
		return d.String() + " drops the packet. This table of our plugins drops packets that a pod sends with the " +
				"address of another pod or host, or that take a wrong link",
			"run " + cli.Name + " repair, because a rule or a route of the pod is missing"
	}
	return d.String() + " drops the packet. The table belongs to another program",
		fmt.Sprintf("look at the chain: nft --handle list chain %s %s %s. Let packets from pods and to pods pass, see "+
			"\"The firewall drops what the node forwards\" in docs/operations.md", family, table, d.Chain)
}

// whyLarge explains why large packets are lost. They are too large for a link on the way.
func (s *scene) whyLarge() (cause, do string) {
	var mtus []string
	for _, name := range s.presentLinks(slices.Compact(slices.Concat([]string{s.Network.Pair.HostInterface}, s.veths(),
		[]string{s.pods[0].eni}))) {
		if l, err := s.node.LinkByName(name); err == nil {
			mtus = append(mtus, fmt.Sprintf("%s %d", name, l.MTU))
		}
	}
	return "a link on the way takes only smaller packets, and the sender gets no ICMP message about this. The MTUs " +
			"of this node's links: " + strings.Join(mtus, ", "),
		"all links on the way need the same MTU. Or firewalls must let the ICMP messages \"fragmentation needed\" " +
			"and \"packet too big\" pass. EC2 has an MTU of 9001 in a VPC, 8500 by a transit gateway, 1500 to the " +
			"internet. The keys \"mtu\" of the conflist set the MTUs of new pods"
}

// whyKept explains why the node has not forwarded a packet that has reached the node.
func (s *scene) whyKept(f finding, l sighting) (cause, do string) {
	dev, err := ask.Forwards(s.node, l.Link, l.From, l.To)
	forward := s.blockingSysctl(f.family, l.Link)
	switch {
	case errors.Is(err, ask.ErrSource) && f.family == nl.IPv4:
		return f.withCounters(fmt.Sprintf("the kernel's reverse path filter (rp_filter) drops the packet at %s, "+
				"because the route to its source %s is by another link", l.Link, l.From)),
			fmt.Sprintf("sysctl -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.%s.rp_filter=2. Then correct the "+
				"file in /etc/sysctl.d that sets rp_filter", l.Link)
	case forward.Key != "":
		return fmt.Sprintf("the node does not forward packets that arrive by %s, because this sysctl is 0: %s", l.Link,
			forward.Key), forward.String() + ". Then correct the program or the file in /etc/sysctl.d that sets 0"
	case err != nil:
		return err.Error(), "run " + cli.Name + " doctor"
	case dev == "":
		return f.withCounters(fmt.Sprintf("the node has no route for the packet: ip route get %s from %s iif %s",
				l.To, l.From,
				l.Link)),
			"run " + cli.Name + " repair, and " + cli.Name + " doctor --check rules"
	}
	return "", ""
}

// blockingSysctl returns a sysctl with the value 0 that forbids the node to forward packets from a link. For IPv4, the
// node and the link have such a sysctl. For IPv6, only the node has one. If none is 0, the key of the result is empty.
func (s *scene) blockingSysctl(f nl.Family, link string) nl.Sysctl {
	keys := []string{"net/ipv4/ip_forward", "net/ipv4/conf/" + link + "/forwarding"}
	if f == nl.IPv6 {
		keys = []string{"net/ipv6/conf/all/forwarding"}
	}
	for _, key := range keys {
		if v, _ := s.node.Sysctl(key); v == "0" {
			return nl.Sysctl{Key: key, Value: "1"}
		}
	}
	return nl.Sysctl{}
}

// whyOutside explains why a packet was lost after it had left the node. The node cannot see what EC2 does with the
// packet.
func (s *scene) whyOutside(f finding) (cause, do string) {
	if cause := s.unassignedCause(f); cause != "" {
		return cause, "run " + cli.Name + " status --diff. If this command shows that EC2 lacks the address, " +
			"another program has unassigned the address. Then delete the pods that have lost their addresses"
	}
	return "the packet is lost outside of this node's kernel", cmp.Or(f.advice, groupsAdvice)
}

// downLink returns the first link that a path needs and that is down. A path needs the host interface, and the links of
// the pods' ENIs. If no link is down, downLink returns "".
func (s *scene) downLink(f finding) string {
	links := []string{s.Network.Pair.HostInterface}
	for _, p := range []*pod{f.pod, f.target} {
		if p != nil {
			links = append(links, p.eni)
		}
	}
	for _, name := range links {
		if l, err := s.node.LinkByName(name); err == nil && !l.Up {
			return name
		}
	}
	return ""
}

// unassignedCause returns a cause if a pod of the path has an address that no ENI of this instance has. EC2's
// source/destination check then drops the pod's packets. Metadata may lack a new address for minutes. So if metadata
// lacks the address, unassignedCause asks EC2, too. If metadata does not answer, or if the ENIs of this
// instance have the addresses of all pods of the path, the result is "".
func (s *scene) unassignedCause(f finding) string {
	enis, err := s.enis()
	if err != nil {
		return ""
	}
	has := func(enis []aws.ENI, a netip.Addr) bool {
		return slices.ContainsFunc(enis, func(e aws.ENI) bool { return hasAddr(e, a) })
	}
	for _, p := range []*pod{f.pod, f.target} {
		if p == nil || !p.addr(f.family).IsValid() {
			continue
		}
		a := p.addr(f.family)
		if has(enis, a) {
			continue
		}
		const drops = "EC2's source/destination check drops packets from the address"
		switch asked, err := s.ec2(); {
		case err != nil:
			return fmt.Sprintf("metadata shows the address %s on no ENI of this instance, but may be minutes behind "+
				"EC2. If EC2 does not show the address either, %s", a, drops)
		case !has(asked, a):
			return fmt.Sprintf("according to metadata and EC2, no ENI of this instance has the address %s, so %s", a,
				drops)
		}
	}
	return ""
}

func ec2ENIs() ([]aws.ENI, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*pathTimeout)
	defer cancel()
	cloud := aws.New(aws.Options{})
	i, err := cloud.Instance(ctx)
	if err != nil {
		return nil, err
	}
	return cloud.DescribeENIs(ctx, aws.ByInstance(i.ID))
}

func metadataENIs() ([]aws.ENI, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*pathTimeout)
	defer cancel()
	return aws.New(aws.Options{}).ENIs(ctx)
}

// hasAddr reports whether an ENI has an address, either as a single address or as part of a prefix.
func hasAddr(e aws.ENI, a netip.Addr) bool {
	return slices.Contains(slices.Concat(e.Addrs, e.IPv6Addrs), a) ||
		slices.ContainsFunc(slices.Concat(e.Prefixes, e.IPv6Prefixes),
			func(p netip.Prefix) bool { return p.Contains(a) })
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
