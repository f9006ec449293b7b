// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// A permitted configuration comes with the actions of the IAM policy that the tool prints for this configuration. A
// test of the tool checks that the printed policy has these actions.
type permitted struct {
	Name    string
	Actions string
	Config  lease.Config
}

// TestPermissions plays random histories in which the role may call only what the printed policy allows. No process
// calls anything else, whatever fails, is lost, or is killed.
func TestPermissions(t *testing.T) {
	b, err := os.ReadFile("testdata/permissions.json")
	must(t, err)
	var all []permitted
	must(t, json.Unmarshal(b, &all))
	n := 20
	if testing.Short() {
		n = 5
	}
	simtest.Credentials(t)
	k := newKernel(t, 9)
	for _, c := range all {
		must(t, c.Config.Validate())
		for seed := range n {
			t.Run(fmt.Sprintf("%s/seed=%d", c.Name, seed), func(t *testing.T) {
				dir := filepath.Join(simtest.Memory(t), "state")
				synctest.Test(t, func(t *testing.T) {
					defer k.end(t)
					m := newModel(t, k, dir, uint64(seed), false)
					m.confine(c)
					m.play()
				})
			})
		}
	}
}

// confine gives the node the configuration, and makes EC2 refuse what its role may not call. If the node must not
// create ENIs, confine attaches an ENI for each pool.
func (m *model) confine(c permitted) {
	m.policies, m.provision = c.Config.Policies(), c.Config.Policies()[0].Provision
	// the role's policy is for this configuration
	m.nets, m.changes = slices.Repeat([]network{{name: "net"}}, len(m.policies)), false
	m.mixed, m.noBoot = false, false
	for _, p := range m.policies {
		if card, index, free := m.freeSlot(m.Instance); free && m.provision != lease.ProvisionFull {
			m.launched(p, card, index)
		}
	}
	m.EC2.ResetCalls()
	m.denied = slices.DeleteFunc(append([]string{"DescribeVpcPeeringConnections", "UnassignIpv6Addresses",
		"DescribeVpcs"}, actions...), func(action string) bool {
		// With "provision": "none", the node still asks for the tags of ENIs.
		asked := m.provision == lease.ProvisionNone && action == "DescribeNetworkInterfaces"
		return asked || slices.Contains(strings.Fields(c.Actions), action)
	})
	m.deny()
}

// launched gives the node an ENI like one of a launch template. Metadata may not show this ENI at once.
func (m *model) launched(p lease.Policy, card, index int) {
	m.Operate(book.CreateAction, "SubnetId", "subnet-pod0",
		"Description", pick(m.rng, "", book.Description(m.ID)),
		"SecondaryPrivateIpAddressCount", fmt.Sprint(min(1, m.limits.IPv4PerENI-1)),
		"TagSpecification.1.ResourceType", "network-interface",
		"TagSpecification.1.Tag.1.Key", book.TagPool,
		"TagSpecification.1.Tag.1.Value", cmp.Or(p.Pool, lease.DefaultPool))
	all := m.EC2.ENIs()
	time.Sleep(time.Minute)
	m.attach(all[len(all)-1].ID, m.ID, card, index)
}

// deny makes EC2 refuse what the role may not call. With "provision": "none", EC2 also refuses to describe ENIs,
// although a process may make this call.
func (m *model) deny() {
	if m.denied == nil {
		return
	}
	for _, action := range m.denied {
		m.EC2.Fail(action, "UnauthorizedOperation", -1)
	}
	if m.provision == lease.ProvisionNone && !m.policies[0].Pools {
		m.EC2.Fail("DescribeNetworkInterfaces", "UnauthorizedOperation", -1)
	}
}
