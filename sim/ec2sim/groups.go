// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// A securityGroup is a group that CreateSecurityGroup has made. The simulator knows only the ID, the name and the VPC
// of a group in the Config.
type securityGroup struct {
	id, name, description, vpc string
	ingress                    []groupRule
	tags                       map[string]string
}

// A groupRule is a rule of a group. It allows traffic to the group's ENIs, either from a CIDR, or from the ENIs of the
// same or another group.
type groupRule struct {
	protocol string
	from, to int
	source   string // the CIDR, or the ID of the other group
}

type createSecurityGroupInput struct {
	Description       string             `ec2:"GroupDescription,required"`
	Name              string             `ec2:"GroupName,required"`
	VPCID             string             `ec2:"VpcId,required"`
	TagSpecifications []tagSpecification `ec2:"TagSpecification"`
}

type createSecurityGroupOutput struct {
	head
	ID   string   `xml:"groupId"`
	ARN  string   `xml:"securityGroupArn"`
	Tags set[tag] `xml:"tagSet"`
}

func (s *Sim) createSecurityGroup(in *createSecurityGroupInput) (*createSecurityGroupOutput, error) {
	if _, ok := s.vpcs[in.VPCID]; !ok {
		return nil, notFound("InvalidVpcID", "vpc ID", in.VPCID)
	}
	for _, g := range s.madeGroups {
		if g.vpc == in.VPCID && g.name == in.Name {
			return nil, refuse("InvalidGroup.Duplicate", "The security group '%s' already exists for VPC '%s'",
				in.Name, in.VPCID)
		}
	}
	tags, err := tagsFor("security-group", in.TagSpecifications)
	if err != nil {
		return nil, err
	}
	g := &securityGroup{id: fmt.Sprintf("sg-%017x", s.nextNumber("sg")), name: in.Name, description: in.Description,
		vpc: in.VPCID, tags: tags}
	s.madeGroups[g.id] = g
	return &createSecurityGroupOutput{ID: g.id, ARN: s.groupARN(g.id), Tags: tagSet(tags)}, nil
}

func (s *Sim) groupARN(id string) string {
	return fmt.Sprintf("arn:aws:ec2:%s:%s:security-group/%s", s.cfg.Region, s.cfg.Account, id)
}

func (s *Sim) madeGroup(id string) (*securityGroup, error) {
	if g, ok := s.madeGroups[id]; ok {
		return g, nil
	}
	return nil, refuse("InvalidGroup.NotFound", "The security group '%s' does not exist", id)
}

type authorizeIngressInput struct {
	ID          string              `ec2:"GroupId,required"`
	Permissions []permissionRequest `ec2:"IpPermissions,required"`
}

type permissionRequest struct {
	FromPort *int           `ec2:"FromPort"`
	ToPort   *int           `ec2:"ToPort"`
	Protocol string         `ec2:"IpProtocol,required"`
	Ranges   []rangeRequest `ec2:"IpRanges"`
	Groups   []pairRequest  `ec2:"Groups"`
}

type rangeRequest struct {
	CIDR        netip.Prefix `ec2:"CidrIp,required"`
	Description string       `ec2:"Description"`
}

type pairRequest struct {
	GroupID     string `ec2:"GroupId,required"`
	Description string `ec2:"Description"`
}

// authorizeSecurityGroupIngress adds rules to a group (API: AuthorizeSecurityGroupIngress). Protocol -1 means all
// protocols. A rule with this protocol has no ports.
func (s *Sim) authorizeSecurityGroupIngress(in *authorizeIngressInput) (*emptyOutput, error) {
	g, err := s.madeGroup(in.ID)
	if err != nil {
		return nil, err
	}
	var more []groupRule
	for _, p := range in.Permissions {
		r := groupRule{protocol: p.Protocol, from: -1, to: -1}
		if p.Protocol != "-1" {
			if p.FromPort == nil || p.ToPort == nil {
				return nil, refuse("InvalidParameterValue",
					"Invalid value for portRange. Must specify both from and to ports with TCP/UDP.")
			}
			r.from, r.to = *p.FromPort, *p.ToPort
		}
		for _, block := range p.Ranges {
			r.source = block.CIDR.String()
			more = append(more, r)
		}
		for _, pair := range p.Groups {
			if _, err := s.madeGroup(pair.GroupID); err != nil {
				return nil, err
			}
			r.source = pair.GroupID
			more = append(more, r)
		}
	}
	for _, r := range more {
		if slices.Contains(g.ingress, r) {
			return nil, refuse("InvalidPermission.Duplicate", "the specified rule \"peer: %s, %s\" already exists",
				r.source, r.protocol)
		}
		g.ingress = append(g.ingress, r)
	}
	return &emptyOutput{Return: true}, nil
}

type describeSecurityGroupsInput struct {
	page
	GroupIDs []string `ec2:"GroupId"`
}

type describeSecurityGroupsOutput struct {
	head
	Groups    set[groupItem] `xml:"securityGroupInfo"`
	NextToken string         `xml:"nextToken,omitempty"`
}

// groupItem is a security group on the wire (API: SecurityGroup), without its rules.
type groupItem struct {
	OwnerID     string   `xml:"ownerId"`
	ID          string   `xml:"groupId"`
	ARN         string   `xml:"securityGroupArn"`
	Name        string   `xml:"groupName"`
	Description string   `xml:"groupDescription"`
	VPCID       string   `xml:"vpcId"`
	Tags        set[tag] `xml:"tagSet"`
}

// groupCatalogue is the catalogue of security groups (API: DescribeSecurityGroups). DescribeSecurityGroups shows only
// groups that CreateSecurityGroup has made.
var groupCatalogue = catalogue[*securityGroup]{
	id: func(g *securityGroup) string { return g.id },
	notFound: func(id string) error {
		return refuse("InvalidGroup.NotFound", "The security group '%s' does not exist", id)
	},
	tags:    func(g *securityGroup) map[string]string { return g.tags },
	maxPage: 1000,
	unpaged: true,
	idParam: "groupIds",
}

func (s *Sim) describeSecurityGroups(in *describeSecurityGroupsInput) (*describeSecurityGroupsOutput, error) {
	chosen, next, err := groupCatalogue.choosePage(slices.Collect(maps.Values(s.madeGroups)), in.GroupIDs, in.page)
	if err != nil {
		return nil, err
	}
	out := &describeSecurityGroupsOutput{NextToken: next}
	for _, g := range chosen {
		out.Groups.Items = append(out.Groups.Items, groupItem{OwnerID: s.cfg.Account, ID: g.id, ARN: s.groupARN(g.id),
			Name:        g.name,
			Description: g.description, VPCID: g.vpc, Tags: tagSet(g.tags)})
	}
	return out, nil
}

type deleteSecurityGroupInput struct {
	ID string `ec2:"GroupId,required"`
}

// deleteSecurityGroup deletes a group. It refuses to delete a group that an ENI still has, or that is the source in
// another group's rule (API: DeleteSecurityGroup).
func (s *Sim) deleteSecurityGroup(in *deleteSecurityGroupInput) (*emptyOutput, error) {
	if _, err := s.madeGroup(in.ID); err != nil {
		return nil, err
	}
	for _, e := range s.enis {
		if slices.Contains(e.groups, in.ID) {
			return nil, refuse("DependencyViolation", "resource %s has a dependent object", in.ID)
		}
	}
	for _, g := range s.madeGroups {
		if g.id != in.ID && slices.ContainsFunc(g.ingress, func(r groupRule) bool { return r.source == in.ID }) {
			return nil, refuse("DependencyViolation", "resource %s has a dependent object", in.ID)
		}
	}
	delete(s.madeGroups, in.ID)
	return &emptyOutput{Return: true}, nil
}

// groupName returns the name of a group, or the ID if the group has no name.
func (s *Sim) groupName(id string) string {
	if g, ok := s.madeGroups[id]; ok {
		return g.name
	}
	if name, ok := s.cfg.GroupNames[id]; ok {
		return name
	}
	return id
}

// SecurityGroups returns the IDs of the groups that CreateSecurityGroup has made and that still exist.
func (s *Sim) SecurityGroups() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.madeGroups))
}
