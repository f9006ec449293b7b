// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"cmp"
	"encoding/base64"
	"maps"
	"reflect"
	"slices"
	"time"
)

// A launch describes the call of the action RunInstances that launched an instance.
type launch struct {
	in          runInstancesInput
	publicKey   string // of the key pair, as a line of authorized_keys
	userData    []byte
	reservation string
	index       int // the number of the instance within its call, from 0
}

// stateCodes has the states of an instance, with EC2's code for each state (API: InstanceState).
var stateCodes = map[string]int{"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopped": 80}

type runInstancesInput struct {
	ClientToken        string             `ec2:"ClientToken"`
	IAMInstanceProfile *profileRequest    `ec2:"IamInstanceProfile"`
	ImageID            string             `ec2:"ImageId,required"`
	OnShutdown         string             `ec2:"InstanceInitiatedShutdownBehavior"`
	InstanceType       string             `ec2:"InstanceType,required"`
	KeyName            string             `ec2:"KeyName"`
	MaxCount           int                `ec2:"MaxCount,required"`
	MetadataOptions    *metadataOptions   `ec2:"MetadataOptions"`
	MinCount           int                `ec2:"MinCount,required"`
	NetworkInterfaces  []bootENIRequest   `ec2:"NetworkInterface,required"`
	TagSpecifications  []tagSpecification `ec2:"TagSpecification"`
	UserData           string             `ec2:"UserData"`
}

type profileRequest struct {
	Name string `ec2:"Name,required"`
}

// metadataOptions have no effect: the simulator has only IMDSv2, and package vpcsim has a fixed hop limit.
type metadataOptions struct {
	Endpoint string `ec2:"HttpEndpoint"`
	Hops     int    `ec2:"HttpPutResponseHopLimit"`
	Tokens   string `ec2:"HttpTokens"`
}

type bootENIRequest struct {
	AssociatePublicIP   *bool    `ec2:"AssociatePublicIpAddress"`
	DeleteOnTermination *bool    `ec2:"DeleteOnTermination"`
	Description         string   `ec2:"Description"`
	DeviceIndex         int      `ec2:"DeviceIndex"`
	SecurityGroupIDs    []string `ec2:"SecurityGroupId"`
	SubnetID            string   `ec2:"SubnetId,required"`
}

type reservationOutput struct {
	head
	reservation
}

// reservation lists the instances of one launch on the wire (API: Reservation).
type reservation struct {
	ID        string            `xml:"reservationId"`
	OwnerID   string            `xml:"ownerId"`
	Instances set[instanceItem] `xml:"instancesSet"`
}

// runInstances launches instances that are alike (API: RunInstances). The request must describe exactly one network
// interface, at device index 0: the boot ENI. The simulator accepts tags for volumes, but has no volumes.
func (s *Sim) runInstances(in *runInstancesInput) (*reservationOutput, error) {
	if r, err := s.earlierLaunch(in); r != nil || err != nil {
		return r, err
	}
	l, tags, err := s.newLaunch(in)
	if err != nil {
		return nil, err
	}
	eni := in.NetworkInterfaces[0]
	r := RunInstance{Type: in.InstanceType, Subnet: eni.SubnetID, SecurityGroups: eni.SecurityGroupIDs,
		PublicIP: eni.AssociatePublicIP, Tags: tags["instance"], ENITags: tags["network-interface"]}
	if in.IAMInstanceProfile != nil {
		r.Role = in.IAMInstanceProfile.Name
	}
	answer := reservation{OwnerID: s.cfg.Account}
	for l.index = range in.MaxCount {
		i, err := s.runInstance(r)
		if err != nil && l.index >= in.MinCount {
			break
		}
		if err != nil {
			// The first instance has failed, so there is nothing to undo. The further instances up to MinCount cannot
			// fail: they are alike, and newLaunch has checked that the subnet has room.
			return nil, err
		}
		answer.ID = cmp.Or(answer.ID, i.launch.reservation) // the reservation of the first instance
		l.reservation = answer.ID
		i.launch, i.pendingUntil = l, time.Now().Add(s.cfg.BootDelay)
		boot := s.enisOf(i)[0]
		boot.description = eni.Description
		if eni.DeleteOnTermination != nil {
			boot.attachment.deleteOnTermination = *eni.DeleteOnTermination
		}
		// The answer shows the state "pending" (API: RunInstances, the example). DescribeInstances shows "running"
		// later.
		answer.Instances.Items = append(answer.Instances.Items, s.instanceItem(i, "pending"))
	}
	return &reservationOutput{reservation: answer}, nil
}

// newLaunch checks a request to launch instances. It returns the launch, and the tags by type of resource.
func (s *Sim) newLaunch(in *runInstancesInput) (launch, map[string]map[string]string, error) {
	l := launch{in: *in}
	if len(in.NetworkInterfaces) != 1 || in.NetworkInterfaces[0].DeviceIndex != 0 {
		return l, nil, refuse("InvalidParameterValue",
			"The simulator launches instances with one network interface, at device index 0.")
	}
	if in.MinCount < 1 || in.MaxCount < in.MinCount {
		return l, nil, refuse("InvalidParameterValue",
			"Value (%d) for parameter maxCount is invalid. It must be at least minCount, which is at least 1.",
			in.MaxCount)
	}
	if !slices.ContainsFunc(s.images(), func(i Image) bool { return i.ID == in.ImageID }) {
		return l, nil, refuse("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", in.ImageID)
	}
	if in.KeyName != "" {
		k, err := s.keyPair(in.KeyName)
		if err != nil {
			return l, nil, err
		}
		l.publicKey = k.material
	}
	var err error
	if l.userData, err = base64.StdEncoding.DecodeString(in.UserData); err != nil {
		return l, nil, refuse("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.")
	}
	tags, err := launchTags(in.TagSpecifications)
	if err != nil {
		return l, nil, err
	}
	sub, err := s.subnet(in.NetworkInterfaces[0].SubnetID)
	if err == nil && sub.CIDR.IsValid() && sub.freeIPv4() < in.MinCount {
		err = refuse("InsufficientFreeAddressesInSubnet",
			"There are not enough free addresses in subnet '%s' to satisfy the requested number of instances.", sub.ID)
	}
	return l, tags, err
}

func launchTags(specs []tagSpecification) (map[string]map[string]string, error) {
	tags := map[string]map[string]string{}
	for _, spec := range specs {
		if !slices.Contains([]string{"instance", "network-interface", "volume"}, spec.ResourceType) {
			return nil, refuse("InvalidParameterValue",
				"'%s' is not a valid taggable resource type for this operation.", spec.ResourceType)
		}
		all := copyTags(tags[spec.ResourceType])
		if err := addTags(all, spec.Tags); err != nil {
			return nil, err
		}
		tags[spec.ResourceType] = all
	}
	return tags, nil
}

// earlierLaunch returns the answer to an earlier launch with the same client token, or nil if there was none (API:
// "Ensuring idempotency").
func (s *Sim) earlierLaunch(in *runInstancesInput) (*reservationOutput, error) {
	if in.ClientToken == "" {
		return nil, nil
	}
	for _, r := range s.reservations(slices.Collect(maps.Values(s.instances))) {
		l := s.instances[r.Instances.Items[0].ID].launch
		if l.in.ClientToken != in.ClientToken {
			continue
		}
		if !reflect.DeepEqual(l.in, *in) {
			return nil, tokenUsed()
		}
		return &reservationOutput{reservation: r}, nil
	}
	return nil, nil
}

type terminateInstancesInput struct {
	InstanceIDs []string `ec2:"InstanceId,required"`
}

type terminateInstancesOutput struct {
	head
	Instances set[stateChange] `xml:"instancesSet"`
}

// stateChange is a change of an instance's state on the wire (API: InstanceStateChange).
type stateChange struct {
	ID       string    `xml:"instanceId"`
	Current  stateItem `xml:"currentState"`
	Previous stateItem `xml:"previousState"`
}

type stateItem struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

// terminateInstances ends instances (API: TerminateInstances: "idempotent"). During TerminateDelay, the instances are
// shutting down, and keep their ENIs.
func (s *Sim) terminateInstances(in *terminateInstancesInput) (*terminateInstancesOutput, error) {
	for _, id := range in.InstanceIDs {
		if _, ok := s.instances[id]; !ok {
			return nil, notFound("InvalidInstanceID", "instance ID", id)
		}
	}
	out := &terminateInstancesOutput{}
	for _, id := range in.InstanceIDs {
		i := s.instances[id]
		before := i.state()
		if !i.terminated && !i.shuttingDown {
			i.shuttingDown = true
			s.runAfter(s.cfg.TerminateDelay, func() {
				if !i.terminated {
					_ = s.terminateInstance(id) // the only possible error is that the instance does not exist
				}
			})
		}
		now := i.state()
		if now == "terminated" && before != now {
			now = "shutting-down" // EC2's answer to the first call shows this state
		}
		out.Instances.Items = append(out.Instances.Items, stateChange{id, stateItem{stateCodes[now], now},
			stateItem{stateCodes[before], before}})
	}
	return out, nil
}

// state returns the state of the instance (API: InstanceState).
func (i *Instance) state() string {
	switch {
	case i.terminated:
		return "terminated"
	case i.shuttingDown:
		return "shutting-down"
	case i.stopped:
		return "stopped"
	case time.Now().Before(i.pendingUntil):
		return "pending"
	}
	return "running"
}
