// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/iam"
)

func iamPolicy() *cli.Command {
	return &cli.Command{
		Name:  "iam-policy",
		Usage: "Print what the role of the node must be allowed, and no more",
		Description: `For the policy of the instance role:

    aws iam put-role-policy --role-name NODE --policy-name cni \
        --policy-document "$(` + Name + ` iam-policy --config 10-pods.conflist)"

It needs neither root nor EC2. What a node may change is bound to the tag
` + book.TagManaged + `, with which our ENIs are created. The
role can give this tag to no other ENI. (With interfaceIndex 0 addresses are not
bound to it: the boot ENI has no such tag.) The role attaches ENIs to its own
instance alone, and detaches them from it alone. So the node must use the
credentials of its own role. Subnets are bound to subnetTags, security groups to
secGroupIds. If --config is a directory, the policy is what all its networks need
together. If pods are to use ENIs without our tags, add --untagged. Such are those of
the original, and of a launch template of your own.` +
			cli.JSON("Version Statement[] {Sid Effect Action Resource Condition}"),
		Flags: []cli.Flag{
			conf.Flag(),
			&cli.StringFlag{Name: "mode", DefaultText: "provision of the configuration",
				Usage: "of a node that works in `MODE` none, assign or full, whatever its configuration says"},
			&cli.BoolFlag{Name: "eni-gc", Usage: "allow " + Name +
				" eni-gc as well, to delete what other instances have left behind"},
			&cli.BoolFlag{Name: "untagged", Usage: "allow it for ENIs without our tags, too"},
			&cli.StringFlag{Name: "partition", DefaultText: "that of $AWS_REGION, else aws",
				Usage: "name resources in the `PARTITION`: aws-cn for China, aws-us-gov for GovCloud"},
		},
		Action: func(c *cli.Context) error {
			n, err := needsOf(c)
			if err != nil {
				return err
			}
			p := n.Policy()
			if len(p.Statement) == 0 {
				slog.Info("this node needs no answer of EC2, so it needs no policy: IAM does not accept an empty one")
			}
			return cli.Answer(c, p, func(w io.Writer) {
				e := json.NewEncoder(w)
				e.SetIndent("", "    ")
				_ = e.Encode(p) // it has no value that JSON cannot have; w is in memory
			})
		},
	}
}

// needsOf reads the command line and the configuration that it names. A machine that is no
// node has no configuration, and needs --mode.
func needsOf(c *cli.Context) (iam.Needs, error) {
	n := iam.Needs{Mode: lease.Provision(c.String("mode")), ENIGC: c.Bool("eni-gc"), Untagged: c.Bool("untagged"),
		Partition: cmp.Or(c.String("partition"), aws.Partition(aws.Environment(os.Getenv).Region()))}
	if !slices.Contains([]lease.Provision{"", lease.ProvisionNone, lease.ProvisionAssign,
		lease.ProvisionFull}, n.Mode) {
		return n, cli.Misuse(c, "--mode: %q: want none, assign or full", n.Mode)
	}
	if all := aws.Partitions(); !slices.Contains(all, n.Partition) {
		return n, cli.Misuse(c, "--partition: %q: want one of %s", n.Partition, strings.Join(all, ", "))
	}
	networks, err := conf.Load(c.String("config")).All()
	switch {
	case err == nil:
		for _, l := range networks {
			n.Networks = append(n.Networks, iam.Network{Pools: l.IPAM.Policies(), Requests: l.IPAM.Permissions})
		}
		return n, nil
	case c.IsSet("config") || n.Mode == "" || !conf.Absent(err):
		return n, err
	}
	n.Networks = []iam.Network{{Pools: []lease.Policy{{Families: []lease.Family{lease.IPv4}}}}}
	return n, nil
}
