// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/iam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// checkIAM tries each action that the networks need, as a dry run.
func (p *Node) checkIAM(ctx context.Context) ([]Finding, error) {
	n := iam.Needs{}
	for _, l := range p.ours { // if there is no network, checkConfig reports that
		n.Networks = append(n.Networks, iam.Network{Pools: l.IPAM.Policies(), Requests: l.IPAM.Permissions})
	}
	if len(n.Networks) == 0 {
		return nil, nil
	}
	self, err := p.pool.Cloud.Instance(ctx)
	if err != nil {
		return nil, err
	}
	on, err := p.findTargets(ctx, n, self)
	if err != nil {
		return nil, err
	}
	var found []Finding
	skipped := false
	for _, action := range n.Actions() {
		for _, at := range on.forAction(action) {
			if api.Is(action, api.OnENI) && (at.ENI == "" || at.Attachment == "" &&
				!strings.HasSuffix(action, "Addresses")) {
				skipped = true
				continue
			}
			err := p.pool.Cloud.DryRun(ctx, action, at)
			switch {
			case aws.NotAllowed(err):
				found = append(found, Finding{Severity: severe, About: "ec2:" + action,
					Means: "the instance role does not allow this action" + on.poolText(action, at) + ": " +
						err.Error(),
					Do: "add the action to the policy of the role. " + policyCommand(self.Region, on.untagged) +
						" prints a complete policy"})
			case err != nil:
				return found, err
			}
		}
	}
	if skipped && on.ENI != "" && !on.mayCreate() {
		found = append(found, Finding{Severity: note, About: "permissions on ENIs",
			Means: "the permissions on ENIs for which pods may ask were not checked, because no such ENI is attached",
			Do:    "run this check again while a pod has such an ENI"})
	} else if skipped {
		found = append(found, Finding{Severity: note, About: "permissions on ENIs",
			Means: "the permissions on ENIs were not checked, because this node has not created an ENI for pods yet",
			Do: "run this check again when pods run. Or first run " + cli.Name +
				" warm, which creates an ENI if the addresses for warm.min need a new ENI"})
	}
	return found, nil
}

// policyCommand returns the command that prints a complete policy for nodes in a region. If untagged is true, the
// policy also covers ENIs without our tags.
func policyCommand(region string, untagged bool) string {
	command := cli.Name + " iam-policy"
	if untagged {
		command += " --untagged"
	}
	if name := aws.Partition(region); name != aws.Partition("") {
		command += " --partition " + name
	}
	return command
}

// targets are the objects in EC2 on which doctor tries the EC2 actions that this instance needs.
type targets struct {
	aws.Target              // an ENI that serves pods
	creations  []aws.Target // for each pool, the subnet, security groups and tags of a new ENI
	requested  aws.Target   // an ENI for which a pod has asked
	untagged   bool         // the ENI that serves pods has none of our tags, and is not the boot ENI
}

func (on targets) mayCreate() bool { return len(on.creations) > 0 }

// forAction returns the targets on which doctor tries an action.
func (on targets) forAction(action string) []aws.Target {
	switch action {
	case "CreateNetworkInterface":
		return on.creations
	case "AttachNetworkInterface", "DetachNetworkInterface":
		if !on.mayCreate() {
			return []aws.Target{on.requested} // the policy allows these actions only for requested ENIs
		}
	}
	return []aws.Target{on.Target}
}

// poolText returns a text that names the pool, if doctor has tried the action for several pools.
func (on targets) poolText(action string, at aws.Target) string {
	if action != "CreateNetworkInterface" || len(on.creations) < 2 {
		return ""
	}
	return fmt.Sprintf(" for pool %s, in %s with the security groups %v", at.Tags[book.TagPool], at.Subnet,
		at.SecurityGroups)
}

func (p *Node) findTargets(ctx context.Context, n iam.Needs, self aws.Instance) (on targets, _ error) {
	pools := n.Pools(lease.ProvisionFull, lease.ProvisionAssign)
	if len(pools) == 0 {
		return on, nil
	}
	on.Target = aws.Target{Instance: self.ID}
	attached, err := p.pool.Cloud.DescribeENIs(ctx, aws.ByInstance(self.ID))
	if aws.NotAllowed(err) {
		err = nil // the dry run of DescribeNetworkInterfaces reports the missing permission
	}
	for _, e := range attached {
		known := p.state.ENIs[e.ID]
		if on.Subnet == "" || e.Tags[book.TagManaged] != "" || known.Serving && !known.Foreign {
			on.Subnet = e.Subnet
		}
		switch {
		case e.Tags[book.TagManaged] != "":
			on.ENI, on.Attachment, on.untagged = e.ID, e.Attachment, false
		case slices.ContainsFunc(pools, func(q lease.Policy) bool { return q.Requestable(e.Tags) }):
			on.requested = aws.Target{ENI: e.ID, Attachment: e.Attachment, Instance: self.ID}
		case known.Serving && !known.Foreign && on.ENI == "":
			// The ENI is the boot ENI, or has another creator. The node only assigns and unassigns addresses of this
			// ENI.
			on.ENI = e.ID
			on.untagged = e.MAC != self.MAC
		}
	}
	seen := map[string]bool{}
	for _, pool := range n.Pools(lease.ProvisionFull) {
		at := aws.Target{Instance: self.ID, Subnet: on.Subnet, SecurityGroups: pool.SecurityGroups,
			Tags: map[string]string{
				book.TagManaged: "true", book.TagInstance: self.ID, book.TagPool: conf.PoolName(pool.Pool)}}
		maps.Copy(at.Tags, pool.Tags)
		if fit, _, e := view.PodSubnets(ctx, p.pool.Cloud, pool); e == nil && len(fit) > 0 {
			at.Subnet = fit[0].ID
		}
		if key := fmt.Sprint(at); !seen[key] { // fmt prints a map in the order of its keys
			on.creations = append(on.creations, at)
			seen[key] = true
		}
	}
	return on, err
}
