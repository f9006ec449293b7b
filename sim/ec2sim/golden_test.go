// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"flag"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
)

var update = flag.Bool("update", false, "write the files of testdata again")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// TestAnswers compares an answer of each action with a stored answer, byte for byte. The calls create an ENI, a key
// pair, a security group and an instance, and delete them.
func TestAnswers(t *testing.T) {
	life := []string{
		"CreateNetworkInterface SubnetId=subnet-dual Description=CNI-ENI SecurityGroupId.1=sg-1 " +
			"SecurityGroupId.2=sg-2 SecondaryPrivateIpAddressCount=1 Ipv6AddressCount=2 ClientToken=t1 " +
			"ConnectionTrackingSpecification.TcpEstablishedTimeout=7200 " +
			"ConnectionTrackingSpecification.UdpTimeout=40 TagSpecification.1.ResourceType=network-interface " +
			"TagSpecification.1.Tag.1.Key=pool TagSpecification.1.Tag.1.Value=pods",
		"AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1 NetworkCardIndex=0",
		"ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-2 Attachment.AttachmentId=eni-attach-2 " +
			"Attachment.DeleteOnTermination=true",
		"AssignPrivateIpAddresses NetworkInterfaceId=eni-2 SecondaryPrivateIpAddressCount=2",
		"UnassignPrivateIpAddresses NetworkInterfaceId=eni-2 PrivateIpAddress.1=10.0.4.6",
		"AssignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6PrefixCount=1",
		"UnassignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6Addresses.1=2001:db8:1:4::4",
		"CreateTags ResourceId.1=eni-2 Tag.1.Key=cni Tag.1.Value=yes",
		"DescribeNetworkInterfaces",
		"DescribeSubnets Filter.1.Name=vpc-id Filter.1.Value.1=vpc-1 Filter.2.Name=availability-zone " +
			"Filter.2.Value.1=us-east-1a MaxResults=5",
		"DescribeVpcs",
		"DescribeVpcPeeringConnections",
		"DescribeInstanceTypes InstanceType.1=m5.large InstanceType.2=p4d.24xlarge InstanceType.3=c8gn.48xlarge",
		"DetachNetworkInterface AttachmentId=eni-attach-2",
		"DeleteNetworkInterface NetworkInterfaceId=eni-2",
		"ImportKeyPair KeyName=mine PublicKeyMaterial=c3NoLWVkMjU1MTkgQUFBQSBtaW5l " +
			"TagSpecification.1.ResourceType=key-pair TagSpecification.1.Tag.1.Key=run " +
			"TagSpecification.1.Tag.1.Value=r1",
		"DescribeKeyPairs Filter.1.Name=tag:run Filter.1.Value.1=r1",
		"CreateSecurityGroup GroupName=mine GroupDescription=mine VpcId=vpc-1 " +
			"TagSpecification.1.ResourceType=security-group TagSpecification.1.Tag.1.Key=run " +
			"TagSpecification.1.Tag.1.Value=r1",
		"AuthorizeSecurityGroupIngress GroupId=sg-00000000000000001 IpPermissions.1.IpProtocol=tcp " +
			"IpPermissions.1.FromPort=22 IpPermissions.1.ToPort=22 IpPermissions.1.IpRanges.1.CidrIp=203.0.113.1/32",
		"DescribeSecurityGroups Filter.1.Name=tag-key Filter.1.Value.1=run",
		"DescribeImages Owner.1=136693071363 Filter.1.Name=name Filter.1.Value.1=debian-13-amd64-*",
		"DescribeInstanceTypeOfferings LocationType=availability-zone Filter.1.Name=instance-type " +
			"Filter.1.Value.1=t3.small",
		launching,
		"DescribeInstances Filter.1.Name=tag:run Filter.1.Value.1=r1",
		"TerminateInstances InstanceId.1=i-2",
		"DeleteSecurityGroup GroupId=sg-00000000000000001",
		"DeleteKeyPair KeyName=mine",
	}
	synctest.Test(t, func(t *testing.T) {
		sim, _ := start(t, world)
		seen := map[string]bool{}
		for _, line := range life {
			action, _, _ := strings.Cut(line, " ")
			seen[action] = true
			code, body := post(t, sim, line)
			if code != 200 {
				t.Fatalf("%s: %d %s", line, code, body)
			}
			golden(t, action+".xml", body+"\n")
		}
		for action := range actions {
			if !seen[action] {
				t.Errorf("no answer of %s here", action)
			}
		}
		_, body := post(t, sim, "DeleteNetworkInterface NetworkInterfaceId=eni-2")
		golden(t, "error.xml", body+"\n")
	})
}

// TestMetadata compares all metadata of an instance with stored metadata. The second ENI has prefixes of both families,
// and the third ENI has no IPv4.
func TestMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, i := start(t, world)
		must(t, sim, "CreateNetworkInterface SubnetId=subnet-dual SecurityGroupId.1=sg-1 SecurityGroupId.2=sg-2 "+
			"SecondaryPrivateIpAddressCount=1 Ipv6PrefixCount=2")
		must(t, sim, "AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1")
		must(t, sim, "AssignPrivateIpAddresses NetworkInterfaceId=eni-2 Ipv4PrefixCount=2")
		must(t, sim, "CreateNetworkInterface SubnetId=subnet-six Ipv6AddressCount=2")
		must(t, sim, "AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-3 DeviceIndex=2")
		golden(t, "metadata.txt", walk(t, i, "/"))
	})
}

// walk returns the metadata below a directory, in the form of a shell session.
func walk(t *testing.T, i *Instance, dir string) string {
	t.Helper()
	code, listing := get(t, i, dir)
	if code != 200 {
		t.Fatalf("%s: %d", dir, code)
	}
	text := "$ GET " + dir + "\n" + listing + "\n"
	for name := range strings.SplitSeq(listing, "\n") {
		if strings.HasSuffix(name, "/") || strings.HasSuffix(dir, "security-credentials/") {
			continue
		}
		code, value := get(t, i, dir+name)
		if code != 200 {
			t.Errorf("%s: %d", dir+name, code)
		}
		text += "$ GET " + dir + name + "\n" + value + "\n"
	}
	for name := range strings.SplitSeq(listing, "\n") {
		if strings.HasSuffix(name, "/") {
			text += walk(t, i, dir+name)
		}
	}
	return text
}

// get reads a metadata key with a new token.
func get(t testing.TB, i *Instance, path string) (int, string) {
	t.Helper()
	r := httptest.NewRequest("GET", path, nil)
	r.Header.Set(tokenHeader, newToken(t, i))
	w := httptest.NewRecorder()
	i.Metadata().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func newToken(t testing.TB, i *Instance) string {
	t.Helper()
	r := httptest.NewRequest("PUT", "/latest/api/token", nil)
	r.Header.Set(ttlHeader, "60")
	w := httptest.NewRecorder()
	i.Metadata().ServeHTTP(w, r)
	if w.Code != 200 || w.Header().Get(ttlHeader) != "60" {
		t.Fatalf("token: %d %v", w.Code, w.Header())
	}
	return w.Body.String()
}

// TestTable: the simulator has exactly the actions of the table in aws/api.
func TestTable(t *testing.T) {
	if d := cmp.Diff(api.Names(0), slices.Sorted(maps.Keys(actions))); d != "" {
		t.Errorf("-table +simulator\n%s", d)
	}
}

// TestDryRun: EC2 answers UnauthorizedOperation to a dry run if the Config denies the action. Otherwise EC2 answers
// DryRunOperation, or UnknownParameter if the action has no dry run.
func TestDryRun(t *testing.T) {
	for _, action := range slices.Sorted(maps.Keys(actions)) {
		call := action + " DryRun=true " + strings.Join(strings.Fields(required[action]), " ")
		sim, _ := start(t, world)
		want := "412 DryRunOperation"
		if api.Is(action, api.NoDryRun) {
			want = "400 UnknownParameter"
		}
		if got, message := refused(t, sim, call); got != want {
			t.Errorf("%s: %s (%s)", call, got, message)
		}
		denied := world
		denied.Denied = []string{action}
		sim, _ = start(t, denied)
		if got, _ := refused(t, sim, call); got != "403 UnauthorizedOperation" {
			t.Errorf("%s, denied: %s", call, got)
		}
	}
}

// launching is a call of RunInstances.
const launching = "RunInstances ImageId=ami-00000000000000002 InstanceType=t3.small MinCount=1 MaxCount=1 " +
	"KeyName=mine UserData=IyEvYmluL3NoCg== InstanceInitiatedShutdownBehavior=terminate " +
	"MetadataOptions.HttpTokens=required NetworkInterface.1.DeviceIndex=0 NetworkInterface.1.SubnetId=subnet-a " +
	"NetworkInterface.1.SecurityGroupId.1=sg-00000000000000001 NetworkInterface.1.AssociatePublicIpAddress=true " +
	"TagSpecification.1.ResourceType=instance TagSpecification.1.Tag.1.Key=run TagSpecification.1.Tag.1.Value=r1"

// required are the required parameters of actions.
var required = map[string]string{
	"AuthorizeSecurityGroupIngress": "GroupId=sg-1 IpPermissions.1.IpProtocol=-1",
	"CreateSecurityGroup":           "GroupName=a GroupDescription=a VpcId=vpc-1",
	"DeleteKeyPair":                 "KeyName=a",
	"DeleteSecurityGroup":           "GroupId=sg-1",
	"ImportKeyPair":                 "KeyName=a PublicKeyMaterial=YQ==",
	"RunInstances": "ImageId=ami-1 InstanceType=t3.small MinCount=1 MaxCount=1 " +
		"NetworkInterface.1.SubnetId=subnet-a",
	"TerminateInstances":              "InstanceId.1=i-1",
	"AssignIpv6Addresses":             "NetworkInterfaceId=eni-1",
	"AssignPrivateIpAddresses":        "NetworkInterfaceId=eni-1",
	"AttachNetworkInterface":          "NetworkInterfaceId=eni-1 InstanceId=i-1 DeviceIndex=0",
	"CreateNetworkInterface":          "SubnetId=subnet-a",
	"CreateTags":                      "ResourceId.1=eni-1 Tag.1.Key=a",
	"DeleteNetworkInterface":          "NetworkInterfaceId=eni-1",
	"DetachNetworkInterface":          "AttachmentId=eni-attach-1",
	"ModifyNetworkInterfaceAttribute": "NetworkInterfaceId=eni-1",
	"UnassignIpv6Addresses":           "NetworkInterfaceId=eni-1",
	"UnassignPrivateIpAddresses":      "NetworkInterfaceId=eni-1",
}
