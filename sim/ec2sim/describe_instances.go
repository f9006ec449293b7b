// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// instanceItem is an instance on the wire (API: Instance), with only those network fields that our programs read.
type instanceItem struct {
	ID               string      `xml:"instanceId"`
	ImageID          string      `xml:"imageId"`
	State            stateItem   `xml:"instanceState"`
	PrivateDNSName   string      `xml:"privateDnsName"`
	KeyName          string      `xml:"keyName,omitempty"`
	LaunchIndex      int         `xml:"amiLaunchIndex"`
	Type             string      `xml:"instanceType"`
	LaunchTime       time.Time   `xml:"launchTime"`
	Zone             string      `xml:"placement>availabilityZone"`
	SubnetID         string      `xml:"subnetId,omitempty"`
	VPCID            string      `xml:"vpcId,omitempty"`
	PrivateIPAddress *netip.Addr `xml:"privateIpAddress"`
	PublicIPAddress  *netip.Addr `xml:"ipAddress"`
	ClientToken      string      `xml:"clientToken"`
	Tags             set[tag]    `xml:"tagSet"`
	Hibernates       bool        `xml:"hibernationOptions>configured"`
}

type describeInstancesInput struct {
	page
	InstanceIDs []string `ec2:"InstanceId"`
}

type describeInstancesOutput struct {
	head
	Reservations set[reservation] `xml:"reservationSet"`
	NextToken    string           `xml:"nextToken,omitempty"`
}

// instanceCatalogue is the catalogue of instances (API: DescribeInstances). The API says that terminated instances
// "might appear in the returned results". In the simulator, they always appear. With [Config.Lag], an answer can show
// old states of instances.
var instanceCatalogue = catalogue[*Instance]{
	id:       func(i *Instance) string { return i.ID },
	notFound: func(id string) error { return notFound("InvalidInstanceID", "instance ID", id) },
	tags:     func(i *Instance) map[string]string { return i.tags },
	maxPage:  1000,
	unpaged:  true,
	idParam:  "instanceIds",
	filters: map[string]func(*Instance) []string{
		"instance-id": func(i *Instance) []string { return oneValue(i.ID) },
	},
}

func (s *Sim) describeInstances(in *describeInstancesInput) (*describeInstancesOutput, error) {
	chosen, next, err := instanceCatalogue.choosePage(slices.Collect(maps.Values(s.instances)), in.InstanceIDs, in.page)
	if err != nil {
		return nil, err
	}
	return &describeInstancesOutput{Reservations: set[reservation]{s.reservations(chosen)}, NextToken: next}, nil
}

// reservations groups the instances by launch, and sorts each group by ID.
func (s *Sim) reservations(instances []*Instance) []reservation {
	slices.SortFunc(instances, func(a, b *Instance) int { return cmp.Compare(a.ID, b.ID) })
	var all []reservation
	states := s.shownMoment().states
	for _, i := range instances {
		id := i.launch.reservation
		at := slices.IndexFunc(all, func(r reservation) bool { return r.ID == id })
		if at < 0 {
			at = len(all)
			all = append(all, reservation{ID: id, OwnerID: s.cfg.Account})
		}
		all[at].Instances.Items = append(all[at].Instances.Items, s.instanceItem(i, states[i.ID]))
	}
	return all
}

// instanceItem returns an instance as an answer shows it. A terminated instance has no subnet, no VPC and no address.
func (s *Sim) instanceItem(i *Instance, state string) instanceItem {
	item := instanceItem{
		ID: i.ID, ImageID: i.image(), State: stateItem{stateCodes[state], state}, KeyName: i.launch.in.KeyName,
		LaunchIndex: i.launch.index,
		Type:        i.Type, LaunchTime: i.launched.UTC().Truncate(time.Second), Zone: i.Zone,
		ClientToken: i.launch.in.ClientToken, Tags: tagSet(i.tags), Hibernates: i.hibernates,
	}
	enis := s.enisOf(i)
	if len(enis) == 0 {
		return item
	}
	boot := enis[0]
	item.SubnetID, item.VPCID = i.Subnet, i.VPC
	if a := boot.primary(); a.IsValid() {
		item.PrivateIPAddress, item.PrivateDNSName = &a, s.dnsName(a)
	}
	if a := boot.publicIP; a.IsValid() {
		item.PublicIPAddress = &a
	}
	return item
}

func (i *Instance) image() string { return cmp.Or(i.launch.in.ImageID, defaultImages[0].ID) }
