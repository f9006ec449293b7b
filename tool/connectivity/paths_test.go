// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package connectivity

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// TestUnassigned: packets of a pod are lost, and metadata does not show the pod's address. If EC2 shows the address,
// metadata lags, and the packets were lost for another reason. If EC2 does not answer, metadata may lag or be right.
func TestUnassigned(t *testing.T) {
	a := netip.MustParseAddr("10.0.1.5")
	has, lacks := []aws.ENI{{Addrs: []netip.Addr{a}}}, []aws.ENI{{ID: "eni-1"}}
	for _, c := range []struct {
		metadata, ec2 []aws.ENI
		failed        error
		cause, do     string
	}{
		{has, lacks, nil, "outside of this node's kernel", "security groups"},
		{lacks, has, nil, "outside of this node's kernel", "security groups"},
		{lacks, lacks, nil, "according to metadata and EC2, no ENI of this instance has the address",
			"delete the pods"},
		{lacks, nil, errRefused, "may be minutes behind", "status --diff"},
	} {
		s := &scene{enis: func() ([]aws.ENI, error) { return c.metadata, nil },
			ec2: func() ([]aws.ENI, error) { return c.ec2, c.failed }}
		cause, do := s.whyOutside(finding{path: path{family: nl.IPv4, pod: &pod{addrs: []netip.Addr{a}}}})
		if !strings.Contains(cause, c.cause) || !strings.Contains(do, c.do) {
			t.Errorf("metadata %v, EC2 %v, %v: %s: %s", c.metadata, c.ec2, c.failed, cause, do)
		}
	}
}

// TestServiceFamily: in a cluster with both families, the API server's Service has only an address of the cluster's
// first family. In this family, connectivity-test must call this Service. In the other family it must call no Service,
// because the other Services may lack port 443.
func TestServiceFamily(t *testing.T) {
	n, _ := nltest.NS(t, "node")
	for table, set := range map[string]string{"ip kube-proxy": "type ipv4_addr; elements = { 10.96.0.1 };",
		"ip6 kube-proxy": "type ipv6_addr; elements = { fd00:96::77 };"} {
		nltest.Shell(t, n, fmt.Sprintf("nft 'add table %s; add set %s cluster-ips { %s }'", table, table, set))
	}
	bare, _ := nltest.NS(t, "bare") // no kube-proxy
	pod4, pod6 := netip.MustParseAddr("10.0.1.5"), netip.MustParseAddr("2001:db8::5")
	both := []netip.Addr{pod4, pod6}
	const rules, other = "this node has no rules of kube-proxy", "the pods of this test have no IPv4 address"
	for _, c := range []struct {
		node      *nl.NS
		pod       []netip.Addr
		dns       string
		to, skips string
	}{
		{n, both, "10.96.0.10", "10.96.0.1:443", ""},
		{n, both, "fd00:96::a", "[fd00:96::77]:443", ""},
		{n, both, "", "10.96.0.1:443", ""},
		{n, []netip.Addr{pod6}, "", "[fd00:96::77]:443", ""},
		{n, []netip.Addr{pod6}, "10.96.0.10", "[fd00:96::77]:443", other},
		{bare, []netip.Addr{pod6}, "", "invalid AddrPort", rules},
	} {
		s := &scene{node: c.node, pods: []*pod{{addrs: c.pod}}}
		s.DNS, _ = netip.ParseAddr(c.dns)
		var names, to, skips []string
		for _, a := range c.pod {
			for _, p := range s.servicePaths(nl.FamilyOf(a)) {
				names, to, skips = append(names, p.name), append(to, p.to.String()), append(skips, p.skip)
			}
		}
		if !slices.Equal(names, []string{"pod to Service", "pod to DNS"}) || to[0] != c.to ||
			!strings.Contains(strings.Join(skips, "\n"), c.skips) {
			t.Errorf("pod %v, DNS server %q: %v to %v, skipped %q", c.pod, c.dns, names, to, skips)
		}
	}
}

// TestBoth: after a small call, a server either accepts no more connections, or closes each connection without an
// answer. Only the second behaviour can mean that large packets are lost.
func TestBoth(t *testing.T) {
	n, _ := nltest.NS(t, "node")
	nltest.Shell(t, n, "ip link set lo up")
	for _, tt := range []struct {
		refuses bool
		want    error
	}{{true, errRefused}, {false, errLarge}} {
		var l net.Listener
		if err := n.Do(func() (err error) { l, err = net.Listen("tcp4", "127.0.0.1:0"); return err }); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- answerOnce(l, tt.refuses) }()
		to := netip.MustParseAddrPort(l.Addr().String())
		if err := callSmallAndLarge(t.Context(), n, to); !errors.Is(err, tt.want) {
			t.Errorf("refuses %v: %v, want %v", tt.refuses, err, tt.want)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// answerOnce answers one call. If refuses is true, it closes the listener before the answer. Otherwise it closes the
// next connection without an answer.
func answerOnce(l net.Listener, refuses bool) error {
	defer l.Close()
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	if refuses {
		l.Close()
	}
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(c, "{}"); err != nil || refuses {
		return err
	}
	next, err := l.Accept()
	if err != nil {
		return err
	}
	return next.Close()
}

// TestAddTimeout checks that the addTimeout is always between 1 and 90 seconds, as the plugins demand, for each
// --within.
func TestAddTimeout(t *testing.T) {
	for within, want := range map[time.Duration]time.Duration{Least: 6 * time.Second, time.Hour: conf.MostAddTimeout} {
		if got := (Test{Within: within}).addTimeout(); got != want {
			t.Errorf("--within %v: addTimeout %v, want %v", within, got, want)
		}
	}
}

// TestAddAdvice checks the advice to use a longer --within. The advice helps only if the ADD has waited for its maximum
// time, and if a longer maximum is possible.
func TestAddAdvice(t *testing.T) {
	for _, c := range []struct {
		within, took time.Duration
		longer       bool
	}{{Least, 6 * time.Second, true}, {Least, time.Second, false}, {time.Hour, conf.MostAddTimeout, false}} {
		got := (Test{Within: c.within}).addAdvice(errSilent, c.took)
		if strings.Contains(got, "with a longer --within") != c.longer {
			t.Errorf("--within %v, after %v: %s", c.within, c.took, got)
		}
	}
}

// TestPlaceOf: the request or the answer has left the node through the link of an ENI. placeOf must say which of the
// two has left.
func TestPlaceOf(t *testing.T) {
	node, caller, server := &nl.NS{}, netip.MustParseAddr("10.0.1.5"), netip.MustParseAddr("10.0.1.6")
	s := &scene{node: node}
	for _, c := range []struct {
		from, to netip.Addr
		want     string
	}{
		{caller, server, "the packet left the node by eth1, and no answer came"},
		{server, caller, "the answer left the node by eth1, and did not arrive"},
	} {
		got := s.placeOf(finding{path: path{to: netip.AddrPortFrom(server, 80)},
			sightings: []sighting{{nl.Sighting{Link: "eth1", Out: true, From: c.from, To: c.to}, node}}})
		if got != c.want {
			t.Errorf("from %v to %v: %s, want %s", c.from, c.to, got, c.want)
		}
	}
}

// TestStopped: a sysctl prevents the node from forwarding a packet. For IPv4, this may be the sysctl of the node, or of
// the link on which the packet arrives. For IPv6, only the node's sysctl counts.
func TestStopped(t *testing.T) {
	n, _ := nltest.NS(t, "node")
	s := &scene{node: n}
	for _, c := range []struct {
		key, value string
		family     nl.Family
		want       string
	}{
		{"net/ipv4/ip_forward", "1", nl.IPv4, ""},
		{"net/ipv4/conf/lo/forwarding", "0", nl.IPv4, "net/ipv4/conf/lo/forwarding"},
		{"net/ipv4/ip_forward", "0", nl.IPv4, "net/ipv4/ip_forward"},
		{"net/ipv6/conf/all/forwarding", "0", nl.IPv6, "net/ipv6/conf/all/forwarding"},
		{"net/ipv6/conf/all/forwarding", "1", nl.IPv6, ""},
		{"net/ipv6/conf/lo/forwarding", "0", nl.IPv6, ""},
	} {
		if err := (nl.Sysctl{Key: c.key, Value: c.value}).Add(n); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		if got := s.blockingSysctl(c.family, "lo").Key; got != c.want {
			t.Errorf("after %s=%s: %q, want %q", c.key, c.value, got, c.want)
		}
	}
}
