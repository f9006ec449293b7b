// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim_test

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// TestServices calls the metadata service and EC2 at their addresses on an instance.
func TestServices(t *testing.T) {
	f := newFabric(t)
	i, other := run(t, f, "node", "subnet-nodes"), run(t, f, "other", "subnet-private")
	for _, i := range []*vpcsim.Instance{i, other} {
		const latest, header = "http://169.254.169.254/latest/", "X-aws-ec2-metadata-token"
		token := fetch(t, i, "PUT", latest+"api/token", header+"-ttl-seconds", "60")
		if got := fetch(t, i, "GET", latest+"meta-data/instance-id", header, token); got != i.ID {
			t.Errorf("instance-id %q, want %q", got, i.ID)
		}
	}
	for _, want := range []string{"CNI_IPVLAN_VPC_STATE_DIR=" + i.StateDir, "AWS_REGION=us-east-1"} {
		if !slices.Contains(i.Env(), want) {
			t.Errorf("environment %q lacks %s", i.Env(), want)
		}
	}
	if got := call(t, i, "DescribeVpcs").get(t, "vpcId"); got != "vpc-1" {
		t.Errorf("DescribeVpcs begins with %q, want vpc-1", got)
	}
	routes, err := i.Routes(nl.RouteFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range routes {
		if r.Dst.Addr().Is4() {
			got = append(got, r.String())
		}
	}
	want := []string{
		"ip route add default via 10.0.0.1 dev eth0 src 10.0.0.4 proto 16",
		"ip route add 10.0.0.0/24 dev eth0 scope link src 10.0.0.4 proto 2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("routes of an instance (-want +got):\n%s", diff)
	}
}

// TestMetadataHopLimit calls the metadata service from a pod whose packets an instance forwards. No answer must arrive.
func TestMetadataHopLimit(t *testing.T) {
	f := newFabric(t)
	i := run(t, f, "node", "subnet-nodes")
	pod, err := f.NewNamespace("pod")
	if err != nil {
		t.Fatal(err)
	}
	w := nl.Wiring{
		{NS: i.NS, Object: nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}},
		{NS: i.NS, Object: nl.Veth{Name: "pod", Peer: "eth0", PeerNS: pod.NS}},
		{NS: i.NS, Object: nl.Addr{Prefix: cidr("192.168.0.1/24"), Dev: "pod"}},
		{NS: i.NS, Object: nl.Table{Family: "ip", Name: "nat", Chains: []nl.Chain{
			{Name: "out", Type: "nat", Hook: "postrouting", Priority: 100, Rules: []nl.NFRule{
				{nl.OIFName("eth0"), nl.Masquerade()},
			}},
		}}},
		{NS: pod.NS, Object: nl.Addr{Prefix: cidr("192.168.0.2/24"), Dev: "eth0"}},
		{NS: pod.NS, Object: nl.Route{Dst: cidr("0.0.0.0/0"), Via: addr("192.168.0.1"), Dev: "eth0"}},
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	meet(t, pod, f.Internet, vpcsim.InternetAddr, i.PublicIP(), "tcp")
	dial := func(patience time.Duration) error {
		c, err := net.DialTimeout("tcp", "169.254.169.254:80", patience)
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := i.Do(func() error { return dial(time.Minute) }); err != nil {
		t.Errorf("from the instance: %v", err)
	}
	if err := pod.Do(func() error { return dial(300 * time.Millisecond) }); err == nil {
		t.Error("the answer has survived a hop")
	}
}
