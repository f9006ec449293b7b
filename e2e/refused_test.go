// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// These are the error codes of refusals. never: the pod can never have what it asks for. later: the pod cannot have it
// now.
const never, later = 100, 11

// TestRequestsRefused: a pod asks for something that is forbidden or impossible. The error must name the key, the value
// and what would be right. Nothing may change in EC2, on the node, in this pod, or in the running pod beside.
func TestRequestsRefused(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	text, err := os.ReadFile("conflist-examples/requests.conflist")
	if err != nil {
		t.Fatal(err)
	}
	more := strings.NewReplacer(`"subnets": ["subnet-1"]`, `"subnets": ["subnet-1", "subnet-far", "subnet-else"]`,
		`"securityGroups": ["sg-1"]`, `"securityGroups": ["sg-1", "sg-else"]`)
	list, err := libcni.ConfListFromBytes([]byte(more.Replace(string(text))))
	if err != nil {
		t.Fatal(err)
	}
	w := exampleVPC(t).launch(t, example{kubernetes: "vm-1"})
	w.pod(t, "beside")
	const beside = `[{"subnet": "subnet-1", "ip": "192.168.0.50"}]`
	w.asks(beside)
	besides, _ := w.added(t, list, "beside")

	free, spare, far, elsewhere := w.give(t), w.given(t, "subnet-1", nil), w.given(t, "subnet-far", nil), w.given(t,
		"subnet-else", nil)
	there, blocks, bare := w.given(t, "subnet-1", nil), w.given(t, "subnet-1",
		map[string]string{"Ipv4PrefixCount": "1"}), w.given(t, "subnet-1",
		map[string]string{"TagSpecification.1.Tag.1.Value": "absent"})
	if err := w.fabric.EC2.Operate("AttachNetworkInterface", map[string]string{"NetworkInterfaceId": there.ID,
		"InstanceId": w.host.ID, "DeviceIndex": "1"}); err != nil {
		t.Fatal(err)
	}
	of := func(format string, args ...any) string { return fmt.Sprintf(format, args...) }
	had := fmt.Sprint(w.fabric.EC2.ENIs())
	w.fabric.EC2.ResetCalls()
	for _, tt := range []struct {
		namespace, ask string
		code           uint
		want           string
	}{
		{"vm-1", `{}`, never,
			`pod vm-1/pod: annotation cni-ipvlan-vpc-k8s/nics: the value is not the JSON that is expected: json: ` +
				`cannot unmarshal object into Go value of type []map[string]json.RawMessage: want a list with an ` +
				`object for each interface, for example [{"subnet": "subnet-1"}]`},
		{"vm-1", `[{"subnet": `, never,
			`the value is not the JSON that is expected: unexpected end of JSON input: want a list`},
		{"vm-1", `[{}] {}`, never,
			`the value is not the JSON that is expected: invalid character '{' after top-level value`},
		{"vm-1", `[{"vpc": "vpc-1"}]`, never,
			`interface 1: "vpc": there is no such key: the keys are name, subnet, ip, securityGroups, eni and ` +
				`exclusive`},
		{"vm-1", `[{"ip": "192.168.0"}]`, never, `interface 1: ip: "192.168.0": want an address, for example 10.0.1.7`},
		{"vm-1", `[{"ip": "2001:db8:0:101::7"}]`, never,
			"ip: 2001:db8:0:101::7: pods of this network have no IPv6 addresses (ipFamilies)"},
		// the key ip
		{"vm-1", `[{"subnet": "subnet-1", "ip": "10.0.0.9"}]`, never,
			"the pod asks for the address 10.0.0.9, which is in none of the subnets that the pod can use: " +
				"subnet-1 192.168.0.0/24"},
		{"vm-1", `[{}, {"subnet": "subnet-1", "ip": "192.168.0.1"}]`, never,
			"interface 2: acquire an address: no address is free: the pod asks for the address 192.168.0.1, which " +
				"AWS reserves in subnet-1 (192.168.0.0/24)"},
		{"vm-1", `[{"subnet": "subnet-1", "ip": "192.168.0.255"}]`, never,
			"the pod asks for the address 192.168.0.255, which AWS reserves in subnet-1"},
		{"vm-1", of(`[{"subnet": "subnet-1", "ip": %q}]`, spare.Addrs[0]), never,
			of("the pod asks for the address %s, which %s has as its primary address. This ENI is attached to nothing",
				spare.Addrs[0], spare.ID)},
		{"vm-1", of(`[{"subnet": "subnet-1", "ip": %q}]`, there.Addrs[0]), never,
			of("the address %s, which %s has as its primary address. This ENI is attached to %s",
				there.Addrs[0], there.ID, w.host.ID)},
		{"vm-1", of(`[{"subnet": "subnet-1", "ip": %q}]`, blocks.Prefixes[0].Addr().Next()), never,
			of("which %s has in a prefix. This ENI is attached to nothing", blocks.ID)},
		{"vm-1", `[{"subnet": "subnet-1", "ip": "192.168.0.50"}]`, later,
			"pod vm-1/pod asks for the address 192.168.0.50, which vm-1/beside has"},
		{"vm-1", `[{}, {"subnet": "subnet-1", "ip": "192.168.0.50"}]`, later,
			"interface 2: pod vm-1/pod asks for the address 192.168.0.50, which vm-1/beside has"},
		// the key eni
		{"vm-1", of(`[{"eni": %q}]`, far.ID), never,
			of("the pod asks for %s, but the subnet of this ENI, subnet-far, is not in us-east-1a, the zone of this "+
				"node", far.ID)},
		{"vm-1", of(`[{"eni": %q}]`, elsewhere.ID), never,
			of("the pod asks for %s, but this ENI is in vpc-2, and this node is in vpc-1", elsewhere.ID)},
		{"vm-1", of(`[{"eni": %q}]`, there.ID), later,
			of("the pod asks for %s, but this ENI is attached to %s, and this node is %s", there.ID, w.host.ID,
				w.node.ID)},
		{"vm-1", of(`[{"eni": %q}]`, bare.ID), never,
			of("the pod asks for %s, but the key \"requests\" allows only ENIs with the tag for=pods", bare.ID)},
		{"vm-1", `[{"eni": "eni-1"}]`, never, "the pod asks for eni-1, but EC2 knows no such ENI"},
		{"vm-1", of(`[{"eni": %q, "ip": "192.168.0.60"}]`, free), never,
			of("the pod asks for %s, but this ENI does not have the address 192.168.0.60", free)},
		// the keys subnet and securityGroups
		{"vm-1", `[{"subnet": "subnet-2"}]`, never,
			"interface 1: subnet: subnet-2: allowed are subnet-1, subnet-far, subnet-else"},
		{"vm-1", `[{"subnet": "subnet-far"}]`, never,
			"the pod asks for the subnet subnet-far, which is not in the VPC and zone of this node (vpc-1 in " +
				"us-east-1a)"},
		{"vm-1", `[{}, {"securityGroups": ["sg-2"]}]`, never,
			"interface 2: securityGroups: sg-2: allowed are sg-1, sg-else"},
		{"vm-1", `[{"securityGroups": ["sg-else"]}]`, never,
			"the pod asks for the security groups sg-else, and this node is in vpc-1: "},
		// several interfaces
		{"vm-1", `[{}, {"name": "data"}, {"name": "data"}]`, never,
			`interface 3: name: "data": another interface of the pod has this name`},
		{"vm-1", `[{}, {}, {}, {}]`, never, `4 interfaces: "max" in "requests" is 3`},
		{"vm-1", `[{"exclusive": true}, {"exclusive": true}]`, later,
			"pod vm-1/pod asks for 2 interfaces, which need 2 more ENIs: m5.large can have 3 ENIs, and this " +
				"node has 2"},
		// the pod's Kubernetes namespace
		{"shop", of(`[{"eni": %q}]`, free), never, `"requests" does not allow the namespace "shop" to ask`},
	} {
		w.kubernetes = tt.namespace
		w.asks(tt.ask)
		_, err := w.call(list, "ADD", "pod")
		cniError, ok := errors.AsType[*types.Error](err)
		if !ok || cniError.Code != tt.code || !strings.Contains(cniError.Msg, tt.want) || cniError.Details == "" {
			t.Errorf("%s: got %+v\nwant code %d, a hint, and %s", tt.ask, err, tt.code, tt.want)
		}
		if now := fmt.Sprint(w.fabric.EC2.ENIs()); now != had {
			t.Errorf("%s: ENIs were %s\nand are %s", tt.ask, had, now)
			had = now
		}
		w.bare(t, "pod")
		w.called(t, besides[0], true)
		if _, err := w.call(list, "DEL", "pod"); err != nil {
			t.Error(err)
		}
	}
	if changed := w.fabric.EC2.Changed(); len(changed) > 0 {
		t.Errorf("EC2 has changed something: %v", changed)
	}
	w.kubernetes = "vm-1"
	w.asks(beside)
	w.verb(t, list, "CHECK", "beside")
}

// given creates an ENI for which pods may ask. The argument params has further parameters of the EC2 call.
func (w *world) given(t *testing.T, subnet string, params map[string]string) ec2sim.ENI {
	t.Helper()
	call := map[string]string{"SubnetId": subnet, "TagSpecification.1.ResourceType": "network-interface",
		"TagSpecification.1.Tag.1.Key": "for", "TagSpecification.1.Tag.1.Value": "pods"}
	maps.Copy(call, params)
	if err := w.fabric.EC2.Operate("CreateNetworkInterface", call); err != nil {
		t.Fatal(err)
	}
	all := w.fabric.EC2.ENIs()
	return all[len(all)-1]
}

// bare checks that the pod has no link except lo.
func (w *world) bare(t *testing.T, pod string) {
	t.Helper()
	links, err := w.pods[pod].Links()
	if err != nil || len(links) != 1 {
		t.Errorf("%s has the links %+v, %v: want lo alone", pod, links, err)
	}
	rules, err := w.pods[pod].Rules()
	for _, r := range rules {
		if r.From != (netip.Prefix{}) {
			t.Errorf("%s has the rule %v, %v", pod, r, err)
		}
	}
}

// TestGivenUntouched: an operator has created an ENI for pods. No collection, no eni-gc and no remove-interface may
// delete or change this ENI, even with a new registry. The node only attaches and detaches the ENI. If an operator has
// moved the ENI to another instance, the ENI must stay there.
func TestGivenUntouched(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	list, err := libcni.ConfListFromFile("conflist-examples/requests.conflist")
	if err != nil {
		t.Fatal(err)
	}
	w := exampleVPC(t).launch(t, example{kubernetes: "vm-1"})
	was := w.given(t, "subnet-1", map[string]string{"SecurityGroupId.1": "sg-9"})
	untouched := func(what, instance string) {
		t.Helper()
		all := w.fabric.EC2.ENIs()
		i := slices.IndexFunc(all, func(e ec2sim.ENI) bool { return e.ID == was.ID })
		if i < 0 {
			t.Fatalf("%s: the ENI is deleted", what)
		}
		if e := all[i]; e.Instance != instance || e.DeleteOnTermination || !maps.Equal(e.Tags, was.Tags) ||
			!slices.Equal(e.Addrs, was.Addrs) ||
			!slices.Equal(e.SecurityGroups, was.SecurityGroups) || e.Description != was.Description {
			t.Errorf("%s: the ENI was %+v\nand is %+v: want it on %q", what, was, e, instance)
		}
	}
	w.asks(fmt.Sprintf(`[{"eni": %q}]`, was.ID))
	config := "--config=conflist-examples/requests.conflist"
	remove := func(why string) {
		t.Helper()
		if out, err := w.tries("remove-interface", config, was.ID); err == nil ||
			!strings.Contains(out, "remove "+was.ID+": "+why) {
			t.Errorf("remove-interface: %v\n%s", err, out)
		}
	}
	strays := func() { // eni-gc deletes an ENI only after it has seen the ENI unattached in two runs
		t.Helper()
		if out := w.tool(t, "eni-gc", "--grace=20m", "--output=json"); strings.Contains(out, was.ID) {
			t.Errorf("eni-gc:\n%s", out)
		}
	}
	addrs, _ := w.added(t, list, "pod")
	w.called(t, addrs[0], true)
	for range 2 {
		w.tool(t, "registry-gc", "--free-after=1ns", config)
		strays()
		untouched("while a pod uses it", w.node.ID)
		remove("it serves pods")
		if err := os.RemoveAll(w.node.StateDir); err != nil {
			t.Fatal(err)
		}
	}
	w.called(t, addrs[0], true)
	w.verb(t, list, "DEL", "pod")
	remove("this node may not delete it: an operator has created it")
	untouched("after DEL", w.node.ID)
	w.tool(t, "registry-gc", "--free-after=1ns", config)
	untouched("after a collection", "")
	remove("this node may not delete it: an operator has created it")
	strays()
	untouched("after eni-gc", "")

	w.added(t, list, "pod")
	untouched("with another pod", w.node.ID)
	w.verb(t, list, "DEL", "pod")
	all := w.fabric.EC2.ENIs()
	at := all[slices.IndexFunc(all, func(e ec2sim.ENI) bool { return e.ID == was.ID })].Attachment
	err = errors.Join(w.fabric.EC2.Operate("DetachNetworkInterface", map[string]string{"AttachmentId": at}),
		w.fabric.EC2.Operate("AttachNetworkInterface", map[string]string{"NetworkInterfaceId": was.ID,
			"InstanceId": w.host.ID, "DeviceIndex": "1"}))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.tool(t, "registry-gc", "--free-after=1ns", config)
		w.tool(t, "warm", config)
	}
	untouched("moved by an operator", w.host.ID)
	if out := w.tool(t, "status", "--output=json"); strings.Contains(out, was.ID) {
		t.Errorf("the node still knows the ENI:\n%s", out)
	}
}
