// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"strings"
	"testing"
)

// The constants are calls that several cases need. With create, EC2 creates eni-2 in subnet-b. With attached, EC2 also
// attaches eni-2 at device index 1.
const (
	create   = "CreateNetworkInterface SubnetId=subnet-b"
	attached = create + "\nAttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1"

	launch1 = "RunInstances ImageId=ami-00000000000000001 InstanceType=t3.small MinCount=1 MaxCount=1 " +
		"NetworkInterface.1.SubnetId=subnet-b"
	importKey = "ImportKeyPair KeyName=mine PublicKeyMaterial=c3NoLWVkMjU1MTkgQUFBQSBtaW5l"
	makeGroup = "CreateSecurityGroup GroupName=mine GroupDescription=mine VpcId=vpc-1"
	allow     = "AuthorizeSecurityGroupIngress GroupId=sg-00000000000000001 IpPermissions.1.IpProtocol=-1 " +
		"IpPermissions.1.IpRanges.1.CidrIp=203.0.113.0/24"

	dual         = "CreateNetworkInterface SubnetId=subnet-dual"
	dualAttached = dual + "\nAttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1"
)

// TestRules has a case for each refusal of EC2. EC2 carries out the calls in the field "before", and refuses the call
// in the field "call".
func TestRules(t *testing.T) {
	for _, c := range []struct{ name, before, call, want string }{
		{"no action", "", "", "400 MissingAction"},
		{"unknown action", "", "StopInstances InstanceId.1=i-1", "400 InvalidAction"},
		{"other version", "", "DescribeVpcs Version=2012-01-01", "400 NoSuchVersion"},
		{"missing parameter", "", "AttachNetworkInterface DeviceIndex=1 InstanceId=i-1", "400 MissingParameter"},
		{"missing in a list", "", create + " PrivateIpAddresses.1.Primary=true", "400 MissingParameter"},
		{"unknown parameter", "", create + " Colour=red", "400 UnknownParameter"},
		{"unknown in a list", "", create + " SecurityGroupId.1.Name=sg-1", "400 UnknownParameter"},
		{"not a number", "", create + " SecondaryPrivateIpAddressCount=two", "400 InvalidParameterValue"},
		{"not a boolean", "", "DetachNetworkInterface AttachmentId=eni-attach-1 Force=please",
			"400 InvalidParameterValue"},
		{"not an address", "", create + " PrivateIpAddress=10.0.1", "400 InvalidParameterValue"},
		{"an IPv6 address", "", create + " PrivateIpAddress=fd00::1", "400 InvalidParameterValue"},
		{"an IPv6 block", "", "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 Ipv4Prefix.1=fd00::/80",
			"400 InvalidParameterValue"},
		{"not a block", "", "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 Ipv4Prefix.1=10.0.0.17/28",
			"400 InvalidParameterValue"},

		{"create: no subnet", "", "CreateNetworkInterface SubnetId=subnet-x", "400 InvalidSubnetID.NotFound"},
		{"create: no group", "", create + " SecurityGroupId.1=sg-x", "400 InvalidGroup.NotFound"},
		{"create: six groups", "", create + groupsParams(6), "400 SecurityGroupsPerInterfaceLimitExceeded"},
		{"create: special interface", "", create + " InterfaceType=efa", "400 InvalidParameterValue"},
		{"create: negative count", "", create + " SecondaryPrivateIpAddressCount=-1", "400 InvalidParameterValue"},
		{"create: negative prefix count", "", create + " Ipv4PrefixCount=-1", "400 InvalidParameterValue"},
		{"create: addresses and count", "", create +
			" PrivateIpAddresses.1.PrivateIpAddress=10.0.1.9 SecondaryPrivateIpAddressCount=1",
			"400 InvalidParameterCombination"},
		{"create: count and prefixes", "", create + " Ipv4PrefixCount=1 SecondaryPrivateIpAddressCount=1",
			"400 InvalidParameterCombination"},
		{"create: two primaries", "", create + " PrivateIpAddress=10.0.1.8 " +
			"PrivateIpAddresses.1.PrivateIpAddress=10.0.1.9 PrivateIpAddresses.1.Primary=true",
			"400 InvalidParameterCombination"},
		{"create: more than any type", "",
			"CreateNetworkInterface SubnetId=subnet-big SecondaryPrivateIpAddressCount=50",
			"400 PrivateIpAddressLimitExceeded"},
		{"create: subnet full", "", "CreateNetworkInterface SubnetId=subnet-tiny SecondaryPrivateIpAddressCount=11",
			"400 InsufficientFreeAddressesInSubnet"},
		{"create: no prefix left", "", "CreateNetworkInterface SubnetId=subnet-tiny Ipv4PrefixCount=1",
			"400 InvalidParameterValue"},
		{"create: address of another", "", "CreateNetworkInterface SubnetId=subnet-a PrivateIpAddress=10.0.0.4",
			"400 InvalidIPAddress.InUse"},
		{"create: network address", "", create + " PrivateIpAddress=10.0.1.0", "400 InvalidParameterValue"},
		{"create: fourth address", "", create + " PrivateIpAddress=10.0.1.3", "400 InvalidParameterValue"},
		{"create: last address", "", create + " PrivateIpAddress=10.0.1.255", "400 InvalidParameterValue"},
		{"create: address of elsewhere", "", create + " PrivateIpAddress=10.0.0.9", "400 InvalidParameterValue"},
		{"create: address twice", "", create +
			" PrivateIpAddress=10.0.1.9 PrivateIpAddresses.1.PrivateIpAddress=10.0.1.9", "400 InvalidParameterValue"},
		{"create: established timeout too short", "", create +
			" ConnectionTrackingSpecification.TcpEstablishedTimeout=59", "400 InvalidParameterValue"},
		{"create: established timeout too long", "", create +
			" ConnectionTrackingSpecification.TcpEstablishedTimeout=432001", "400 InvalidParameterValue"},
		{"create: stream timeout too long", "", create + " ConnectionTrackingSpecification.UdpStreamTimeout=181",
			"400 InvalidParameterValue"},
		{"create: datagram timeout too short", "", create + " ConnectionTrackingSpecification.UdpTimeout=29",
			"400 InvalidParameterValue"},
		{"create: tags for a volume", "", create +
			" TagSpecification.1.ResourceType=volume TagSpecification.1.Tag.1.Key=a", "400 InvalidParameterValue"},
		{"create: no IPv6 there", "", create + " Ipv6AddressCount=1", "400 InvalidParameterValue"},
		{"create: no IPv4 there", "", "CreateNetworkInterface SubnetId=subnet-six SecondaryPrivateIpAddressCount=1",
			"400 InvalidParameterValue"},
		{"create: no primary address there", "", "CreateNetworkInterface SubnetId=subnet-six PrivateIpAddress=10.0.0.9",
			"400 InvalidParameterValue"},
		{"create: IPv6 addresses and count", "", dual +
			" Ipv6Addresses.1.Ipv6Address=2001:db8:1:4::9 Ipv6AddressCount=1", "400 InvalidParameterCombination"},
		{"create: IPv6 count and prefixes", "", dual + " Ipv6PrefixCount=1 Ipv6AddressCount=1",
			"400 InvalidParameterCombination"},
		{"create: negative IPv6 count", "", dual + " Ipv6AddressCount=-1", "400 InvalidParameterValue"},
		{"create: an IPv4 address for IPv6", "", dual + " Ipv6Addresses.1.Ipv6Address=10.0.4.9",
			"400 InvalidParameterValue"},
		{"create: an IPv4 block for IPv6", "", dual + " Ipv6Prefix.1.Ipv6Prefix=10.0.4.16/28",
			"400 InvalidParameterValue"},
		{"create: more IPv6 than any type", "", dual + " Ipv6AddressCount=51", "400 PrivateIpAddressLimitExceeded"},
		{"create: IPv6 address of another", dual + " Ipv6AddressCount=1", dual +
			" Ipv6Addresses.1.Ipv6Address=2001:db8:1:4::4", "400 InvalidIPAddress.InUse"},
		{"create: reserved IPv6 address", "", dual + " Ipv6Addresses.1.Ipv6Address=2001:db8:1:4::3",
			"400 InvalidParameterValue"},
		{"create: last IPv6 address", "", dual + " Ipv6Addresses.1.Ipv6Address=2001:db8:1:4:ffff:ffff:ffff:ffff",
			"400 InvalidParameterValue"},
		{"create: first IPv6 prefix", "", dual + " Ipv6Prefix.1.Ipv6Prefix=2001:db8:1:4::/80",
			"400 InvalidParameterValue"},
		{"create: last IPv6 prefix", "", dual + " Ipv6Prefix.1.Ipv6Prefix=2001:db8:1:4:ffff::/80",
			"400 InvalidParameterValue"},
		{"create: a /64", "", dual + " Ipv6Prefix.1.Ipv6Prefix=2001:db8:1:4::/64", "400 InvalidParameterValue"},
		{"create: IPv6 of elsewhere", "", dual + " Ipv6Addresses.1.Ipv6Address=2001:db8:1:6::9",
			"400 InvalidParameterValue"},
		{"create: both families, one of them full", "",
			"CreateNetworkInterface SubnetId=subnet-dual SecondaryPrivateIpAddressCount=2 " +
				"Ipv6Prefix.1.Ipv6Prefix=2001:db8:1:4::/80", "400 InvalidParameterValue"},
		{"create: token with another timeout", create + " ClientToken=t1", create +
			" ClientToken=t1 ConnectionTrackingSpecification.UdpTimeout=40", "400 IdempotentParameterMismatch"},
		{"create: token with other parameters", create + " ClientToken=t1", create + " ClientToken=t1 Description=x",
			"400 IdempotentParameterMismatch"},

		{"attach: no ENI", "", "AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-9 DeviceIndex=1",
			"400 InvalidNetworkInterfaceID.NotFound"},
		{"attach: not an ENI", "", "AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=vpc-1 DeviceIndex=1",
			"400 InvalidNetworkInterfaceId.Malformed"},
		{"attach: no instance", create, "AttachNetworkInterface InstanceId=i-9 NetworkInterfaceId=eni-2 DeviceIndex=1",
			"400 InvalidInstanceID.NotFound"},
		{"attach: not an instance", create,
			"AttachNetworkInterface InstanceId=eni-1 NetworkInterfaceId=eni-2 DeviceIndex=1",
			"400 InvalidInstanceID.Malformed"},
		{"attach: twice", attached, "AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=2",
			"400 InvalidNetworkInterface.InUse"},
		{"attach: index taken", create, "AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=0",
			"400 InvalidParameterValue"},
		{"attach: negative index", create,
			"AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=-1",
			"400 InvalidParameterValue"},
		{"attach: no such card", create,
			"AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1 NetworkCardIndex=1",
			"400 InvalidParameterValue"},
		{"attach: other zone", "CreateNetworkInterface SubnetId=subnet-c",
			"AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1",
			"400 InvalidParameterCombination"},
		{"attach: instance full", attached + "\n" + create + "\n" + create +
			"\nAttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-3 DeviceIndex=2",
			"AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-4 DeviceIndex=3",
			"400 AttachmentLimitExceeded"},
		{"attach: too many addresses", create + " SecondaryPrivateIpAddressCount=10",
			"AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1",
			"400 InvalidInterface.IpAddressLimitExceeded"},

		{"attach: too many IPv6 addresses", dual + " Ipv6AddressCount=11",
			"AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1",
			"400 InvalidInterface.IpAddressLimitExceeded"},

		{"detach: no attachment", "", "DetachNetworkInterface AttachmentId=eni-attach-9",
			"400 InvalidAttachmentID.NotFound"},
		{"detach: not an attachment", "", "DetachNetworkInterface AttachmentId=eni-1",
			"400 InvalidNetworkInterfaceAttachmentId.Malformed"},
		{"detach: boot ENI", "", "DetachNetworkInterface AttachmentId=eni-attach-1", "400 OperationNotPermitted"},

		{"delete: no ENI", "", "DeleteNetworkInterface NetworkInterfaceId=eni-9",
			"400 InvalidNetworkInterfaceID.NotFound"},
		{"delete: attached", attached, "DeleteNetworkInterface NetworkInterfaceId=eni-2", "400 InvalidParameterValue"},

		{"modify: nothing", "", "ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-1",
			"400 InvalidParameterCombination"},
		{"modify: two attributes", "", "ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-1 Description.Value=x " +
			"SourceDestCheck.Value=false", "400 InvalidParameterCombination"},
		{"modify: timeout out of range", "", "ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-1 " +
			"ConnectionTrackingSpecification.UdpTimeout=61", "400 InvalidParameterValue"},
		{"modify: no ENI", "", "ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-9 Description.Value=x",
			"400 InvalidNetworkInterfaceID.NotFound"},
		{"modify: no group", "", "ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-1 SecurityGroupId.1=sg-x",
			"400 InvalidGroup.NotFound"},
		{"modify: attachment of another", attached,
			"ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-2 Attachment.AttachmentId=eni-attach-1 " +
				"Attachment.DeleteOnTermination=true", "400 InvalidAttachmentID.NotFound"},
		{"modify: which attachment", "",
			"ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-1 Attachment.DeleteOnTermination=true",
			"400 MissingParameter"},

		{"assign: no ENI", "", "AssignPrivateIpAddresses NetworkInterfaceId=eni-9 SecondaryPrivateIpAddressCount=1",
			"400 InvalidNetworkInterfaceID.NotFound"},
		{"assign: what", "", "AssignPrivateIpAddresses NetworkInterfaceId=eni-1", "400 MissingParameter"},
		{"assign: nothing", "", "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=0",
			"400 InvalidParameterValue"},
		{"assign: no prefixes", "", "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 Ipv4PrefixCount=0",
			"400 InvalidParameterValue"},
		{"assign: list and count", "", "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 " +
			"PrivateIpAddress.1=10.0.0.9 SecondaryPrivateIpAddressCount=1", "400 InvalidParameterCombination"},
		{"assign: ENI full", "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=9",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=1",
			"400 PrivateIpAddressLimitExceeded"},
		{"assign: prefixes count", "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 Ipv4PrefixCount=9",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=1",
			"400 PrivateIpAddressLimitExceeded"},
		{"assign: more than fits", "",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=10",
			"400 PrivateIpAddressLimitExceeded"},
		{"assign: subnet full", "CreateNetworkInterface SubnetId=subnet-tiny SecondaryPrivateIpAddressCount=10",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-2 SecondaryPrivateIpAddressCount=1",
			"400 InsufficientFreeAddressesInSubnet"},
		{"assign: no prefix left", "CreateNetworkInterface SubnetId=subnet-tiny",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-2 Ipv4PrefixCount=1", "400 InsufficientCidrBlocks"},
		{"assign: prefix not free", "", "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 Ipv4Prefix.1=10.0.0.0/28",
			"400 InsufficientCidrBlocks"},
		{"assign: prefix of elsewhere", "",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 Ipv4Prefix.1=10.0.1.16/28", "400 InvalidParameterValue"},
		{"assign: a /27", "", "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 Ipv4Prefix.1=10.0.0.32/27",
			"400 InvalidParameterValue"},
		{"assign: address of another", "CreateNetworkInterface SubnetId=subnet-a SecondaryPrivateIpAddressCount=1",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.6",
			"400 Resource.AlreadyAssigned"},
		{"assign: primary address of another", "CreateNetworkInterface SubnetId=subnet-a",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.5 AllowReassignment=true",
			"400 InvalidParameterValue"},
		{"assign: address in a prefix", "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 Ipv4PrefixCount=1",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.17",
			"400 Resource.AlreadyAssigned"},
		{"assign: address of elsewhere", "",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.1.9",
			"400 InvalidParameterValue"},
		{"assign: reserved address", "",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.2",
			"400 InvalidParameterValue"},

		{"assign IPv6: no ENI", "", "AssignIpv6Addresses NetworkInterfaceId=eni-9 Ipv6AddressCount=1",
			"400 InvalidNetworkInterfaceID.NotFound"},
		{"assign IPv6: what", "", "AssignIpv6Addresses NetworkInterfaceId=eni-1", "400 MissingParameter"},
		{"assign IPv6: nothing", "", "AssignIpv6Addresses NetworkInterfaceId=eni-1 Ipv6AddressCount=0",
			"400 InvalidParameterValue"},
		{"assign IPv6: no prefixes", "", "AssignIpv6Addresses NetworkInterfaceId=eni-1 Ipv6PrefixCount=0",
			"400 InvalidParameterValue"},
		{"assign IPv6: list and count", "",
			"AssignIpv6Addresses NetworkInterfaceId=eni-1 Ipv6Addresses.1=2001:db8:1:4::9 Ipv6AddressCount=1",
			"400 InvalidParameterCombination"},
		{"assign IPv6: no IPv6 there", "", "AssignIpv6Addresses NetworkInterfaceId=eni-1 Ipv6AddressCount=1",
			"400 InvalidParameterValue"},
		{"assign IPv6: ENI full", dualAttached + "\nAssignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6AddressCount=10",
			"AssignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6AddressCount=1", "400 PrivateIpAddressLimitExceeded"},
		{"assign IPv6: prefixes count", dualAttached +
			"\nAssignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6PrefixCount=10",
			"AssignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6AddressCount=1", "400 PrivateIpAddressLimitExceeded"},
		{"assign IPv6: address of another", dual + " Ipv6AddressCount=1\n" + dual,
			"AssignIpv6Addresses NetworkInterfaceId=eni-3 Ipv6Addresses.1=2001:db8:1:4::4",
			"400 Resource.AlreadyAssigned"},
		{"assign IPv6: address in a prefix", dual + " Ipv6PrefixCount=1",
			"AssignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6Addresses.1=2001:db8:1:4:1::1",
			"400 Resource.AlreadyAssigned"},
		{"assign IPv6: prefix around an address", dual + " Ipv6Addresses.1.Ipv6Address=2001:db8:1:4:5::1",
			"AssignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6Prefix.1=2001:db8:1:4:5::/80",
			"400 InsufficientCidrBlocks"},
		{"assign: no IPv4 there", "CreateNetworkInterface SubnetId=subnet-six",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-2 SecondaryPrivateIpAddressCount=1",
			"400 InvalidParameterValue"},

		{"unassign IPv6: no ENI", "", "UnassignIpv6Addresses NetworkInterfaceId=eni-9 Ipv6Addresses.1=2001:db8:1:4::4",
			"400 InvalidNetworkInterfaceID.NotFound"},
		{"unassign IPv6: what", "", "UnassignIpv6Addresses NetworkInterfaceId=eni-1", "400 MissingParameter"},
		{"unassign IPv6: not its address", dual + " Ipv6AddressCount=1",
			"UnassignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6Addresses.1=2001:db8:1:4::4 " +
				"Ipv6Addresses.2=2001:db8:1:4::5", "400 InvalidParameterValue"},
		{"unassign IPv6: not its prefix", dual,
			"UnassignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6Prefix.1=2001:db8:1:4:1::/80",
			"400 InvalidParameterValue"},
		{"unassign: primary address that is not there", "CreateNetworkInterface SubnetId=subnet-six",
			"UnassignPrivateIpAddresses NetworkInterfaceId=eni-2 PrivateIpAddress.1=10.0.0.9",
			"400 InvalidParameterValue"},

		{"unassign: no ENI", "", "UnassignPrivateIpAddresses NetworkInterfaceId=eni-9 PrivateIpAddress.1=10.0.0.4",
			"400 InvalidNetworkInterfaceID.NotFound"},
		{"unassign: what", "", "UnassignPrivateIpAddresses NetworkInterfaceId=eni-1", "400 MissingParameter"},
		{"unassign: primary address", "",
			"UnassignPrivateIpAddresses NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.4",
			"400 InvalidParameterValue"},
		{"unassign: not its address", "",
			"UnassignPrivateIpAddresses NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.9",
			"400 InvalidParameterValue"},
		{"unassign: not its prefix", "",
			"UnassignPrivateIpAddresses NetworkInterfaceId=eni-1 Ipv4Prefix.1=10.0.0.16/28",
			"400 InvalidParameterValue"},

		{"tags: no ENI", "", "CreateTags ResourceId.1=eni-9 Tag.1.Key=a", "400 InvalidNetworkInterfaceID.NotFound"},
		{"tags: no instance", "", "CreateTags ResourceId.1=i-9 Tag.1.Key=a", "400 InvalidInstanceID.NotFound"},
		{"tags: no subnet", "", "CreateTags ResourceId.1=subnet-x Tag.1.Key=a", "400 InvalidSubnetID.NotFound"},
		{"tags: no VPC", "", "CreateTags ResourceId.1=vpc-x Tag.1.Key=a", "400 InvalidVpcID.NotFound"},
		{"tags: of what", "", "CreateTags ResourceId.1=moon-1 Tag.1.Key=a", "400 InvalidID"},
		{"tags: none", "", "CreateTags ResourceId.1=eni-1", "400 MissingParameter"},
		{"tags: aws:", "", "CreateTags ResourceId.1=eni-1 Tag.1.Key=aws:a", "400 InvalidParameterValue"},
		{"tags: long key", "", "CreateTags ResourceId.1=eni-1 Tag.1.Key=" + strings.Repeat("k", 129),
			"400 InvalidParameterValue"},
		{"tags: long value", "", "CreateTags ResourceId.1=eni-1 Tag.1.Key=k Tag.1.Value=" + strings.Repeat("v", 257),
			"400 InvalidParameterValue"},
		{"tags: too many", "", "CreateTags ResourceId.1=eni-1" + tagsParams(51), "400 TagLimitExceeded"},

		{"describe: no ENI", "", "DescribeNetworkInterfaces NetworkInterfaceId.1=eni-9",
			"400 InvalidNetworkInterfaceID.NotFound"},
		{"describe: no subnet", "", "DescribeSubnets SubnetId.1=subnet-x", "400 InvalidSubnetID.NotFound"},
		{"describe: no VPC", "", "DescribeVpcs VpcId.1=vpc-x", "400 InvalidVpcID.NotFound"},
		{"describe: no peering", "", "DescribeVpcPeeringConnections VpcPeeringConnectionId.1=pcx-x",
			"400 InvalidVpcPeeringConnectionID.NotFound"},
		{"describe: no type", "", "DescribeInstanceTypes InstanceType.1=x1.large", "400 InvalidInstanceType"},
		{"describe: no filter", "", "DescribeSubnets Filter.1.Name=colour Filter.1.Value.1=red",
			"400 InvalidParameterValue"},
		{"describe: no filter, and nothing to filter", "",
			"DescribeSubnets Filter.1.Name=vpc-id Filter.1.Value.1=none Filter.2.Name=colour Filter.2.Value.1=red",
			"400 InvalidParameterValue"},
		{"describe: types have no tags", "", "DescribeInstanceTypes Filter.1.Name=tag-key Filter.1.Value.1=red",
			"400 InvalidParameterValue"},
		{"describe: page too small", "", "DescribeSubnets MaxResults=4", "400 InvalidParameterValue"},
		{"describe: page of IDs", "", "DescribeNetworkInterfaces NetworkInterfaceId.1=eni-1 MaxResults=5",
			"400 InvalidParameterCombination"},
		{"describe: bad token", "", "DescribeSubnets NextToken=xyz", "400 InvalidNextToken"},

		{"launch: no image", "", strings.Replace(launch1, "ami-00000000000000001", "ami-9", 1),
			"400 InvalidAMIID.NotFound"},
		{"launch: no key pair", "", launch1 + " KeyName=mine", "400 InvalidKeyPair.NotFound"},
		{"launch: no subnet", "", strings.Replace(launch1, "subnet-b", "subnet-x", 1), "400 InvalidSubnetID.NotFound"},
		{"launch: no group", "", launch1 + " NetworkInterface.1.SecurityGroupId.1=sg-x", "400 InvalidGroup.NotFound"},
		{"launch: none", "", strings.Replace(launch1, "MinCount=1", "MinCount=0", 1), "400 MissingParameter"},
		{"launch: less than the minimum", "", strings.Replace(launch1, "MinCount=1", "MinCount=2", 1),
			"400 InvalidParameterValue"},
		{"launch: subnet full", "", "RunInstances ImageId=ami-00000000000000001 InstanceType=t3.small MinCount=12 " +
			"MaxCount=12 NetworkInterface.1.SubnetId=subnet-tiny", "400 InsufficientFreeAddressesInSubnet"},
		{"launch: two interfaces", "", launch1 + " NetworkInterface.2.SubnetId=subnet-a", "400 InvalidParameterValue"},
		{"launch: user data", "", launch1 + " UserData=!", "400 InvalidUserData.Malformed"},
		{"launch: tags for a key pair", "", launch1 +
			" TagSpecification.1.ResourceType=key-pair TagSpecification.1.Tag.1.Key=a", "400 InvalidParameterValue"},
		{"launch: token of another", launch1 + " ClientToken=t", launch1 + " ClientToken=t UserData=YQ==",
			"400 IdempotentParameterMismatch"},
		{"terminate: no instance", "", "TerminateInstances InstanceId.1=i-9", "400 InvalidInstanceID.NotFound"},
		{"key pair: the name is taken", importKey, importKey, "400 InvalidKeyPair.Duplicate"},
		{"key pair: no key", "", "ImportKeyPair KeyName=mine PublicKeyMaterial=YQ==", "400 InvalidKey.Format"},
		{"group: no VPC", "", "CreateSecurityGroup GroupName=a GroupDescription=a VpcId=vpc-x",
			"400 InvalidVpcID.NotFound"},
		{"group: the name is taken", makeGroup, makeGroup, "400 InvalidGroup.Duplicate"},
		{"group: a rule twice", makeGroup + "\n" + allow, allow, "400 InvalidPermission.Duplicate"},
		{"group: a rule without ports", makeGroup,
			"AuthorizeSecurityGroupIngress GroupId=sg-00000000000000001 IpPermissions.1.IpProtocol=tcp",
			"400 InvalidParameterValue"},
		{"group: in use", makeGroup + "\n" + launch1 + " NetworkInterface.1.SecurityGroupId.1=sg-00000000000000001",
			"DeleteSecurityGroup GroupId=sg-00000000000000001", "400 DependencyViolation"},
		{"group: there is none", "", "DeleteSecurityGroup GroupId=sg-00000000000000001", "400 InvalidGroup.NotFound"},
		{"group: of another VPC", "CreateSecurityGroup GroupName=a GroupDescription=a VpcId=vpc-2",
			launch1 + " NetworkInterface.1.SecurityGroupId.1=sg-00000000000000001", "400 InvalidParameter"},

		{"dry run", "", create + " DryRun=true", "412 DryRunOperation"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sim, _ := start(t, world)
			for line := range strings.Lines(c.before) {
				must(t, sim, line)
			}
			before := fmt.Sprint(sim.ENIs(), free(sim))
			got, message := refused(t, sim, c.call)
			if got != c.want {
				t.Errorf("%s: got %s (%s), want %s", c.call, got, message, c.want)
			}
			if after := fmt.Sprint(sim.ENIs(), free(sim)); after != before {
				t.Errorf("a refused call changed the world from\n%s\nto\n%s", before, after)
			}
		})
	}
}

// TestRulesOfTypes tests types without prefixes, and types with several network cards.
func TestRulesOfTypes(t *testing.T) {
	c := world
	c.InstanceTypes = []InstanceType{
		{Name: "t2.small", ENIs: 3, IPv4PerENI: 4, Xen: true},
		{Name: "two.cards", ENIs: 4, IPv4PerENI: 4, Cards: []int{1, 3}},
	}
	sim, _ := start(t, c)
	run(t, sim, RunInstance{Type: "t2.small", Subnet: "subnet-b"})
	run(t, sim, RunInstance{Type: "two.cards", Subnet: "subnet-b"})
	must(t, sim, create+" Ipv4PrefixCount=1")
	for _, c := range []struct{ call, want string }{
		{"AttachNetworkInterface InstanceId=i-2 NetworkInterfaceId=eni-4 DeviceIndex=1", "400 UnsupportedOperation"},
		{"AssignPrivateIpAddresses NetworkInterfaceId=eni-2 Ipv4PrefixCount=1", "400 UnsupportedOperation"},
		{"AssignPrivateIpAddresses NetworkInterfaceId=eni-3 Ipv4PrefixCount=1", "200"},
		{"AttachNetworkInterface InstanceId=i-3 NetworkInterfaceId=eni-4 DeviceIndex=1", "400 InvalidParameterValue"},
		{"AttachNetworkInterface InstanceId=i-3 NetworkInterfaceId=eni-4 DeviceIndex=3 NetworkCardIndex=1",
			"400 InvalidParameterValue"},
		{"AttachNetworkInterface InstanceId=i-3 NetworkInterfaceId=eni-4 DeviceIndex=1 NetworkCardIndex=2",
			"400 InvalidParameterValue"},
		{"AttachNetworkInterface InstanceId=i-3 NetworkInterfaceId=eni-4 DeviceIndex=0 NetworkCardIndex=1", "200"},
		{"DetachNetworkInterface AttachmentId=eni-attach-4", "200"},
	} {
		if got, message := refused(t, sim, c.call); got != c.want {
			t.Errorf("%s: got %s (%s), want %s", c.call, got, message, c.want)
		}
	}
}

// TestTypeWithoutIPv6: EC2 gives no IPv6 address to an instance whose type has no IPv6.
func TestTypeWithoutIPv6(t *testing.T) {
	c := world
	c.InstanceTypes = []InstanceType{{Name: "six.none", ENIs: 4, IPv4PerENI: 4}}
	sim, _ := start(t, c)
	run(t, sim, RunInstance{Type: "six.none", Subnet: "subnet-dual"})
	if _, err := sim.RunInstance(RunInstance{Type: "six.none", Subnet: "subnet-six"}); err == nil {
		t.Error("launched in a subnet without IPv4")
	}
	must(t, sim, dual+" Ipv6AddressCount=1")
	for _, call := range []string{
		"AttachNetworkInterface InstanceId=i-2 NetworkInterfaceId=eni-3 DeviceIndex=1",
		"AssignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6AddressCount=1",
	} {
		if got, _ := refused(t, sim, call); got != "400 UnsupportedOperation" {
			t.Errorf("%s: %s", call, got)
		}
	}
}

func groupsParams(n int) (s string) {
	for i := range n {
		s += fmt.Sprintf(" SecurityGroupId.%d=sg-%d", i+1, i+1)
	}
	return s
}

func tagsParams(n int) (s string) {
	for i := range n {
		s += fmt.Sprintf(" Tag.%d.Key=k%d Tag.%d.Value=v", i+1, i, i+1)
	}
	return s
}

// free returns the number of free IPv4 addresses of each subnet.
func free(sim *Sim) map[string]int {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	left := map[string]int{}
	for id, sub := range sim.subnets {
		left[id] = sub.freeIPv4()
	}
	return left
}
