// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// World returns the Config that a text describes. The text has one line for each VPC, subnet and peering:
//
//	vpc-1        10.0.0.0/16 100.64.0.0/16 -100.65.0.0/16 2001:db8:1::/56
//	subnet-node  10.0.0.0/24 public
//	subnet-pods  100.64.0.0/20 2001:db8:1:1::/64 us-east-1b kubernetes_kubelet=true
//	vpc-2        10.1.0.0/16 default
//	subnet-else  10.1.0.0/24 default
//	pcx-1        vpc-1 vpc-2
//	pcx-2        vpc-9 10.9.0.0/16 vpc-1 deleted
//
// A subnet belongs to the nearest VPC above it. If the line of a subnet names no zone, the zone is us-east-1a. The word
// "public" sets MapPublicIP, the word "default" sets Default, and KEY=VALUE sets a tag. World adds a CIDR that begins
// with "-" to FormerCIDRs. In the line of a peering, a CIDR belongs to the nearest VPC before it, and any other word is
// the status. World panics if the text has a mistake. It sets only the fields VPCs, Subnets and Peerings of the Config.
func World(text string) (c Config) {
	for line := range strings.Lines(text) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		kind, _, _ := strings.Cut(id, "-")
		switch w := parseWords(rest); {
		case id == "":
		case kind == "vpc" && w.other == "":
			c.VPCs = append(c.VPCs, VPC{ID: id, CIDRs: w.v4, IPv6CIDRs: w.v6, FormerCIDRs: w.former,
				Default: w.isDefault, Tags: w.tags})
		case kind == "subnet" && len(w.v4) <= 1 && len(w.v6) <= 1:
			c.Subnets = append(c.Subnets, Subnet{ID: id, VPC: c.VPCs[len(c.VPCs)-1].ID,
				Zone: cmp.Or(w.other, "us-east-1a"), CIDR: onlyPrefix(w.v4), IPv6CIDR: onlyPrefix(w.v6),
				MapPublicIP: w.public, Default: w.isDefault, Tags: w.tags})
		case kind == "pcx":
			c.Peerings = append(c.Peerings, peeringOf(id, rest))
		default:
			panic(fmt.Sprintf("no line of a VPC, a subnet or a peering: %q", line))
		}
	}
	return c
}

// lineWords are the words after the ID in a line of World's text.
type lineWords struct {
	v4, v6, former    []netip.Prefix
	tags              map[string]string
	public, isDefault bool
	other             string
}

func parseWords(text string) (w lineWords) {
	for _, word := range strings.Fields(text) {
		cidr, former := strings.CutPrefix(word, "-")
		key, value, tag := strings.Cut(word, "=")
		switch {
		case tag && w.tags == nil:
			w.tags = map[string]string{key: value}
		case tag:
			w.tags[key] = value
		case word == "public":
			w.public = true
		case word == "default":
			w.isDefault = true
		case !strings.Contains(word, "/"):
			w.other = word
		case former:
			w.former = append(w.former, netip.MustParsePrefix(cidr))
		case strings.Contains(word, ":"):
			w.v6 = append(w.v6, netip.MustParsePrefix(word))
		default:
			w.v4 = append(w.v4, netip.MustParsePrefix(word))
		}
	}
	return w
}

// peeringOf parses the text after the ID in a peering's line: two VPCs, each followed by its CIDRs, and perhaps a
// status.
func peeringOf(id, text string) Peering {
	p := Peering{ID: id}
	_, requester, _ := strings.Cut(text, "vpc-")
	requester, accepter, _ := strings.Cut(requester, "vpc-")
	for side, text := range map[*PeerVPC]string{&p.Requester: requester, &p.Accepter: accepter} {
		name, rest, _ := strings.Cut(text, " ")
		w := parseWords(rest)
		side.ID, side.CIDRs, side.IPv6CIDRs = "vpc-"+name, w.v4, w.v6
		p.Status = cmp.Or(w.other, p.Status)
	}
	return p
}

// onlyPrefix returns the only prefix of a list, or the zero Prefix if the list is empty.
func onlyPrefix(blocks []netip.Prefix) (b netip.Prefix) {
	for _, b = range blocks {
	}
	return b
}
