// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// tree is the metadata as it is served: path without the first slash -> value (Guide: "Instance metadata categories").
// A key with nothing to say is left out, and so answers 404.
func (i *Instance) tree(enis []ENI) map[string]string {
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
	set("meta-data/iam/security-credentials/"+i.role, i.credentials())
	for _, e := range enis {
		if e.Card == 0 && e.Index == 0 {
			i.boot(set, e)
		}
		i.macs(set, e)
	}
	return t
}

// boot is what the metadata says of the instance because of its boot ENI.
func (i *Instance) boot(set func(key, value string), e ENI) {
	set("meta-data/mac", e.MAC)
	set("meta-data/hostname", i.sim.dnsName(e.Addrs[0]))
	set("meta-data/local-hostname", i.sim.dnsName(e.Addrs[0]))
	set("meta-data/local-ipv4", e.Addrs[0].String())
	if e.PublicIP.IsValid() {
		set("meta-data/public-ipv4", e.PublicIP.String())
	}
	set("dynamic/instance-identity/document", i.document(e))
}

// macs is the directory of one ENI.
func (i *Instance) macs(set func(key, value string), e ENI) {
	vpc := i.sim.vpcs[e.VPC]
	dir := "meta-data/network/interfaces/macs/" + e.MAC + "/"
	set(dir+"device-number", strconv.Itoa(e.Index))
	set(dir+"interface-id", e.ID)
	set(dir+"mac", e.MAC)
	set(dir+"owner-id", i.sim.cfg.Account)
	set(dir+"subnet-id", e.Subnet)
	set(dir+"vpc-id", e.VPC)
	set(dir+"security-group-ids", lines(e.SecurityGroups))
	set(dir+"local-hostname", i.sim.dnsName(e.Addrs[0]))
	set(dir+"local-ipv4s", lines(texts(e.Addrs)))
	set(dir+"subnet-ipv4-cidr-block", e.CIDR.String())
	set(dir+"vpc-ipv4-cidr-block", vpc.CIDRs[0].String())
	set(dir+"vpc-ipv4-cidr-blocks", lines(texts(vpc.CIDRs)))
	set(dir+"ipv4-prefix", lines(texts(e.Prefixes)))
	if e.PublicIP.IsValid() {
		set(dir+"public-ipv4s", e.PublicIP.String())
		set(dir+"ipv4-associations/"+e.PublicIP.String(), e.Addrs[0].String())
	}
	// In practice: the categories page calls it network-card-index; instances have this name, and only if they have
	// more cards than one.
	if len(i.limits.cards()) > 1 {
		set(dir+"network-card", strconv.Itoa(e.Card))
	}
}

// document is the instance identity document (Guide: "Instance identity documents").
func (i *Instance) document(boot ENI) string {
	return indent(struct {
		AccountID        string    `json:"accountId"`
		Architecture     string    `json:"architecture"`
		AvailabilityZone string    `json:"availabilityZone"`
		ImageID          string    `json:"imageId"`
		InstanceID       string    `json:"instanceId"`
		InstanceType     string    `json:"instanceType"`
		PendingTime      time.Time `json:"pendingTime"`
		PrivateIP        string    `json:"privateIp"`
		Region           string    `json:"region"`
		Version          string    `json:"version"`
	}{
		i.sim.cfg.Account, "x86_64", i.Zone, "ami-00000000000000001", i.ID, i.Type,
		i.launched.UTC().Truncate(time.Second), boot.Addrs[0].String(), i.sim.cfg.Region, "2017-09-30",
	})
}

// credentials are those of the instance's role, good for nothing but the simulator. They are renewed with each look, as
// the real ones are some minutes before they expire (Guide: "Retrieve security credentials from instance metadata").
func (i *Instance) credentials() string {
	now := time.Now().UTC().Truncate(time.Second)
	return indent(struct {
		Code            string
		LastUpdated     time.Time
		Type            string
		AccessKeyID     string `json:"AccessKeyId"`
		SecretAccessKey string
		Token           string
		Expiration      time.Time
	}{
		"Success", now, "AWS-HMAC", "ASIAEC2SIM" + i.ID[len(i.ID)-6:], "secret of " + i.ID, "session of " + i.ID, now.Add(6 * time.Hour),
	})
}

func indent(v any) string {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("ec2sim: %T: %v", v, err))
	}
	return string(text)
}

func lines(values []string) string { return strings.Join(values, "\n") }
