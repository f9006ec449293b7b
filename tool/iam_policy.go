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
		Usage: "Print the permissions that the role of the node needs, and no others",
		Description: `For the policy of the instance role:

    aws iam put-role-policy --role-name NODE --policy-name cni \
        --policy-document "$(` + Name + ` iam-policy --config 10-pods.conflist)"

The command needs neither root nor EC2. A node may change only ENIs with the tag
` + book.TagManaged + `. Our ENIs get this tag when they are created, and
the role cannot give this tag to an existing ENI. (With interfaceIndex 0, the role may change addresses without
this condition, because the boot ENI has no such tag.) The role may attach and detach ENIs only at
the instance that makes the call. So the node must use the credentials of its own role. The policy limits subnets to
subnetTags, and security groups to secGroupIds. If --config is a directory, the policy is for all
networks in it together. If pods use ENIs without our tags, add --untagged. Such ENIs are those of
the original plugin, and those of your own launch template.` +
			cli.JSON("Version Statement[] {Sid Effect Action Resource Condition}"),
		Flags: []cli.Flag{
			conf.Flag(),
			&cli.StringFlag{Name: "mode", DefaultText: "provision of the configuration",
				Usage: "use the provision `MODE` (none, assign or full), and not the configuration's"},
			&cli.BoolFlag{Name: "eni-gc", Usage: "allow " + Name +
				" eni-gc as well, to delete ENIs that other instances have left behind"},
			&cli.BoolFlag{Name: "untagged", Usage: "allow changes of ENIs without our tags, too"},
			&cli.StringFlag{Name: "partition", DefaultText: "the partition of $AWS_REGION, else aws",
				Usage: "write ARNs of the `PARTITION`, such as aws-cn for China or aws-us-gov for GovCloud"},
		},
		Action: func(c *cli.Context) error {
			n, err := needsOf(c)
			if err != nil {
				return err
			}
			p := n.Policy()
			if len(p.Statement) == 0 {
				slog.Info("this node does not call EC2, so its role needs no policy. The printed policy is " +
					"empty, and IAM would refuse it")
			}
			return cli.Answer(c, p, func(w io.Writer) {
				e := json.NewEncoder(w)
				e.SetIndent("", "    ")
				_ = e.Encode(p) // ignore the error: JSON can encode a policy, and w is in memory
			})
		},
	}
}

// needsOf reads the command line, and the configuration at the path in --config. On a machine without a configuration,
// the command line must have --mode.
func needsOf(c *cli.Context) (iam.Needs, error) {
	n := iam.Needs{Mode: lease.Provision(c.String("mode")), ENIGC: c.Bool("eni-gc"), Untagged: c.Bool("untagged"),
		Partition: cmp.Or(c.String("partition"), aws.Partition(aws.Environment(os.Getenv).Region()))}
	if !slices.Contains([]lease.Provision{"", lease.ProvisionNone, lease.ProvisionAssign,
		lease.ProvisionFull}, n.Mode) {
		return n, cli.Misuse(c, "--mode %q: want none, assign or full", n.Mode)
	}
	if all := aws.Partitions(); !slices.Contains(all, n.Partition) {
		return n, cli.Misuse(c, "--partition %q: want one of %s", n.Partition, strings.Join(all, ", "))
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
