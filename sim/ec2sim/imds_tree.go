// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

const macsDir = "meta-data/network/interfaces/macs/"

// tree returns the metadata as a map from paths to values. The paths have no first slash (Guide: "Instance metadata
// categories"). The service answers 404 for a key without a value, so the map omits such keys. A path that ends in a
// slash is a directory, which may be empty.
//
// To save time, tree computes only the requested document, or the keys of the requested ENI. For the other documents
// and the directories of other ENIs, the map has only the paths, and not the contents.
func (i *Instance) tree(requested string) map[string]string {
	i.sim.mu.Lock()
	attached, listed, lies := i.currentView().enis, i.shownENIs(), slices.Clone(i.lies)
	i.sim.mu.Unlock()
	t := map[string]string{}
	set := func(key, value string) {
		if value != "" {
			t["latest/"+key] = value
		}
	}
	set("meta-data/instance-id", i.ID)
	set("meta-data/instance-type", i.Type)
	set("meta-data/placement/availability-zone", i.Zone)
	set("meta-data/placement/region", i.sim.cfg.Region)
	document := func(key string, content func() string) {
		if t["latest/"+key] = "a document"; requested == "latest/"+key {
			t[requested] = content()
		}
	}
	set("user-data", string(i.launch.userData))
	if i.launch.publicKey != "" {
		set("meta-data/public-keys/0/openssh-key", i.launch.publicKey)
	}
	document("meta-data/iam/security-credentials/"+i.role, i.credentials)
	for _, e := range attached {
		if e.Boot {
			i.setBootKeys(set, e)
			document("dynamic/instance-identity/document", func() string { return i.document(e) })
		}
	}
	for _, e := range listed {
		dir := macsDir + e.MAC + "/"
		if t["latest/"+dir] = ""; strings.HasPrefix(requested+"/", "latest/"+dir) {
			i.setENIKeys(func(key, value string) { set(dir+key, shownValue(lies, e, key, value)) }, e)
		}
	}
	return t
}

// setBootKeys sets the keys that depend on the boot ENI.
func (i *Instance) setBootKeys(set func(key, value string), e ENI) {
	set("meta-data/mac", e.MAC)
	set("meta-data/hostname", i.hostname(e))
	set("meta-data/local-hostname", i.hostname(e))
	set("meta-data/local-ipv4", firstAddr(e.Addrs))
	set("meta-data/ipv6", firstAddr(e.IPv6Addrs))
	if e.PublicIP.IsValid() {
		set("meta-data/public-ipv4", e.PublicIP.String())
	}
}

// hostname returns the instance's host name for this ENI. The name contains the ENI's primary address. In a subnet
// without IPv4, it contains the ID of the instance (VPC Guide: "EC2 instance hostnames and domains").
func (i *Instance) hostname(e ENI) string {
	if len(e.Addrs) == 0 {
		return i.ID + "." + i.sim.domain()
	}
	return i.sim.dnsName(e.Addrs[0])
}

// setENIKeys sets the keys in the directory of one ENI. In a subnet without IPv4, the directory has no IPv4 keys except
// the keys about the VPC.
func (i *Instance) setENIKeys(set func(key, value string), e ENI) {
	vpc := i.sim.vpcs[e.VPC]
	set("device-number", strconv.Itoa(e.Index))
	set("interface-id", e.ID)
	set("mac", e.MAC)
	set("owner-id", i.sim.cfg.Account)
	set("subnet-id", e.Subnet)
	set("vpc-id", e.VPC)
	set("security-group-ids", joinLines(e.SecurityGroups))
	set("local-hostname", i.hostname(e))
	set("local-ipv4s", joinLines(texts(e.Addrs)))
	if e.CIDR.IsValid() {
		set("subnet-ipv4-cidr-block", e.CIDR.String())
	}
	set("vpc-ipv4-cidr-block", vpc.CIDRs[0].String())
	set("vpc-ipv4-cidr-blocks", joinLines(texts(vpc.CIDRs)))
	set("ipv4-prefix", joinLines(texts(e.Prefixes)))
	set("ipv6s", joinLines(texts(e.IPv6Addrs)))
	set("ipv6-prefix", joinLines(texts(e.IPv6Prefixes)))
	if e.IPv6CIDR.IsValid() {
		set("subnet-ipv6-cidr-blocks", e.IPv6CIDR.String())
	}
	set("vpc-ipv6-cidr-blocks", joinLines(texts(vpc.IPv6CIDRs)))
	if e.PublicIP.IsValid() {
		set("public-ipv4s", e.PublicIP.String())
		set("ipv4-associations/"+e.PublicIP.String(), e.Addrs[0].String())
	}
	// The guide ("Instance metadata categories") calls this key network-card-index. In practice, the key is
	// network-card, and only instances with several cards have it.
	if len(i.limits.cards()) > 1 {
		set("network-card", strconv.Itoa(e.Card))
	}
}

// document returns the instance identity document (Guide: "Instance identity documents").
func (i *Instance) document(boot ENI) string {
	return indentedJSON(struct {
		AccountID        string    `json:"accountId"`
		Architecture     string    `json:"architecture"`
		AvailabilityZone string    `json:"availabilityZone"`
		ImageID          string    `json:"imageId"`
		InstanceID       string    `json:"instanceId"`
		InstanceType     string    `json:"instanceType"`
		PendingTime      time.Time `json:"pendingTime"`
		PrivateIP        string    `json:"privateIp,omitempty"`
		Region           string    `json:"region"`
		Version          string    `json:"version"`
	}{
		i.sim.cfg.Account, "x86_64", i.Zone, i.image(), i.ID, i.Type,
		i.launched.UTC().Truncate(time.Second), firstAddr(boot.Addrs), i.sim.cfg.Region, "2017-09-30",
	})
}

// credentials returns the credentials of the instance's role. They are valid only in the simulator, and expire after
// six hours (Guide: "Retrieve security credentials from instance metadata").
func (i *Instance) credentials() string {
	now := time.Now().UTC().Truncate(time.Second)
	return indentedJSON(struct {
		Code            string
		LastUpdated     time.Time
		Type            string
		AccessKeyID     string `json:"AccessKeyId"`
		SecretAccessKey string
		Token           string
		Expiration      time.Time
	}{
		"Success", now, "AWS-HMAC", "ASIAEC2SIM" + i.ID[len(i.ID)-6:], "secret of " + i.ID, "session of " + i.ID,
		now.Add(6 * time.Hour),
	})
}

func indentedJSON(v any) string {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("ec2sim: %T: %v", v, err))
	}
	return string(text)
}

func joinLines(values []string) string { return strings.Join(values, "\n") }

func firstAddr(as []netip.Addr) string {
	if len(as) == 0 {
		return ""
	}
	return as[0].String()
}
