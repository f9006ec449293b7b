// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

// fields are what a command answers with --output json: an object, or, where it begins
// with [], a list of objects. What stands in braces is within the field before them. Times
// are those of RFC 3339 in UTC. A field keeps its name and type from release to
// release; new ones may come. The transcripts hold this.
var fields = map[string]string{
	"addr":                     "[] iface ip netns (of the pod; \"\": the node's)",
	"allocate-first-available": "iface id ips",
	"bugs":                     "[] bug afflicted",
	"completion":               "shell script",
	"deallocate":               "deallocated",
	"doctor":                   "errors warnings (that are left) checked findings[] {check severity about means do fixed}",
	"eni-gc":                   "deleted[] {id instance subnet first_seen} waiting[] {id instance subnet first_seen}",
	"eniif":                    "[] iface mac id index card subnet subnet_cidr secgrps vpc ips",
	"free-ips":                 "[] adapter ip",
	"iam-policy":               "Version Statement[] {Sid Effect Action Resource Condition}",
	"launch-template": `NetworkInterfaces[] {DeviceIndex NetworkCardIndex Description SubnetId Groups
    DeleteOnTermination SecondaryPrivateIpAddressCount} TagSpecifications[] {ResourceType Tags[] {Key Value}}
    with --prefixes, --ipv6: NetworkInterfaces[] {DeviceIndex NetworkCardIndex Description SubnetId Groups
    DeleteOnTermination Ipv4PrefixCount Ipv6PrefixCount} TagSpecifications[] {ResourceType Tags[] {Key Value}}`,
	"limits":           "adapters ipv4 ipv6",
	"man":              "page",
	"maxpods":          "max_pods",
	"mend":             "mended",
	"metrics":          "[] name help samples[] {labels value}",
	"new-interface":    "iface mac id index card subnet subnet_cidr secgrps vpc ips vpc_cidrs",
	"registry-gc":      "deleted ended mended prefixes rules unassigned",
	"registry-list":    "[] ip released_on (null: never used) eni",
	"remove-interface": "removed",
	"status": `instance {id type zone enis enis_max}
    work {waiting unfinished[] {action eni since} throttled[] {action until}}
    pools[] {pool enis leased free cooling warm_min warm_max}
    enis[] {eni iface index card pool leased free cooling prefixes state}
    addresses[] {ip state namespace pod container ifname netns eni pool since until}
    with --diff: disagreements metadata ec2 (whether it was compared)
    findings[] {about means do harmless}
    addresses[] {ip registry kernel metadata ec2}`,
	"subnets":     "[] id cidr default addresses_available tags",
	"validate":    "[] file where mistake",
	"vpccidr":     "[] iface metadata_cidr aws_api_cidr",
	"vpcpeercidr": "[] iface peer_cidr",
	"warm":        "[] pool free min",
}
