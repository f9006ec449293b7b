// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestClientToken: repeated calls with the same token create one ENI, and always get the first answer.
func TestClientToken(t *testing.T) {
	sim, _ := start(t, world)
	const call = create + " ClientToken=t1 SecondaryPrivateIpAddressCount=1"
	_, first := post(t, sim, call)
	must(t, sim, "AssignPrivateIpAddresses NetworkInterfaceId=eni-2 SecondaryPrivateIpAddressCount=1")
	_, again := post(t, sim, call)
	if diff := cmp.Diff(withoutRequestID(first), withoutRequestID(again)); diff != "" {
		t.Errorf("(-first +again):\n%s", diff)
	}
	if other := must(t, sim, create+" ClientToken=t2 SecondaryPrivateIpAddressCount=1").one(t,
		"networkInterfaceId"); other != long("eni-3") {
		t.Errorf("another token: %s", other)
	}
	must(t, sim, create)
	if enis := sim.ENIs(); len(enis) != 4 {
		t.Errorf("%d ENIs", len(enis))
	}
	if got := parse(t, first).one(t, "clientToken"); got != "t1" {
		t.Errorf("client token %q", got)
	}
}

// TestTokenLife: EC2 remembers a client token while the token's ENI exists, and for the time TokenLife after the ENI's
// deletion. If TokenLife is 0, EC2 remembers the token for ever.
func TestTokenLife(t *testing.T) {
	for life, want := range map[time.Duration]string{0: "eni-2 eni-2 eni-2 eni-2",
		24 * time.Hour: "eni-2 eni-2 eni-2 eni-3"} {
		synctest.Test(t, func(t *testing.T) {
			c := world
			c.TokenLife = life
			sim, _ := start(t, c)
			var got []string
			again := func() { got = append(got, must(t, sim, create+" ClientToken=t1").one(t, "networkInterfaceId")) }
			again()
			time.Sleep(48 * time.Hour)
			again()
			must(t, sim, "DeleteNetworkInterface NetworkInterfaceId=eni-2")
			time.Sleep(24*time.Hour - 1)
			again()
			time.Sleep(time.Nanosecond)
			again()
			if strings.Join(got, " ") != long(want) {
				t.Errorf("life %v: %v, want %s", life, got, want)
			}
		})
	}
}

func withoutRequestID(body string) string {
	_, rest, _ := strings.Cut(body, "</requestId>")
	return rest
}

// TestConcurrentTokens: 50 callers with one token get one ENI.
func TestConcurrentTokens(t *testing.T) {
	sim, _ := start(t, world)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { post(t, sim, create+" ClientToken=t1") })
	}
	wg.Wait()
	if enis := sim.ENIs(); len(enis) != 2 {
		t.Errorf("%d ENIs", len(enis))
	}
}

// TestDeleteFreesAddresses: a deleted ENI does not exist any more, and its addresses are free.
func TestDeleteFreesAddresses(t *testing.T) {
	sim, _ := start(t, world)
	before := free(sim)
	must(t, sim, create+" SecondaryPrivateIpAddressCount=3")
	must(t, sim, "AssignPrivateIpAddresses NetworkInterfaceId=eni-2 Ipv4PrefixCount=1")
	must(t, sim, "DeleteNetworkInterface NetworkInterfaceId=eni-2")
	if diff := cmp.Diff(before, free(sim)); diff != "" {
		t.Errorf("free addresses (-before +after):\n%s", diff)
	}
	if got, _ := refused(t, sim,
		"DeleteNetworkInterface NetworkInterfaceId=eni-2"); got != "400 InvalidNetworkInterfaceID.NotFound" {
		t.Error(got)
	}
}

// record collects all later changes, each as a text.
func record(sim *Sim) *[]string {
	var lines []string
	sim.OnChange(func(c Change) {
		lines = append(lines, fmt.Sprintf("%s %s %s at %d/%d: %v %v", c.Instance[len(c.Instance)-1:],
			c.ENI.ID[len(c.ENI.ID)-1:], c.Kind,
			c.ENI.Card, c.ENI.Index, c.ENI.Addrs, c.ENI.Prefixes))
	})
	return &lines
}

// TestChanges: listeners get exactly the changes of attached ENIs, in order.
func TestChanges(t *testing.T) {
	sim, err := New(world)
	if err != nil {
		t.Fatal(err)
	}
	got := record(sim)
	i := run(t, sim, RunInstance{Type: "m5.large", Subnet: "subnet-a", Secondary: 1})
	for _, call := range []string{
		"CreateNetworkInterface SubnetId=subnet-b",
		"AssignPrivateIpAddresses NetworkInterfaceId=eni-2 SecondaryPrivateIpAddressCount=1",
		"AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1",
		"AssignPrivateIpAddresses NetworkInterfaceId=eni-2 SecondaryPrivateIpAddressCount=1",
		"AssignPrivateIpAddresses NetworkInterfaceId=eni-2 Ipv4PrefixCount=1",
		"UnassignPrivateIpAddresses NetworkInterfaceId=eni-2 PrivateIpAddress.1=10.0.1.5",
		"ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-2 Description.Value=x",
		"ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-2 SourceDestCheck.Value=false",
		"CreateNetworkInterface SubnetId=subnet-a",
		"AssignPrivateIpAddresses NetworkInterfaceId=eni-3 PrivateIpAddress.1=10.0.0.5 AllowReassignment=true",
		"DetachNetworkInterface AttachmentId=eni-attach-2",
		"UnassignPrivateIpAddresses NetworkInterfaceId=eni-2 PrivateIpAddress.1=10.0.1.6",
		"DeleteNetworkInterface NetworkInterfaceId=eni-2",
	} {
		must(t, sim, call)
	}
	if err := sim.TerminateInstance(i.ID); err != nil {
		t.Error(err)
	}
	want := []string{
		"1 1 attached at 0/0: [10.0.0.4 10.0.0.5] []",
		"1 2 attached at 0/1: [10.0.1.4 10.0.1.5] []",
		"1 2 addressed at 0/1: [10.0.1.4 10.0.1.5 10.0.1.6] []",
		"1 2 addressed at 0/1: [10.0.1.4 10.0.1.5 10.0.1.6] [10.0.1.16/28]",
		"1 2 addressed at 0/1: [10.0.1.4 10.0.1.6] [10.0.1.16/28]",
		"1 2 addressed at 0/1: [10.0.1.4 10.0.1.6] [10.0.1.16/28]",
		"1 1 addressed at 0/0: [10.0.0.4] []",
		"1 2 detached at 0/1: [10.0.1.4 10.0.1.6] [10.0.1.16/28]",
		"1 1 detached at 0/0: [10.0.0.4] []",
	}
	if diff := cmp.Diff(want, *got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestListenerMayAsk: a listener may read the state of EC2, and sees the state after the change.
func TestListenerMayAsk(t *testing.T) {
	sim, _ := start(t, world)
	var status string
	sim.OnChange(func(c Change) {
		must(t, sim, "DescribeSubnets")
		for _, e := range sim.ENIs() {
			if e.ID == c.ENI.ID {
				status = e.AttachmentStatus
			}
		}
	})
	must(t, sim, create)
	must(t, sim, "AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1")
	if status != "attached" {
		t.Errorf("status %q", status)
	}
}

// TestSlowAttachments attaches and detaches an ENI, and checks what EC2 and the metadata show at each time, and when
// listeners get the changes.
func TestSlowAttachments(t *testing.T) {
	c := world
	c.AttachDelay, c.DetachDelay = 3*time.Second, 2*time.Second
	synctest.Test(t, func(t *testing.T) {
		sim, i := start(t, c)
		var mu sync.Mutex
		var got []string
		begin := time.Now()
		note := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, time.Since(begin).String()+" "+fmt.Sprintf(format, args...))
		}
		sim.OnChange(func(c Change) { note("%s", c.Kind) })
		see := func(after time.Duration) {
			time.Sleep(after)
			synctest.Wait()
			answer := must(t, sim, "DescribeNetworkInterfaces NetworkInterfaceId.1=eni-2")
			code, _ := get(t, i, "/latest/meta-data/network/interfaces/macs/06:00:00:00:00:02/")
			note("%s, metadata %d", strings.Join(answer.all("status"), " "), code)
		}
		for line := range strings.Lines(attached) {
			must(t, sim, line)
		}
		see(0)
		must(t, sim, "AssignPrivateIpAddresses NetworkInterfaceId=eni-2 SecondaryPrivateIpAddressCount=1")
		see(2 * time.Second)
		see(time.Second)
		must(t, sim, "DetachNetworkInterface AttachmentId=eni-attach-2")
		see(time.Second)
		if code, _ := refused(t, sim,
			"DetachNetworkInterface AttachmentId=eni-attach-2"); code != "400 IncorrectState" {
			t.Error(code)
		}
		see(time.Second)
		want := []string{
			"0s in-use attaching, metadata 404",
			"2s in-use attaching, metadata 404",
			"3s attached",
			"3s in-use attached, metadata 200",
			"4s in-use detaching, metadata 200",
			"5s detached",
			"5s available, metadata 404",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestForcedDetach: a forced detachment takes no time. If the ENI has never reached the state "attached", listeners get
// no change.
func TestForcedDetach(t *testing.T) {
	c := world
	c.AttachDelay, c.DetachDelay = time.Hour, time.Hour
	synctest.Test(t, func(t *testing.T) {
		sim, _ := start(t, c)
		got := record(sim)
		for line := range strings.Lines(attached) {
			must(t, sim, line)
		}
		must(t, sim, "DetachNetworkInterface AttachmentId=eni-attach-2 Force=true")
		must(t, sim, "DeleteNetworkInterface NetworkInterfaceId=eni-2")
		time.Sleep(3 * time.Hour)
		if len(*got) != 0 {
			t.Errorf("changes: %v", *got)
		}
	})
}

// TestTerminate: at the end of an instance, EC2 deletes the boot ENI. It deletes another ENI only if this ENI has
// DeleteOnTermination.
func TestTerminate(t *testing.T) {
	sim, i := start(t, world)
	for n := 1; n <= 2; n++ {
		must(t, sim, create)
		must(t, sim,
			fmt.Sprintf("AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-%d DeviceIndex=%d", n+1, n))
	}
	must(t, sim, "ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-3 Attachment.AttachmentId=eni-attach-3 "+
		"Attachment.DeleteOnTermination=true")
	if err := sim.TerminateInstance(i.ID); err != nil {
		t.Fatal(err)
	}
	enis := sim.ENIs()
	if len(enis) != 1 || enis[0].ID != long("eni-2") || enis[0].Status != "available" || enis[0].Instance != "" {
		t.Errorf("left: %+v", enis)
	}
	if running := sim.Instances(); len(running) != 0 {
		t.Errorf("running: %v", running)
	}
	if got, _ := refused(t, sim,
		"AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 "+
			"DeviceIndex=1"); got != "400 InvalidParameterValue" {
		t.Error(got)
	}
	if err := sim.TerminateInstance(i.ID); err == nil {
		t.Error("terminated twice")
	}
	check(t, sim)
}

// TestRunInstance checks what a launch refuses, and the attributes of the boot ENI.
func TestRunInstance(t *testing.T) {
	sim, _ := start(t, world)
	for _, c := range []struct {
		launch RunInstance
		want   string
	}{
		{RunInstance{Type: "x1.tiny", Subnet: "subnet-a"},
			"InvalidParameterValue: Invalid value 'x1.tiny' for InstanceType."},
		{RunInstance{Type: "m5.large", Subnet: "subnet-x"},
			"InvalidSubnetID.NotFound: The subnet ID 'subnet-x' does not exist"},
		{RunInstance{Type: "m5.large", Subnet: "subnet-a", SecurityGroups: []string{"sg-x"}},
			"InvalidGroup.NotFound: The security group 'sg-x' does not exist"},
		{RunInstance{Type: "m5.large", Subnet: "subnet-a", PrivateIP: cidr("10.0.0.4/32").Addr()},
			"InvalidIPAddress.InUse: Address 10.0.0.4 is in use."},
		{RunInstance{Type: "t3.small", Subnet: "subnet-a", Secondary: 4},
			"InvalidInterface.IpAddressLimitExceeded: Number of private addresses exceeds the limit of t3.small."},
		{RunInstance{Type: "t3.small", Subnet: "subnet-a", BootIndex: 3},
			"InvalidParameterValue: t3.small has no device index 3 on network card 0."},
		{RunInstance{Type: "t3.small", Subnet: "subnet-a", BootCard: 1},
			"InvalidParameterValue: t3.small has no device index 0 on network card 1."},
	} {
		if _, err := sim.RunInstance(c.launch); err == nil || err.Error() != "run instance: "+c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	if _, err := sim.RunInstance(RunInstance{Type: "t3.small", Subnet: "subnet-dual", Secondary: 1,
		Prefixes: 1}); err == nil {
		t.Error("a launch with addresses and prefixes")
	}
	i := run(t, sim, RunInstance{Type: "t3.small", Subnet: "subnet-a", PrivateIP: cidr("10.0.0.77/32").Addr(),
		Secondary: 1, Tags: map[string]string{"Name": "n"}})
	got := i.ENIs()[0]
	want := ENI{
		ID: long("eni-2"), MAC: "06:00:00:00:00:02", Subnet: "subnet-a", CIDR: cidr("10.0.0.0/24"), VPC: "vpc-1",
		Zone:           "us-east-1a",
		SecurityGroups: []string{"sg-default"}, Addrs: addrsOf(cidrs("10.0.0.77/32 10.0.0.5/32")),
		PublicIP:        cidr("198.18.0.2/32").Addr(),
		SourceDestCheck: true, Tags: map[string]string{}, Status: "in-use", Attachment: long("eni-attach-2"),
		AttachmentStatus: "attached",
		Instance:         long("i-2"), Boot: true, DeleteOnTermination: true,
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestModify changes the attributes and the tags of an ENI.
func TestModify(t *testing.T) {
	sim, _ := start(t, world)
	must(t, sim, "ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-1 Description.Value=boot")
	must(t, sim, "ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-1 SourceDestCheck.Value=false")
	must(t, sim, "ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-1 SecurityGroupId.1=sg-1 "+
		"SecurityGroupId.2=sg-2")
	must(t, sim, "ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-1 Attachment.AttachmentId=eni-attach-1 "+
		"Attachment.DeleteOnTermination=false")
	must(t, sim, "CreateTags ResourceId.1=eni-1 ResourceId.2=i-1 ResourceId.3=subnet-a ResourceId.4=vpc-1 "+
		"Tag.1.Key=a Tag.1.Value=b")
	e := sim.ENIs()[0]
	got := fmt.Sprintf("%s %v %v %v %v", e.Description, e.SourceDestCheck, e.SecurityGroups,
		e.DeleteOnTermination, e.Tags)
	if want := "boot false [sg-1 sg-2] false map[a:b]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
