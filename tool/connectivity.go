// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/connectivity"
)

// usualInternet is the host to which the test connects by default, to try the path to the internet. If the VPC has an
// endpoint for this host, the host's name resolves to a private address, and the test skips the path.
const usualInternet = "sts.amazonaws.com:443"

func connectivityTest() *cli.Command {
	return &cli.Command{
		Name:  "connectivity-test",
		Usage: "Make two test pods, try each path of pods with them, and say where a packet stops",
		Description: `It makes two pods on this node by the plugins of the conflist, like a container
runtime. These pods get addresses like any pod, and their leases end with the test.
For each family, it sends packets from pod to pod, and to and from the node. It also
tries the VPC gateway, the metadata service, the Service of the API server, the DNS
server and the internet. It changes nothing in other pods.

If a path fails, the exit status is 1, and the command says where the packet
stopped, why, and what to do. To find the cause, it watches the links, and asks
the kernel for the verdicts of netfilter and for routes. If the test is killed, the next
runs of registry-gc remove its leases and rules.

With --serve, it makes one pod. The pod and this node answer at --port, until an operator
interrupts the command, or the time of --for is over. Meanwhile, run
connectivity-test --peer ADDRESS on another node, with an address of this node. That
test tries the paths between the two nodes. The security groups of both nodes must allow
this port.` +
			cli.JSON("network failed took_ms pods[] {name ips iface} "+
				"paths[] {path family from to state (works fails skipped) took_ms stopped cause do}"),
		Flags: []cli.Flag{
			conf.Flag(),
			&cli.StringFlag{Name: "bin-dir", Value: conf.UsualBinDir(), Usage: "look for the plugins in `DIR`"},
			&cli.StringFlag{Name: "network", DefaultText: "the first", Usage: "test the network `NAME` of the " +
				"configuration"},
			&cli.StringFlag{Name: "namespace", Value: "default",
				Usage: "make the pods in the Kubernetes namespace `NAME`, which decides their pools and egresses"},
			&cli.StringFlag{Name: "service", DefaultText: "the API server's",
				Usage: "connect to the Service at `ADDRESS:PORT`"},
			&cli.StringFlag{Name: "dns", DefaultText: "the kubelet's", Usage: "ask the DNS server at `ADDRESS`"},
			&cli.StringFlag{Name: "name", Value: "kubernetes.default.svc.cluster.local.", Usage: "ask the DNS server " +
				"for `NAME`"},
			&cli.StringFlag{Name: "internet", Value: usualInternet,
				Usage: "connect to `HOST:PORT` outside of the VPC; with the value none, skip this path"},
			&cli.StringFlag{Name: "peer", Usage: "try the paths to the node with `ADDRESS`; --serve must run there"},
			&cli.BoolFlag{Name: "serve", Usage: "make a pod, and answer another node"},
			&cli.IntFlag{Name: "port", Value: connectivity.DefaultPort, Usage: "the TCP port `N`: --serve answers " +
				"there, --peer connects to it"},
			&cli.DurationFlag{Name: "within", Value: connectivity.Least,
				Usage: "take at most `TIME`; a busy node needs more than the default"},
			&cli.DurationFlag{Name: "for", Value: 10 * time.Minute, Usage: "with --serve, end after `TIME`"},
		},
		Action: func(c *cli.Context) error {
			t, err := testOf(c)
			if err == nil {
				err = cli.NeedRoot()
			}
			if err != nil {
				return err
			}
			if c.Bool("serve") {
				return serve(c, t)
			}
			stop := cli.Working("try the paths")
			r, err := t.Run(c.Context)
			stop()
			if err == nil {
				err = cli.Answer(c, r, r.Print)
			}
			if err == nil && r.Failed > 0 {
				err = errors.New(cli.Count(r.Failed, "path") + " of this node's pods failed")
			}
			return err
		},
	}
}

// serve makes a pod, and answers the tests of another node until the time of the flag --for is over.
func serve(c *cli.Context, t connectivity.Test) error {
	ctx, cancel := context.WithTimeout(c.Context, c.Duration("for"))
	defer cancel()
	return t.Serve(ctx, func(r connectivity.Report) error {
		return cli.Answer(c, r, func(w io.Writer) {
			fmt.Fprintf(w, "the pod %s answers at %v, and this node answers, too, both at port %d. Now run on "+
				"another node: %s connectivity-test --peer ADDRESS, with an address of this node\n",
				r.Pods[0].Name, r.Pods[0].Addrs, t.Port, cli.Name)
		})
	})
}

func testOf(c *cli.Context) (t connectivity.Test, err error) {
	t = connectivity.Test{BinDir: c.String("bin-dir"), Namespace: c.String("namespace"), Name: c.String("name"),
		Internet: c.String("internet"), Explicit: c.String("internet") != usualInternet, Within: c.Duration("within")}
	if t.Within < connectivity.Least {
		return t, cli.Misuse(c, "--within %v: want %v or more", t.Within, connectivity.Least)
	}
	if t.Internet == "none" {
		t.Internet = ""
	}
	port := c.Int("port")
	if port < 1 || port > 65535 {
		return t, cli.Misuse(c, "--port %d: want 1 to 65535", port)
	}
	t.Port = uint16(port)
	for name, into := range map[string]*netip.Addr{"peer": &t.Peer, "dns": &t.DNS} {
		if text := c.String(name); text != "" {
			if *into, err = netip.ParseAddr(text); err != nil {
				return t, cli.Misuse(c, "--%s %q: want an IP address", name, text)
			}
		}
	}
	if text := c.String("service"); text != "" {
		if t.Service, err = netip.ParseAddrPort(text); err != nil {
			return t, cli.Misuse(c, "--service %q: want an IP address and a port, such as 172.20.0.1:443", text)
		}
	}
	if _, _, err := net.SplitHostPort(t.Internet); err != nil && t.Internet != "" {
		return t, cli.Misuse(c, "--internet %q: want a host and a port, such as %s", t.Internet, usualInternet)
	}
	if !t.DNS.IsValid() {
		t.DNS = connectivity.KubeletDNS()
	}
	t.Network, err = networkNamed(conf.Load(c.String("config")), c.String("network"))
	return t, err
}

// networkNamed returns the network that has this name, or the first network if name is "". It looks only at networks
// with our veth pairs.
func networkNamed(conflists *conf.Conflists, name string) (conf.Network, error) {
	networks, err := conflists.Networks()
	for _, n := range networks {
		if cmp.Or(name, n.Name) == n.Name {
			return n, nil
		}
	}
	if err == nil && name != "" {
		err = fmt.Errorf("%s: there is no network %q with %s or %s", conflists.Path, name, conf.TypeAll, conf.TypePTP)
	}
	return conf.Network{}, cmp.Or(err, fmt.Errorf("%s: no network has %s or %s", conflists.Path, conf.TypeAll,
		conf.TypePTP))
}
