// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"context"
	"errors"
	"time"
)

// An original models a node with the plugin that this project succeeds, according to its source (aws/allocate.go,
// aws/interface.go, lib/lock.go, plugin/ipam/main.go). Each ADD or DEL holds one lock from start to end, and each call
// to EC2 gets only one address. Only the SDK waits before it repeats a refused call. If EC2 refuses an address for any
// reason, the plugin creates an ENI.
type original struct {
	*account
	*place
	lock  chan struct{}
	used  []int           // for each ENI that serves pods: the number of used addresses, with the primary address
	free  int             // number of primary addresses without a pod; EC2 cannot unassign primary addresses
	owner map[string]bool // key: a pod; value: whether its address is a primary address
}

const (
	originalENIs  = 3
	originalAddrs = 15
)

func newOriginal(a *account, at *place) node {
	return &original{account: a, place: at, lock: make(chan struct{}, 1), owner: map[string]bool{}}
}

func (o *original) launch() error                 { return nil }
func (o *original) boot(context.Context) error    { return nil }
func (o *original) collect(context.Context) error { return nil }

// idle returns the number of addresses without a pod. All of them are primary addresses, because a DEL unassigns any
// other address.
func (o *original) idle() (int, error) { return o.free, nil }

var (
	errBusy    = errors.New("the lock is not free within 100 seconds")
	errRefused = errors.New("EC2 refuses")
)

// locked calls do while it holds the lock. The original tries to lock every 100 ms, at most a thousand times.
func (o *original) locked(do func() error) error {
	select {
	case o.lock <- struct{}{}:
	case <-time.After(100 * time.Second):
		return errBusy
	}
	defer func() { <-o.lock }()
	return do()
}

// try makes a call with the retries of the original's SDK: at most three more attempts. The first wait takes between
// half a second and a second. Each later wait takes twice as long (aws-sdk-go v1, aws/client/default_retryer.go).
func (o *original) try(action string) bool {
	for attempt := range 4 {
		if attempt > 0 {
			o.sleep((500*time.Millisecond + o.jitter(500*time.Millisecond)) << (attempt - 1))
		}
		if o.call(o.place, action) {
			return true
		}
	}
	return false
}

func (o *original) add(_ context.Context, pod string) error {
	return o.locked(func() error {
		primary, err := o.assign()
		if err == nil {
			o.owner[pod] = primary
		}
		return err
	})
}

// assign gets a free primary address, a new address on an ENI, or the primary address of a new ENI.
func (o *original) assign() (primary bool, _ error) {
	if o.free > 0 {
		o.free--
		return true, nil
	}
	const metadata = time.Second // the plugin asks metadata each second until metadata shows the address
	for i, n := range o.used {
		if n >= originalAddrs {
			continue
		}
		if o.try("AssignPrivateIpAddresses") {
			o.used[i]++
			o.sleep(metadata)
			return false, nil
		}
		break
	}
	if len(o.used) >= originalENIs {
		return false, errRefused
	}
	for _, action := range []string{"DescribeSubnets", "CreateNetworkInterface", "AttachNetworkInterface",
		"ModifyNetworkInterfaceAttribute"} {
		if !o.try(action) {
			return false, errRefused
		}
	}
	o.used = append(o.used, 1)
	return true, nil
}

func (o *original) del(_ context.Context, pod string) error {
	return o.locked(func() error {
		if primary, known := o.owner[pod]; !known || primary {
			o.free++
			delete(o.owner, pod)
			return nil
		}
		if !o.try("UnassignPrivateIpAddresses") {
			return errRefused
		}
		for i := range o.used {
			if o.used[i] > 1 {
				o.used[i]--
				break
			}
		}
		delete(o.owner, pod)
		return nil
	})
}
