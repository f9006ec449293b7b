// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

// noRequests is the configuration of another network of the node. No pod of this network may ask for an interface, and
// an ENI with these groups serves all pods of the network.
const noRequests = `{"interfaceIndex": 1, "secGroupIds": ["sg-1"]}`

// other is the ADD of a pod of another network. This pod asks for nothing.
func (w *world) other(n int) lease.Allocation {
	w.Helper()
	policies, err := w.policies(n, noRequests, "")
	must(w, err)
	p, o := w.pool(), pod(n)
	p.Policy, o.Network = policies[0], "other"
	ctx, cancel := context.WithTimeout(w.Context(), p.Policy.Timeout)
	defer cancel()
	a, err := p.Acquire(ctx, o)
	must(w, err)
	return a
}

// TestRequestOtherNetwork: pods of one network may ask for an ENI. This ENI serves no pod of another network, also if
// an operator has attached the ENI. When the first network is in no conflist and has no pods, the ENI may serve the
// others.
func TestRequestOtherNetwork(t *testing.T) {
	spec := aws.ENISpec{Subnet: "subnet-pods", SecurityGroups: []string{"sg-1"}, Secondary: 3}
	conflists := func(w *world, texts ...string) (all []lease.Policy) {
		for _, text := range texts {
			policies, err := w.policies(0, text, "")
			must(w, err)
			all = append(all, policies...)
		}
		return all
	}
	attached := func(w *world) string {
		e := w.given(spec)
		_, err := aws.New(w.cloud).AttachENI(w.Context(), e.ID, w.ID, 0, 1)
		must(w, err)
		return e.ID
	}
	for name, tt := range map[string]struct {
		eni  func(w *world) string
		uses bool
	}{
		"a pod has asked": {func(w *world) string {
			e := w.given(spec)
			w.mustAsk(1, fmt.Sprintf(`[{"eni": %q}]`, e.ID))
			return e.ID
		}, false},
		"attached by hand, and a pod that may ask has asked for nothing": {func(w *world) string {
			id := attached(w)
			w.mustAsk(1, "")
			return id
		}, false},
		"the registry is lost, and a collection has read the conflists": {func(w *world) string {
			id := attached(w)
			w.mustAsk(1, "")
			w.Lose()
			w.collect(conflists(w, noRequests, allowAll)...)
			return id
		}, false},
		"no conflist has that network any more, and a pod still runs": {func(w *world) string {
			id := attached(w)
			w.mustAsk(1, "")
			w.collect(conflists(w, noRequests)...)
			return id
		}, false},
		"no conflist has that network any more, and no pod runs": {func(w *world) string {
			id := attached(w)
			w.mustAsk(1, "")
			w.end(1)
			w.collect(conflists(w, noRequests)...)
			return id
		}, true},
		"no network has requests": {attached, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCity(t, "m5.large")
			id, uses := tt.eni(w), false
			for n := range 5 {
				uses = w.other(10+n).ID == id || uses
			}
			if uses != tt.uses {
				t.Errorf("pods of the other network have addresses of the ENI: %v, want %v", uses, tt.uses)
			}
			if why := lease.Together(conflists(w, noRequests, allowAll))[0].Misfit(w.State().ENIs[id]); why == "" {
				t.Error("status says that the ENI serves pods of the other network")
			}
		})
	}
}

// TestChosenOtherNetwork: an address that a pod has chosen cools for a day. After ADDs of another network, which has a
// shorter reuseIPWait, the pod still gets the address again.
func TestChosenOtherNetwork(t *testing.T) {
	const config = `{"interfaceIndex": 1, "secGroupIds": ["sg-1"], "subnetTags": {"kubernetes_kubelet": "true"},
		"skipDeallocation": true, "reuseIPWait": 86400, "requests": [{"namespaces": ["default"], "ips": true, "max": 3}]}`
	const wish = `[{"ip": "10.177.1.77"}]`
	w := newCity(t, "m5.4xlarge")
	must1(w.ask(1, config, wish))(w)
	w.end(1)
	w.Age(11 * time.Minute)
	w.other(9)
	must1(w.ask(1, config, wish))(w)
}
