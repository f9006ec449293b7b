// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func maxPods() *cli.Command {
	return &cli.Command{
		Name:  "maxpods",
		Usage: "Print for how many pods this node can have addresses",
		Description: `For the kubelet:

    kubelet --max-pods=$(` + Name + ` maxpods --max 110)

The command uses the rules by which an ADD gets more addresses. It counts the ENIs
that the instance type and maxENIs allow, from interfaceIndex on, on all network
cards. For each ENI it counts the addresses, or 16 for each prefix. A pod with both
families needs an address of each family. The command assumes that the subnets have
enough addresses.

If the configuration has several pools, the number is right for pods of any of them.
The command assumes the worst case: a pool takes a whole ENI for its first pod. If
all pods of the node are of one pool, use --pool. If pods may ask for ENIs (key
requests), the command leaves out one ENI, or as many as --except-enis says. A pod
with several interfaces or networks needs several addresses: set a lower number
with --max.

With "provision": "none" or "assign", it counts the ENIs that the instance has now.
With --instance-type and "none", it counts the ENIs that launch-template prints. With
--instance-type and "assign", it counts as many ENIs as the type can have. If pods
have only IPv6, addresses do not limit their number on Nitro types. The command then
prints --max, or 110, which is the kubelet's default.

Without a configuration, it assumes one pool of IPv4 without prefixes, from device
index 1 on, like the original plugin's tool. If neither EC2 nor the registry has the
limits of this instance's type, it warns and uses 110. Kubernetes recommends at most
110 pods for a node. EKS recommends at most 250 for a node with more than 30 CPUs.
The command does not know these recommendations: set such a limit by --max.

--format prints the number, or an expression, for a program that launches nodes:

    karpenter  maxPods of an EC2NodeClass: an expression for all instance types, or
               the number for --instance-type. Expressions need a Karpenter
               after 1.14, with the feature gate NodeClassCEL. A Karpenter up to
               1.14 takes only a number
    nodeadm    a NodeConfig of EKS: with an expression (maxPodsExpression, in AMIs
               from v20251007 on), or with the number for --instance-type
    kops       maxPods of an InstanceGroup, which takes a number
    asg        the tag of an Auto Scaling group, by which the Cluster Autoscaler
               knows the number if the group has no node
    overlay, asg-addresses
               for --instance-type: the resources of the command advertise, one for
               each pool, as a NodeOverlay of Karpenter, or as tags of an Auto
               Scaling group. Each resource is a number of addresses: --max and
               --host-network do not apply

An expression knows only one network card and the IPv4 addresses of an ENI. So use
it for types with one card. If prefixDelegation is true, use it for Nitro types. If
ipFamilies has IPv6, use it for types with IPv6. For other types, use
--instance-type.` + cli.JSON(`max_pods
    with --format karpenter or nodeadm: expression
    with --format overlay or asg-addresses: [] resource number`),
		Flags: []cli.Flag{
			conf.Flag(),
			&cli.StringFlag{Name: "instance-type", DefaultText: "this instance's",
				Usage: "respect the limits of `TYPE`"},
			&cli.StringFlag{Name: "pool", DefaultText: "pods of any pool", Usage: "count only pods of the pool `NAME`"},
			&cli.IntFlag{Name: "max", DefaultText: "maxPods of the configuration", Usage: "print at most `N`"},
			&cli.IntFlag{Name: "except-enis", DefaultText: "1 if pods may ask for ENIs, else 0",
				Usage: "leave out `N` ENIs, for pods that ask for ENIs, or for other programs"},
			&cli.IntFlag{Name: "host-network",
				Usage: "add `N` pods on the host network, which take no addresses"},
			&cli.StringFlag{Name: "format", DefaultText: "the number",
				Usage: "print the number for `PROGRAM`: " + strings.Join(formatNames(), ", ")},
		},
		Action: func(c *cli.Context) error {
			n, err := nodeOf(c)
			if err != nil {
				return err
			}
			switch f := formatOf(n.format); {
			case f.resources != nil:
				return n.printResources(c, f)
			case f.dialect != nil && n.kind == "":
				return n.printExpression(c, f)
			}
			pods, err := n.podCount(c)
			if err != nil {
				return err
			}
			return cli.Answer(c, map[string]int{"max_pods": pods}, func(w io.Writer) {
				fmt.Fprintf(w, formatOf(n.format).number, pods)
			})
		},
	}
}

// A podNode is the node whose pods the command maxpods counts. The command line and the configuration describe this
// node.
type podNode struct {
	path   string // path of the configuration
	pools  []lease.Policy
	kind   string // the instance type; "": the type of this instance
	except int    // number of ENIs not to count, because pods ask for them, or other programs use them
	host   int    // number of pods on the host network
	most   int    // greatest number of pods; 0: no limit
	format string
}

func nodeOf(c *cli.Context) (podNode, error) {
	n := podNode{path: c.String("config"), kind: c.String("instance-type"), except: c.Int("except-enis"),
		host: c.Int("host-network"), most: c.Int("max"), format: c.String("format")}
	for _, f := range []struct{ name, of string }{{"max", "pods"}, {"except-enis", "ENIs"}, {"host-network", "pods"}} {
		if v := c.Int(f.name); v < 0 {
			return n, cli.Misuse(c, "--%s %d: want 0 or more %s", f.name, v, f.of)
		}
	}
	if n.format != "" && !slices.Contains(formatNames(), n.format) {
		return n, cli.Misuse(c, "--format %q: want one of %s", n.format, strings.Join(formatNames(), ", "))
	}
	networks, err := conf.Load(n.path).All()
	switch {
	case conf.Absent(err) && !c.IsSet("config"):
		slog.Warn("there is no configuration yet: this command assumes one pool of IPv4 without prefixes, from "+
			"device index 1 on; give the configuration with --config FILE", "path", n.path)
		n.pools = []lease.Policy{{MinIndex: 1, Families: []lease.Family{lease.IPv4}, Provision: lease.ProvisionFull}}
		return n, nil
	case conf.Absent(err):
		return n, cli.Hint(err, "give our plugins' conflist, or its directory, with --config")
	case err != nil:
		return n, err
	}
	return n, n.setPools(c, networks)
}

// setPools takes the pools and the limits from the configuration. A flag on the command line has precedence over the
// configuration.
func (n *podNode) setPools(c *cli.Context, networks []conf.List) error {
	pools, takes := poolsOf(networks)
	if takes && !c.IsSet("except-enis") {
		n.except = 1
	}
	if !c.IsSet("max") {
		for _, l := range networks {
			n.most = max(n.most, l.IPAM.MaxPods)
		}
	}
	if n.pools = pools; c.IsSet("pool") {
		one, err := poolNamed(c, pools, c.String("pool"))
		if err != nil {
			return err
		}
		n.pools = []lease.Policy{one}
	}
	return nil
}

// podCount returns how many pods the kubelet may accept.
func (n podNode) podCount(c *cli.Context) (int, error) {
	l, err := n.limits(c)
	switch {
	case errors.Is(err, aws.ErrNoMetadata) && n.kind == "":
		return 0, cli.Hint(err, "on a machine that is no EC2 instance, add --instance-type")
	case err != nil && n.kind != "":
		return 0, err
	case err != nil:
		slog.Warn("the limits of this instance type are not known, so the command uses the kubelet's default", "pods",
			conf.KubeletPods, "error", err)
		return n.limitedPods(conf.KubeletPods), nil
	}
	pods, err := n.podsWithAddrs(c, l)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", n.path, err)
	}
	switch {
	case pods >= lease.Plenty && n.most == 0:
		slog.Warn("IPv6 addresses do not limit the number of pods, so the command uses the kubelet's default; set "+
			"another number by --max",
			"pods", conf.KubeletPods)
		return conf.KubeletPods, nil
	case pods == 0:
		slog.Warn("no pod can have an address, because there is no ENI for pods. Check maxENIs, interfaceIndex, "+
			"ipFamilies, --except-enis, the instance type and the attached ENIs", "config", n.path)
	}
	return n.limitedPods(pods + n.host), nil
}

// limitedPods returns its argument, but not more than n.most, which is the limit from --max or from the key maxPods.
func (n podNode) limitedPods(pods int) int {
	if n.most > 0 {
		return min(pods, n.most)
	}
	return pods
}

// limits asks EC2 for the limits of the instance type. If the command line names no type, and no pool may get addresses
// from EC2, the result is empty. The caller then counts only the addresses of attached ENIs.
func (n podNode) limits(c *cli.Context) (aws.Limits, error) {
	grows := func(p lease.Policy) bool { return p.Provision != lease.ProvisionNone }
	switch {
	case n.kind != "":
		return limitsOf(c.Context, aws.New(aws.Options{}), n.kind)
	case !slices.ContainsFunc(n.pools, grows):
		return aws.Limits{}, nil
	}
	return view.Limits(c.Context)
}

// podsWithAddrs returns the number of pods for which the node can have addresses.
func (n podNode) podsWithAddrs(c *cli.Context, l aws.Limits) (int, error) {
	provision := n.pools[0].Provision
	switch {
	case provision == lease.ProvisionFull:
	case n.kind == "":
		tagged := slices.ContainsFunc(n.pools, func(p lease.Policy) bool { return p.Pools })
		s, err := view.Attached(c.Context, l, tagged)
		if err != nil {
			return 0, err
		}
		return more.Pods(s, n.pools, n.except), nil
	case provision == lease.ProvisionNone:
		return n.templatePods(c, l)
	}
	pools := slices.Clone(n.pools)
	var families []lease.Family
	for i := range pools {
		pools[i].Provision, families = lease.ProvisionFull, append(families, pools[i].Families...)
	}
	return more.Pods(more.Launched(l, families), pools, n.except), nil
}

// templatePods returns the number of pods for which the ENIs of a launch template have addresses. All these ENIs belong
// to one pool.
func (n podNode) templatePods(c *cli.Context, l aws.Limits) (int, error) {
	p := launchPlan{Policy: n.pools[0], kind: n.kind, limits: l, except: n.except}
	p.MaxPods = 0 // 0: as many pods as fit
	if err := p.fillENI(c); err != nil {
		return 0, err
	}
	slots, err := p.eniSlots()
	if err != nil {
		return 0, err
	}
	pods := len(slots) * p.podsPerENI()
	if p.MinIndex == 0 {
		pods += p.bootPods()
	}
	return pods, nil
}

// limitsOf returns the limits of an instance type. On a machine that is no EC2 instance, the region and the credentials
// may be missing. Then the error has a hint.
func limitsOf(ctx context.Context, cloud *aws.Client, kind string) (aws.Limits, error) {
	l, err := cloud.Limits(ctx, kind)
	if errors.Is(err, aws.ErrNoMetadata) {
		// Use %v, not %w: for aws.ErrNoMetadata, Report would say that the command must run on an EC2 instance.
		err = cli.Hint(fmt.Errorf("the limits of the instance type are not known, because EC2 cannot be asked: %v",
			err),
			"on a machine that is no EC2 instance, set AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. This "+
				"program reads no AWS_PROFILE: aws configure export-credentials --format env prints the keys of a "+
				"profile")
	}
	return l, err
}
