// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A vpcCNI models a node with amazon-vpc-cni-k8s. The configuration is the default (WARM_ENI_TARGET=1), or has
// ENABLE_PREFIX_DELEGATION and WARM_PREFIX_TARGET=1. These files of the plugin's source are the base of the model:
//
//   - pkg/ipamd/ipamd.go: nodeInit describes the ENIs, tags them, and increases the pool once. StartNodeIPPoolManager
//     checks the pool every five seconds. If an ENI has room, increaseDatastorePool asks EC2 for addresses on this ENI.
//     If EC2 refuses, increaseDatastorePool asks for one address. If no ENI has room, it asks for an ENI.
//   - pkg/ipamd/datastore/data_store.go: after the end of a pod, its address cools for 30 s. The pool counts cooling
//     addresses as available.
//   - pkg/ipamd/rpc_handler.go: an ADD that finds no address fails, and the kubelet repeats it.
//   - pkg/awsutils/awsutils.go: AllocENI describes the subnets, creates an ENI, describes the instance, and attaches
//     and modifies the ENI. If AllocENI cannot attach the ENI, it deletes the ENI.
//   - pkg/awsutils/awssession/session.go: the SDK makes up to ten attempts, with its standard back-off and its budget.
type vpcCNI struct {
	*account
	*place
	per int // number of addresses in each slot of an ENI: 1, or 16 with prefixes

	mu     sync.Mutex
	slots  []int // number of used slots of each ENI, the boot ENI first
	leased int
	cools  []time.Time // for each cooling address: the time when a pod may use it again
	budget int
}

const (
	vpcCNIENIs  = 4
	vpcCNISlots = 14 // slots of an ENI, without the slot of the primary address
	cooldown    = 30 * time.Second
	poolLoop    = 5 * time.Second
)

func newVPCCNI(per int) func(*account, *place) node {
	return func(a *account, at *place) node {
		return &vpcCNI{account: a, place: at, per: per, slots: []int{0}, budget: 500}
	}
}

func (v *vpcCNI) launch() error { return nil }

// boot simulates nodeInit, and starts the loop of StartNodeIPPoolManager. After nodeInit, the node is ready.
func (v *vpcCNI) boot(ctx context.Context) error {
	for _, action := range []string{"DescribeNetworkInterfaces", "CreateTags"} {
		for !v.try(action) {
			time.Sleep(againAgent + v.jitter(time.Second)) // the agent exits, and the kubelet starts it again
		}
	}
	v.increase()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(poolLoop + v.jitter(time.Millisecond)):
				v.increase()
			}
		}
	}()
	return nil
}

// againAgent is how long the kubelet waits before it starts an exited container again.
const againAgent = 10 * time.Second

// try makes a call with the retries of the SDK: at most ten attempts. Each wait is random, and its maximum grows from 1
// to 20 seconds. A retry takes 5 from a budget of 500. A successful retry returns 5, and a successful first attempt
// adds 1 (aws-sdk-go-v2, aws/retry/standard.go).
func (v *vpcCNI) try(action string) bool {
	for attempt := range 10 {
		if attempt > 0 {
			if v.budget < 5 {
				return false
			}
			v.budget -= 5
			v.sleep(time.Millisecond + v.jitter(min(time.Second<<(attempt-1), 20*time.Second)))
		}
		if v.call(v.place, action) {
			if attempt > 0 {
				v.budget = min(v.budget+5, 500)
			} else {
				v.budget = min(v.budget+1, 500)
			}
			return true
		}
	}
	return false
}

func (v *vpcCNI) total() (n int) {
	for _, s := range v.slots {
		n += s * v.per
	}
	return n
}

// low reports whether the pool has fewer available addresses than one ENI can have. With prefix delegation, it compares
// with the addresses of one prefix. A cooling address counts as available.
func (v *vpcCNI) low() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	target := vpcCNISlots
	if v.per > 1 {
		target = v.per
	}
	return v.total()-v.leased < target
}

// increase simulates one turn of the loop in StartNodeIPPoolManager.
func (v *vpcCNI) increase() {
	if !v.low() {
		return
	}
	want := vpcCNISlots
	if v.per > 1 {
		want = 1
	}
	for i, used := range v.slots {
		if used >= vpcCNISlots {
			continue
		}
		n := min(want, vpcCNISlots-used)
		if !v.try("AssignPrivateIpAddresses") {
			if n = 1; !v.try("AssignPrivateIpAddresses") {
				return
			}
		}
		v.mu.Lock()
		v.slots[i] += n
		v.mu.Unlock()
		return
	}
	if len(v.slots) < vpcCNIENIs {
		v.allocENI(want)
	}
}

func (v *vpcCNI) allocENI(want int) {
	_ = v.try("DescribeSubnets") // if this call fails, the agent takes the subnet of the boot ENI
	if !v.try("CreateNetworkInterface") {
		return
	}
	if !v.try("DescribeInstances") || !v.try("AttachNetworkInterface") {
		_ = v.try("DeleteNetworkInterface")
		return
	}
	if !v.try("ModifyNetworkInterfaceAttribute") {
		_ = v.try("DetachNetworkInterface") && v.try("DeleteNetworkInterface")
		return
	}
	v.sleep(time.Second) // until metadata shows the ENI
	v.mu.Lock()
	defer v.mu.Unlock()
	v.slots = append(v.slots, want)
}

var errNoAddress = errors.New("no available address")

func (v *vpcCNI) add(context.Context, string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for len(v.cools) > 0 && !time.Now().Before(v.cools[0]) {
		v.cools = v.cools[1:]
	}
	if v.total()-v.leased-len(v.cools) <= 0 {
		return errNoAddress
	}
	v.leased++
	return nil
}

func (v *vpcCNI) del(context.Context, string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.leased--
	v.cools = append(v.cools, time.Now().Add(cooldown))
	return nil
}

func (v *vpcCNI) collect(context.Context) error { return nil }

func (v *vpcCNI) idle() (int, error) { return v.total() - v.leased, nil }
