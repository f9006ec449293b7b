// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// A shipped is a node for the tests of one conflist in conflist-examples.
type shipped struct {
	*world
	config     lease.Config
	namespaces []string // of Kubernetes: one for each pool
}

// newShipped makes a VPC that has the subnets for each shipped conflist, and a node. If provision is "none" in this
// conflist, the node already has an ENI for pods.
func newShipped(t *testing.T, text []byte) *shipped {
	t.Helper()
	w := buildWorld(t, "m5.4xlarge", ec2sim.World(`
		vpc-1           10.177.0.0/16 2001:db8:77::/56
		subnet-node     10.177.0.0/24
		subnet-pods     10.177.16.0/20 2001:db8:77:1::/64 kubernetes_kubelet=true
		subnet-payments 10.177.32.0/20 pool=payments
		vpc-2           10.178.0.0/16
		pcx-1           vpc-1 vpc-2`))
	n := &shipped{world: w, namespaces: []string{"default"}}
	must(t, json.Unmarshal(text, &n.config))
	must(t, n.config.Validate())
	if len(n.config.Pools) > 0 {
		n.namespaces = append(n.namespaces, "payments", "ingress")
	}
	if n.config.Provision == string(lease.ProvisionNone) {
		n.attachOther(aws.ENISpec{Subnet: "subnet-pods"})
	}
	t.Setenv("CNI_IPVLAN_VPC_STATE_DIR", n.Dir)
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_ENDPOINT_URL_EC2", n.cloud.EC2URL)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", n.cloud.MetadataURL)
	return n
}

// An addition is a function that runs the ADD of one pod.
type addition func(context.Context, *plugin.Request[lease.Config]) (*types100.Result, error)

func (n *shipped) add(name string, add addition) (results []*types100.Result) {
	n.Helper()
	for _, namespace := range n.namespaces {
		r := &plugin.Request[lease.Config]{Network: "net", Attachment: plugin.Attachment{ContainerID: name + "-" +
			namespace, IfName: "eth0"},
			NetNS: "/run/netns/no-such-" + name, Pod: plugin.Pod{Namespace: namespace, Name: name}, Config: n.config}
		must(n, n.Host.Do(func() error {
			result, err := add(n.Context(), r)
			results = append(results, result)
			return err
		}))
	}
	return results
}

// TestWarmConflists: with each shipped conflist, an ADD that finds a free address asks neither EC2 nor metadata, and
// executes no program. This does not depend on the ages of the entries in the registry, or on steps of the clock. The
// pod has the same routes as the first pod.
func TestWarmConflists(t *testing.T) {
	files, err := filepath.Glob("../conflist-examples/*.conflist")
	if must(t, err); len(files) < 9 {
		t.Fatalf("there are only %v", files)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { newShipped(t, addressing(t, file)).stayWarm() })
	}
}

// addressing returns the first plugin of a conflist, which says which addresses pods get.
func addressing(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	var list struct {
		Plugins []json.RawMessage `json:"plugins"`
	}
	must(t, json.Unmarshal(text, &list))
	return list.Plugins[0]
}

func (n *shipped) stayWarm() {
	batch := n.config
	n.config.IPBatchSize = new(6)
	must(n, n.config.Validate())
	first := n.add("first", Commands().Add)
	n.config = batch
	file := filepath.Join(n.Dir, "registry.json")
	snapshot, err := os.ReadFile(file)
	must(n, err)
	exec := func(context.Context, *lease.Pool, lease.Owner, error) (lease.Allocation, error) {
		return lease.Allocation{}, errors.New("the program that asks EC2 would be executed")
	}
	const day = 24 * time.Hour
	for _, age := range []time.Duration{0, 2 * time.Hour, day, 10 * day, 70 * day, -day} {
		for _, keep := range []string{"booted", ""} {
			must(n, os.WriteFile(file, moved(n, snapshot, -age, keep), 0o600))
			n.EC2.ResetCalls()
			when := fmt.Sprintf("%v later, keep %q", age, keep)
			n.sameRoutes(when, first, n.add("second", Commands().Add))
			n.sameRoutes(when, first,
				n.add("third", func(ctx context.Context, r *plugin.Request[lease.Config]) (*types100.Result, error) {
					result, _, err := lease.Add(ctx, r, lease.Source{Turn: "queue", Ask: exec})
					return result, err
				}))
			if ec2, metadata := n.EC2.Calls(), n.Instance.MetadataCalls(); len(ec2)+len(metadata) > 0 {
				n.Errorf("%s: EC2 was asked %v, metadata %v", when, ec2, metadata)
			}
		}
	}
}

// sameRoutes checks that the results in got have the same routes as those in want. There must be a route to the peered
// VPC exactly if routeToVpcPeers is set.
func (n *shipped) sameRoutes(when string, want, got []*types100.Result) {
	n.Helper()
	for i := range want {
		if fmt.Sprint(want[i].Routes) != fmt.Sprint(got[i].Routes) {
			n.Errorf("%s: routes %v, want %v", when, got[i].Routes, want[i].Routes)
		}
	}
	peer := strings.Contains(fmt.Sprint(got[0].Routes), "10.178.0.0")
	if peer != n.config.RouteToVPCPeers {
		n.Errorf("%s: a route to the peer: %v, want %v", when, peer, n.config.RouteToVPCPeers)
	}
}
