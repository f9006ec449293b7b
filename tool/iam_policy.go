// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

func iamPolicy() *cli.Command {
	return &cli.Command{
		Name:  "iam-policy",
		Usage: "Print what the role of the node must be allowed, and no more",
		Description: `For the policy of the instance role:

    aws iam put-role-policy --role-name NODE --policy-name cni \
        --policy-document "$(` + Name + ` iam-policy --config 10-pods.conflist)"

It needs neither root nor EC2. What a node may change is bound to the tag
` + ipam.TagManaged + `, which our ENIs are born with; whoever
has the role can give it to no other. (With interfaceIndex 0 addresses are not:
the boot ENI has no such tag.) Subnets are bound to subnetTags, security
groups to secGroupIds. Where pods are to use ENIs without our tags, those of the
original or of a launch template of your own, add --untagged.`,
		Flags: []cli.Flag{
			configFlag(),
			&cli.StringFlag{Name: "mode", DefaultText: "provision of the configuration", Usage: "of a node that works in `MODE` none, assign or full, whatever its configuration says"},
			&cli.BoolFlag{Name: "eni-gc", Usage: "allow " + Name + " eni-gc as well, to delete what other instances have left behind"},
			&cli.BoolFlag{Name: "untagged", Usage: "allow it for ENIs without our tags, too"},
			&cli.StringFlag{Name: "partition", Value: "aws", Usage: "name resources in the `PARTITION` aws, aws-cn or aws-us-gov"},
		},
		Action: func(c *cli.Context) error {
			n, err := needsOf(c)
			if err != nil {
				return err
			}
			p := n.policy()
			if len(p.Statement) == 0 {
				slog.Info("the node asks EC2 for nothing: it needs no policy, and IAM takes none that is empty")
			}
			return answer(c, p, func(w io.Writer) {
				e := json.NewEncoder(w)
				e.SetIndent("", "    ")
				_ = e.Encode(p) // it has no value that JSON cannot have; w is in memory
			})
		},
	}
}

// A rolePolicy is a policy document (IAM user guide, "Grammar of the IAM JSON policy language").
type rolePolicy struct {
	Version   string
	Statement []permission
}

// A permission is a statement of a policy.
type permission struct {
	SID       string `json:"Sid"`
	Effect    string
	Action    []string
	Resource  []string
	Condition map[string]map[string]string `json:",omitempty"` // operator, key, value
}

// needs are what a policy is made from.
type needs struct {
	pools     []lease.Policy
	mode      lease.Provision
	eniGC     bool
	untagged  bool
	partition string
}

// needsOf reads the command line, and the configuration that it names. Without one, for
// a machine that is no node, the mode has to be given.
func needsOf(c *cli.Context) (needs, error) {
	n := needs{mode: lease.Provision(c.String("mode")), eniGC: c.Bool("eni-gc"), untagged: c.Bool("untagged"), partition: c.String("partition")}
	if !slices.Contains([]lease.Provision{"", lease.ProvisionNone, lease.ProvisionAssign, lease.ProvisionFull}, n.mode) {
		return n, misuse(c, "--mode: %q: want none, assign or full", n.mode)
	}
	if !slices.Contains([]string{"aws", "aws-cn", "aws-us-gov"}, n.partition) {
		return n, misuse(c, "--partition: %q: want aws, aws-cn or aws-us-gov", n.partition)
	}
	config, err := findConfig(c.String("config"))
	switch {
	case err == nil:
		n.pools = config.Policies()
		n.mode = cmp.Or(n.mode, n.pools[0].Provision)
		return n, nil
	case c.IsSet("config") || n.mode == "" || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNoConfig):
		return n, err
	}
	n.pools = []lease.Policy{{Families: []lease.Family{lease.IPv4}}}
	return n, nil
}

// any tells whether any of the pools is so.
func (n needs) any(is func(lease.Policy) bool) bool { return slices.ContainsFunc(n.pools, is) }

func (n needs) family(f lease.Family) bool {
	return n.any(func(p lease.Policy) bool { return slices.Contains(p.Families, f) })
}

// policy allows what the node calls. The conditions and resource types of an action: Service
// Authorization Reference, "Actions, resources, and condition keys for Amazon EC2". AWS's own
// AmazonEKSNetworkingPolicy binds the same actions to tags in the same way.
func (n needs) policy() rolePolicy {
	p := rolePolicy{Version: "2012-10-17", Statement: []permission{}}
	allow := func(sid string, condition map[string]map[string]string, actions, resources []string) {
		if len(actions) > 0 {
			p.Statement = append(p.Statement, permission{sid, "Allow", prefixed("ec2:", actions), resources, condition})
		}
	}
	// Descriptions have no resource, and no condition on one.
	allow("Look", nil, n.looks(), []string{"*"})
	enis := n.arns("network-interface", "*")
	own := n.tagged(ipam.TagManaged)
	if n.any(func(p lease.Policy) bool { return p.MinIndex == 0 }) {
		allow("Addresses", nil, n.assigns(), enis) // the boot ENI's, too, which comes without our tags
	} else {
		allow("Addresses", own, n.assigns(), enis)
	}
	if n.mode == lease.ProvisionFull {
		allow("NewENI", n.requested(), []string{"CreateNetworkInterface"}, enis)
		for i, pool := range n.pools {
			sid := func(what string) string { return what + suffix(i) }
			allow(sid("NewENIInSubnet"), has(pool.SubnetTags), []string{"CreateNetworkInterface"}, n.arns("subnet", "*"))
			allow(sid("NewENIInGroup"), nil, []string{"CreateNetworkInterface"}, n.arns("security-group", pool.SecurityGroups...))
		}
		// Not to give the tag to what others have made.
		allow("TagNewENI", map[string]map[string]string{"StringEquals": {"ec2:CreateAction": "CreateNetworkInterface"}}, []string{"CreateTags"}, enis)
		allow("OwnENI", own, []string{"AttachNetworkInterface", "DetachNetworkInterface",
			"ModifyNetworkInterfaceAttribute", "DeleteNetworkInterface"}, enis)
		// These are about the instance as well, of which no tag of ours tells.
		allow("AtInstance", nil, []string{"AttachNetworkInterface", "DetachNetworkInterface", "ModifyNetworkInterfaceAttribute"}, n.arns("instance", "*"))
	}
	if n.eniGC {
		allow("LeakedENI", absentIs("false", "aws:ResourceTag/"+ipam.TagInstance), []string{"DeleteNetworkInterface"}, enis)
	}
	p.Statement = distinct(p.Statement)
	return p
}

// looks are the actions that only look.
func (n needs) looks() []string {
	var actions []string
	pools := len(n.pools) > 1 // to tell apart whose an ENI is, by its tags
	if n.mode != lease.ProvisionNone || n.eniGC || pools {
		actions = append(actions, "DescribeNetworkInterfaces")
	}
	if n.mode != lease.ProvisionNone {
		actions = append(actions, "DescribeInstanceTypes")
	}
	if n.mode == lease.ProvisionFull {
		actions = append(actions, "DescribeSubnets")
	}
	if n.any(func(p lease.Policy) bool { return p.Peers }) {
		actions = append(actions, "DescribeVpcPeeringConnections")
	}
	return actions
}

// assigns are the actions that give an ENI addresses, and take them back. IPv6 addresses
// cost nothing, and stay as long as their ENI.
func (n needs) assigns() []string {
	if n.mode == lease.ProvisionNone {
		return nil
	}
	var actions []string
	if n.family(lease.IPv6) {
		actions = append(actions, "AssignIpv6Addresses")
	}
	if n.family(lease.IPv4) {
		actions = append(actions, "AssignPrivateIpAddresses")
	}
	if n.family(lease.IPv4) && n.any(func(p lease.Policy) bool { return !p.Keep }) {
		actions = append(actions, "UnassignPrivateIpAddresses")
	}
	return actions
}

// arns are resources of a type: those with the IDs, or all if there is no ID.
func (n needs) arns(kind string, ids ...string) []string {
	var arns []string
	for _, id := range slices.Sorted(slices.Values(ids)) {
		arns = append(arns, fmt.Sprintf("arn:%s:ec2:*:*:%s/%s", n.partition, kind, id))
	}
	if arns == nil {
		return n.arns(kind, "*")
	}
	return arns
}

// tagged is the condition that an ENI has a tag, whatever its value.
func (n needs) tagged(tag string) map[string]map[string]string {
	if n.untagged {
		return nil
	}
	return absentIs("false", "aws:ResourceTag/"+tag)
}

// requested is the condition that a new ENI gets our tags.
func (n needs) requested() map[string]map[string]string {
	return absentIs("false", "aws:RequestTag/"+ipam.TagManaged, "aws:RequestTag/"+ipam.TagInstance)
}

// absentIs is the condition that keys are absent, or that none is.
func absentIs(value string, keys ...string) map[string]map[string]string {
	null := map[string]string{}
	for _, k := range keys {
		null[k] = value
	}
	return map[string]map[string]string{"Null": null}
}

// has is the condition that a resource has the tags. What looks like a variable of IAM
// stands for itself (IAM user guide, "Policy variables": ${$}).
func has(tags map[string]string) map[string]map[string]string {
	if len(tags) == 0 {
		return nil
	}
	equals := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		equals["aws:ResourceTag/"+k] = strings.ReplaceAll(tags[k], "${", "${$}{")
	}
	return map[string]map[string]string{"StringEquals": equals}
}

// distinct leaves out permissions that differ from an earlier one in their names alone, as
// those of pools may.
func distinct(all []permission) []permission {
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(p permission) bool {
		key := fmt.Sprint(p.Action, p.Resource, p.Condition) // fmt sorts maps
		was := seen[key]
		seen[key] = true
		return was
	})
}

// suffix tells the statements of further pools apart: a Sid is letters and digits.
func suffix(i int) string {
	if i == 0 {
		return ""
	}
	return fmt.Sprint(i + 1)
}

func prefixed(prefix string, words []string) []string {
	all := slices.Clone(words)
	for i := range all {
		all[i] = prefix + all[i]
	}
	return all
}
