// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"context"
	"errors"
	"time"
)

// An original models a node of the plugin that this project succeeds, by its source (aws/allocate.go, aws/interface.go,
// lib/lock.go, plugin/ipam/main.go). One lock covers an ADD or DEL, each write gets one address, and only the SDK backs
// off. If EC2 refuses an address for any reason, the plugin makes an ENI.
type original struct {
	*account
	*place
	lock  chan struct{}
	used  []int           // addresses of each ENI for pods, with the primary one
	free  int             // primary addresses without a pod: they cannot be unassigned
	owner map[string]bool // pods, and whether the pod has a primary address
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

// idle counts the addresses without a pod. With one write per pod, these are only primary addresses.
func (o *original) idle() (int, error) { return o.free, nil }

var (
	errBusy    = errors.New("the lock is not free within 100 seconds")
	errRefused = errors.New("EC2 refuses")
)

// locked holds the lock, for which the original asks every 100 ms, a thousand times.
func (o *original) locked(do func() error) error {
	select {
	case o.lock <- struct{}{}:
	case <-time.After(100 * time.Second):
		return errBusy
	}
	defer func() { <-o.lock }()
	return do()
}

// try makes a call as the SDK of the original does, with three more attempts. The first wait is half a second to a
// second, and each later wait is twice as long (aws-sdk-go v1, aws/client/default_retryer.go).
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

// assign gets a free address, one more on an ENI, or one on a new ENI.
func (o *original) assign() (primary bool, _ error) {
	if o.free > 0 {
		o.free--
		return true, nil
	}
	const metadata = time.Second // it asks the metadata service each second until the address is there
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
