// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"maps"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/iam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// checkIAM tries each action that the configuration needs, as a dry run.
func (p *Node) checkIAM(ctx context.Context) ([]Finding, error) {
	if p.config == nil {
		return nil, nil // checkConfig says so
	}
	n := iam.Needs{Networks: []iam.Network{{Pools: p.config.Policies(), Requests: p.config.Permissions}}}
	self, err := p.pool.Cloud.Instance(ctx)
	if err != nil {
		return nil, err
	}
	on, err := p.target(ctx, n, self)
	if err != nil {
		return nil, err
	}
	var found []Finding
	skipped := false
	for _, action := range n.Actions() {
		at := on.Target
		if len(n.Pools(lease.ProvisionFull)) == 0 && (action == "AttachNetworkInterface" || action == "DetachNetworkInterface") {
			at = on.requested // the policy allows these for no other ENI
		}
		if bound(action) && (at.ENI == "" || at.Attachment == "" && !strings.HasSuffix(action, "Addresses")) {
			skipped = true
			continue
		}
		err := p.pool.Cloud.DryRun(ctx, action, at)
		switch {
		case errors.Is(err, aws.ErrDenied):
			found = append(found, Finding{Severity: severe, About: "ec2:" + action, Means: "the instance role does not allow this action: " + err.Error(),
				Do: "add the action to the policy of the role: " + policyCommand(self.Region, on.untagged) + " prints a complete policy"})
		case err != nil:
			return found, err
		}
	}
	if skipped && on.ENI != "" && len(n.Pools(lease.ProvisionFull)) == 0 {
		found = append(found, Finding{Severity: note, About: "permissions on ENIs", Means: "the permissions on ENIs for which pods may ask were not checked, because none is attached",
			Do: "run this check again while a pod has one"})
	} else if skipped {
		found = append(found, Finding{Severity: note, About: "permissions on ENIs", Means: "the permissions on ENIs were not checked, because this node has no ENI that was created for pods yet",
			Do: "run this check again after the first pod, or after " + cli.Name + " warm, which creates an ENI if warm.min asks for one"})
	}
	return found, nil
}

// policyCommand prints a complete policy for nodes in a region, whose pods may also use ENIs without our tags.
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

// bound reports whether an action applies to an existing ENI, so that EC2's answer depends on
// the tags of the ENI.
func bound(action string) bool {
	return !strings.HasPrefix(action, "Describe") && action != "CreateNetworkInterface"
}

// targets are what the actions are tried on for an instance.
type targets struct {
	aws.Target            // an ENI that serves pods, and the subnet of a new ENI
	requested  aws.Target // an ENI for which a pod has asked
	untagged   bool       // the ENI that serves pods has none of our tags, and is not the boot ENI
}

func (p *Node) target(ctx context.Context, n iam.Needs, self aws.Instance) (on targets, _ error) {
	pools := n.Pools(lease.ProvisionFull, lease.ProvisionAssign)
	if len(pools) == 0 {
		return on, nil
	}
	on.Target = aws.Target{Instance: self.ID, SecurityGroups: pools[0].SecurityGroups, Tags: map[string]string{
		ipam.TagManaged: "true", ipam.TagInstance: self.ID, ipam.TagPool: conf.PoolName(pools[0].Pool)}}
	maps.Copy(on.Tags, pools[0].Tags)
	attached, err := p.pool.Cloud.DescribeENIs(ctx, aws.ByInstance(self.ID))
	if errors.Is(err, aws.ErrDenied) {
		err = nil // trying it says the same
	}
	for _, e := range attached {
		known := p.state.ENIs[e.ID]
		if on.Subnet == "" || e.Tags[ipam.TagManaged] != "" || known.Serving && !known.Foreign {
			on.Subnet = e.Subnet
		}
		switch {
		case e.Tags[ipam.TagManaged] != "":
			on.ENI, on.Attachment, on.untagged = e.ID, e.Attachment, false
		case pools[0].Requestable(e.Tags):
			on.requested = aws.Target{ENI: e.ID, Attachment: e.Attachment, Instance: self.ID}
		case known.Serving && !known.Foreign && on.ENI == "":
			on.ENI = e.ID // the boot ENI, or one of others: the node changes only its addresses
			on.untagged = e.MAC != self.MAC
		}
	}
	if len(n.Pools(lease.ProvisionFull)) == 0 {
		return on, err
	}
	if fit, _, e := view.PodSubnets(ctx, p.pool.Cloud, pools[0]); e == nil && len(fit) > 0 {
		on.Subnet = fit[0].ID
	}
	return on, err
}
