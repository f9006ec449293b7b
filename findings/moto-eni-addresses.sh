#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# moto 5.1.1 with boto3 1.37.9 (Debian 13): the simulator of EC2, and the addresses of ENIs. The tests of an address manager use it.
#
# A good guess: moto keeps the rules of EC2 that decide about addresses. An address belongs to one ENI, and a further ENI gets it only with
# AllowReassignment. An ENI's addresses are of its subnet, without those that EC2 reserves. A full subnet is an error. The answer of an
# assignment has the new addresses only. What moto does not know is an error, as it is for some filters.
#
# What happens: two ENIs get one primary address, and a third one gets it as a secondary address. An ENI gets an address of another network.
# In a subnet of 16 addresses, moto assigns 30 to one ENI, so some of them several times. The subnet then has -23 free addresses. Each answer
# lists all addresses of the ENI as assigned, with the primary one. So the answer for a prefix, which moto does not make, looks like one with
# addresses. The primary address can be unassigned. The filter for addresses looks only at primary addresses. MaxResults has no effect. Two
# ENIs attach at one device number. An attached ENI can be deleted, and the instance still shows it. The MAC addresses of ENIs are no MAC
# addresses. All these calls succeed, so tests of faulty code pass, and tests of right code fail. The script needs root, and Debian.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/{dev,etc/ssl/certs,proc,tmp,usr/{lib,lib64,sbin,bin}}
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources && touch status
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root -o APT::Install-Recommends=0)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --download-only -y python3-moto=5.1.1-4 python3-boto3=1.37.9-1 ca-certificates >log
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
for deb in cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --keep-directory-symlink; done
cat root/usr/share/ca-certificates/mozilla/*.crt >root/etc/ssl/certs/ca-certificates.crt # an import of Python reads it
cat >root/tmp/enis.py <<'END'
import boto3, ipaddress, moto, os, re, sys
os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="eu-west-1")
print("moto", moto.__version__, "boto3", boto3.__version__, file=sys.stderr)
with moto.mock_aws():
    ec2 = boto3.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/28")["Subnet"]["SubnetId"]
    create = lambda ip: ec2.create_network_interface(SubnetId=subnet, PrivateIpAddress=ip)["NetworkInterface"]
    enis = lambda **what: ec2.describe_network_interfaces(**what)["NetworkInterfaces"]
    of = lambda eni: [a["PrivateIpAddress"] for a in enis(NetworkInterfaceIds=[eni])[0]["PrivateIpAddresses"]]
    a, b, c = [create(ip) for ip in ["10.0.1.5", "10.0.1.5", "10.0.1.6"]]
    print("a and b:", a["PrivateIpAddress"], b["PrivateIpAddress"])
    print("MAC of a:", re.sub("[0-9]+02x", "N02x", a["MacAddress"]))
    a, b, c = [eni["NetworkInterfaceId"] for eni in [a, b, c]]
    def assign(eni, **what):
        answer = ec2.assign_private_ip_addresses(NetworkInterfaceId=eni, **what)
        return [one["PrivateIpAddress"] for one in answer["AssignedPrivateIpAddresses"]], answer.get("AssignedIpv4Prefixes")
    print("c gets 10.0.1.5:", *assign(c, PrivateIpAddresses=["10.0.1.5"]))
    print("c gets 192.0.2.1:", *assign(c, PrivateIpAddresses=["192.0.2.1"]))
    print("c gets a prefix:", *assign(c, Ipv4PrefixCount=1), enis(NetworkInterfaceIds=[c])[0].get("Ipv4Prefixes"))
    print("ENIs by filter:", *[len(enis(Filters=[{"Name": "addresses.private-ip-address", "Values": [ip]}])) for ip in of(c)])
    ec2.unassign_private_ip_addresses(NetworkInterfaceId=c, PrivateIpAddresses=["10.0.1.6"])
    print("c without its primary address:", of(c))
    assign(a, SecondaryPrivateIpAddressCount=30)
    print("a in 10.0.1.0/28:", len(of(a)), "addresses, at most 16 different:", len(set(of(a))) <= 16)
    print("free addresses of the subnet:", ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["AvailableIpAddressCount"])
    for i in range(7, 14): create(f"10.0.1.{i}")
    print("ENIs in a page of 5:", len(enis(MaxResults=5)))
    instance = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1, SubnetId=subnet)["Instances"][0]["InstanceId"]
    for eni in [a, b]: ec2.attach_network_interface(NetworkInterfaceId=eni, InstanceId=instance, DeviceIndex=1)
    print("device numbers of a and b:", *[enis(NetworkInterfaceIds=[eni])[0]["Attachment"]["DeviceIndex"] for eni in [a, b]])
    ec2.delete_network_interface(NetworkInterfaceId=b)
    shown = ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]["NetworkInterfaces"]
    print("b after delete: exists:", b in [e["NetworkInterfaceId"] for e in enis()], "on instance:", b in [e["NetworkInterfaceId"] for e in shown])
END
unshare -nm bash -euo pipefail -c 'mount --bind /dev root/dev && chroot root /usr/bin/python3 -W ignore /tmp/enis.py' | tee seen
diff - seen <<'END'
a and b: 10.0.1.5 10.0.1.5
MAC of a: 02:00:00:N02x:N02x:N02x
c gets 10.0.1.5: ['10.0.1.6', '10.0.1.5'] None
c gets 192.0.2.1: ['10.0.1.6', '10.0.1.5', '192.0.2.1'] None
c gets a prefix: ['10.0.1.6', '10.0.1.5', '192.0.2.1'] None None
ENIs by filter: 1 2 0
c without its primary address: ['10.0.1.5', '192.0.2.1']
a in 10.0.1.0/28: 31 addresses, at most 16 different: True
free addresses of the subnet: -23
ENIs in a page of 5: 10
device numbers of a and b: 1 1
b after delete: exists: False on instance: True
END
