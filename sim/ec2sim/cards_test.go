// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"slices"
	"testing"
)

// TestCards: each card has its own device indices. An index must be lower than the card's maximum number of ENIs.
func TestCards(t *testing.T) {
	sim, _ := start(t, world)
	run(t, sim, RunInstance{Type: "p5.48xlarge", Subnet: "subnet-b"}) // i-2, eni-2
	for n := range 3 {
		must(t, sim, fmt.Sprint(create, " Description=", n)) // eni-3 to eni-5
	}
	for _, c := range []struct{ eni, card, index, want string }{
		{"eni-3", "0", "0", "400 InvalidParameterValue"}, // the boot ENI has this index
		{"eni-3", "0", "1", "200"},
		{"eni-4", "0", "2", "400 InvalidParameterValue"},
		{"eni-4", "31", "2", "400 InvalidParameterValue"},
		{"eni-4", "32", "1", "400 InvalidParameterValue"},
		{"eni-4", "31", "1", "200"},
		{"eni-5", "31", "1", "400 InvalidParameterValue"},
		{"eni-5", "31", "0", "200"},
	} {
		call := fmt.Sprintf("AttachNetworkInterface InstanceId=i-2 NetworkInterfaceId=%s NetworkCardIndex=%s "+
			"DeviceIndex=%s", c.eni, c.card, c.index)
		if got, message := refused(t, sim, call); got != c.want {
			t.Errorf("%s: %s (%s), want %s", call, got, message, c.want)
		}
	}
	// EC2 never detaches the boot ENI at index 0 of card 0, but it detaches an ENI at index 0 of another card.
	if code, body := post(t, sim, "DetachNetworkInterface AttachmentId=eni-attach-5"); code != 200 {
		t.Errorf("detach: %d %s", code, body)
	}
}

// TestEFAOnly: an instance can start with an EFA-only ENI on each card. Such an ENI takes a slot and has no addresses.
func TestEFAOnly(t *testing.T) {
	sim, _ := start(t, world)
	i := run(t, sim, RunInstance{Type: "c6in.32xlarge", Subnet: "subnet-dual", EFAOnly: 2})
	enis := i.ENIs()
	places := func(e ENI) string { return fmt.Sprint(e.Card, e.Index, e.EFAOnly, len(e.Addrs)) }
	var got []string
	for _, e := range enis {
		got = append(got, places(e))
	}
	if want := []string{"0 0 false 1", "0 1 true 0", "1 0 true 0"}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	answer := must(t, sim, "DescribeNetworkInterfaces NetworkInterfaceId.1="+enis[1].ID+
		" NetworkInterfaceId.2="+enis[2].ID)
	if ids := answer.all("networkInterfaceId"); len(ids) != 2 || len(answer.all("privateIpAddress")) != 0 {
		t.Errorf("described: %v", answer)
	}
	if code, _ := get(t, i, "/latest/meta-data/network/interfaces/macs/"+enis[1].MAC+"/local-ipv4s"); code != 404 {
		t.Errorf("local-ipv4s of an ENI for EFA: %d", code)
	}
	for _, call := range []string{
		"AssignPrivateIpAddresses NetworkInterfaceId=eni-3 SecondaryPrivateIpAddressCount=1",
		"AssignIpv6Addresses NetworkInterfaceId=eni-3 Ipv6PrefixCount=1",
	} {
		if got, _ := refused(t, sim, call); got != "400 UnsupportedOperation" {
			t.Errorf("%s: %s", call, got)
		}
	}
	for _, r := range []RunInstance{
		{Type: "c6in.32xlarge", Subnet: "subnet-b", EFAOnly: 3},
		{Type: "c6in.32xlarge", Subnet: "subnet-b", EFAOnly: -1},
	} {
		if _, err := sim.RunInstance(r); err == nil {
			t.Errorf("launched with %d ENIs for EFA", r.EFAOnly)
		}
	}
}

// TestFailAs chooses the message of an error, because some errors of EC2 differ only in the message.
func TestFailAs(t *testing.T) {
	sim, _ := start(t, world)
	sim.FailAs("CreateNetworkInterface", "InvalidParameterValue",
		"There aren't sufficient free Ipv4 addresses or prefixes", 1)
	got, message := refused(t, sim, create)
	if got != "400 InvalidParameterValue" || message != "There aren't sufficient free Ipv4 addresses or prefixes" {
		t.Errorf("%s: %s", got, message)
	}
	must(t, sim, create)
}

// TestBootElsewhere: the boot ENI is not in slot 0 of card 0. The boot ENI is still the first of the instance's ENIs,
// metadata's "mac" is its MAC, and EC2 does not detach it.
func TestBootElsewhere(t *testing.T) {
	sim, _ := start(t, world)
	for _, r := range []RunInstance{{BootIndex: 1}, {BootCard: 1}, {BootCard: 1, BootIndex: 1}} {
		r.Type, r.Subnet = "p5.48xlarge", "subnet-b"
		i := run(t, sim, r)
		e := i.ENIs()[0]
		if e.Card != r.BootCard || e.Index != r.BootIndex || !e.Boot {
			t.Errorf("%+v: %+v", r, e)
		}
		if code, mac := get(t, i, "/latest/meta-data/mac"); code != 200 || mac != e.MAC {
			t.Errorf("mac: %d %s, want %s", code, mac, e.MAC)
		}
		if got, _ := refused(t, sim, "DetachNetworkInterface AttachmentId="+
			e.Attachment); got != "400 OperationNotPermitted" {
			t.Errorf("detach: %s", got)
		}
		other := must(t, sim, create).all("networkInterfaceId")[0]
		must(t, sim, "AttachNetworkInterface InstanceId="+i.ID+" NetworkInterfaceId="+other+" DeviceIndex=0")
		if enis := i.ENIs(); len(enis) != 2 || enis[0].ID != e.ID || enis[1].Boot {
			t.Errorf("with another ENI: %+v", enis)
		}
	}
}
