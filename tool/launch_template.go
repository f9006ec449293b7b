// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"encoding/json"
	"io"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

func launchTemplate() *cli.Command {
	return &cli.Command{
		Name:  "launch-template",
		Usage: "Print a launch template that gives nodes their ENIs and addresses",
		Description: `For instances with "provision": "none". Such instances make no calls to EC2:

    aws ec2 create-launch-template --launch-template-name nodes \
        --launch-template-data "$(` + Name + ` launch-template \
            --config 10-pods.conflist --instance-type m5.large --subnet subnet-1)"

The template has the boot ENI. From the device index interfaceIndex on, it has as
many ENIs as maxPods needs. Without maxPods, it has as many ENIs as maxENIs and the
type allow, minus --except-enis. The node can use the empty slots for ENIs for which
pods ask. Each ENI for pods has the timeouts of connectionTracking, and by default
the security groups of secGroupIds. By default, it has as many prefixes or addresses
as fit. Only Nitro types have prefixes: an ENI of another type gets single addresses
of IPv4 and IPv6. If ipFamilies has IPv6, the boot ENI gets an IPv6 address for the
node. So the subnet of the boot ENI must have IPv6, too.

Add the other parts of a template: image, instance type, user data. A template is
for the zone of its subnets. On an instance, the default of --instance-type is the
type of this instance. There, you may leave out --subnet: subnetTags then select a
subnet in the zone of the instance. The command asks EC2 for the limits of the type (ec2:DescribeInstanceTypes).

All ENIs are of one pool, because a template has one set of tags for all of them. If
several networks of the directory have the pool, the ENIs serve all of these
networks. The ENIs have the families of all networks, begin at the highest
interfaceIndex, and are enough for the sum of maxPods. The highest maxENIs counts. All
other values are those of the first network.

No collection deletes these ENIs or releases their addresses: they end with
their instance.` + cli.JSON(`NetworkInterfaces[] {DeviceIndex NetworkCardIndex Description SubnetId Groups
    DeleteOnTermination SecondaryPrivateIpAddressCount} TagSpecifications[] {ResourceType Tags[] {Key Value}}
    with --ipv6 and no Nitro type, also: NetworkInterfaces[] {Ipv6AddressCount}
    with --prefixes, --ipv6, connectionTracking: NetworkInterfaces[] {DeviceIndex NetworkCardIndex Description
    SubnetId Groups DeleteOnTermination Ipv4PrefixCount Ipv6PrefixCount Ipv6AddressCount ConnectionTrackingSpecification
    {TcpEstablishedTimeout UdpStreamTimeout UdpTimeout}} TagSpecifications[] {ResourceType Tags[] {Key Value}}`),
		Flags: []cli.Flag{
			conf.Flag(),
			&cli.StringFlag{Name: "instance-type", DefaultText: "this instance's",
				Usage: "respect the limits of `TYPE`"},
			&cli.StringFlag{Name: "subnet", DefaultText: "by subnetTags, in this zone",
				Usage: "make the ENIs for pods in the subnet `ID`"},
			&cli.StringFlag{Name: "boot-subnet", DefaultText: "--subnet",
				Usage: "make the boot ENI in the subnet `ID`"},
			&cli.StringSliceFlag{Name: "group", DefaultText: "secGroupIds",
				Usage: "give the ENIs for pods the security group `ID`; may be given again"},
			&cli.StringSliceFlag{Name: "boot-group", DefaultText: "--group",
				Usage: "give the boot ENI the security group `ID`; may be given again"},
			&cli.StringFlag{Name: "pool", Value: "default", Usage: "the ENIs serve the pool `NAME`"},
			&cli.IntFlag{Name: "prefixes", DefaultText: "with prefixDelegation as many as fit",
				Usage: "give each ENI for pods `N` /28 prefixes"},
			&cli.IntFlag{Name: "addresses", DefaultText: "without prefixDelegation as many as fit",
				Usage: "give each ENI for pods `N` addresses in addition to its primary address"},
			&cli.IntFlag{Name: "except-enis", DefaultText: "1 if pods may ask for ENIs, else 0",
				Usage: "leave `N` slots empty for ENIs for which pods ask"},
			&cli.BoolFlag{Name: "ipv6", DefaultText: "if ipFamilies has IPv6",
				Usage: "give each ENI for pods an IPv6 prefix, /80"},
		},
		Action: func(c *cli.Context) error {
			t, err := templateFor(c)
			if err != nil {
				return err
			}
			return cli.Answer(c, t, func(w io.Writer) {
				e := json.NewEncoder(w)
				e.SetIndent("", "    ")
				_ = e.Encode(t) // ignore the error: JSON can encode a template, and w is in memory
			})
		},
	}
}

// A launchData is the part of a launch template that this command prints (API reference, RequestLaunchTemplateData).
type launchData struct {
	NetworkInterfaces []launchENI
	TagSpecifications []launchTags
}

// A launchENI is an ENI of a launch template (API reference,
// LaunchTemplateInstanceNetworkInterfaceSpecificationRequest).
type launchENI struct {
	DeviceIndex         int
	NetworkCardIndex    int
	Description         string
	SubnetID            string `json:"SubnetId"`
	Groups              []string
	DeleteOnTermination bool
	Secondary           int `json:"SecondaryPrivateIpAddressCount,omitempty"`
	Prefixes            int `json:"Ipv4PrefixCount,omitempty"`
	IPv6Prefixes        int `json:"Ipv6PrefixCount,omitempty"`
	IPv6                int `json:"Ipv6AddressCount,omitempty"`

	Tracking launchTracking `json:"ConnectionTrackingSpecification,omitzero"`
}

// A launchTracking has the timeouts after which EC2 no longer tracks an idle connection of an ENI (API reference,
// ConnectionTrackingSpecificationRequest).
type launchTracking struct {
	TCPEstablished int `json:"TcpEstablishedTimeout,omitempty"`
	UDPStream      int `json:"UdpStreamTimeout,omitempty"`
	UDP            int `json:"UdpTimeout,omitempty"`
}

// launchTags are the tags of all resources of one type that EC2 creates from the template.
type launchTags struct {
	ResourceType string
	Tags         []launchTag
}

type launchTag struct{ Key, Value string }

func templateFor(c *cli.Context) (launchData, error) {
	p, err := planOf(c)
	if err != nil {
		return launchData{}, err
	}
	boot := launchENI{
		Description: "boot", SubnetID: cmp.Or(c.String("boot-subnet"), p.eni.SubnetID),
		Groups: c.StringSlice("boot-group"), DeleteOnTermination: true,
	}
	if len(boot.Groups) == 0 {
		boot.Groups = p.eni.Groups
	}
	if slices.Contains(p.Families, lease.IPv6) {
		boot.IPv6 = 1 // pods with IPv6 start only if the node has an IPv6 address
	}
	if p.MinIndex == 0 { // the boot ENI serves pods, too
		boot.Secondary, boot.Prefixes, boot.Tracking = p.eni.Secondary, p.eni.Prefixes, p.eni.Tracking
		// The boot ENI has an IPv6 address, and EC2 creates no ENI with both an address and a prefix of IPv6. So the
		// boot ENI gets single addresses.
		boot.IPv6 *= p.limits.IPv6PerENI
	}
	slots, err := p.eniSlots()
	if err != nil {
		return launchData{}, err
	}
	t := launchData{NetworkInterfaces: []launchENI{boot},
		TagSpecifications: []launchTags{{"network-interface", p.eniTags()}}}
	for _, at := range slots {
		eni := p.eni
		eni.NetworkCardIndex, eni.DeviceIndex = at[0], at[1]
		t.NetworkInterfaces = append(t.NetworkInterfaces, eni)
	}
	return t, nil
}
