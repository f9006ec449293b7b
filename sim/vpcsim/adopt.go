// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"errors"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// OnLaunch makes the fabric create a namespace for each instance that a program launches with the action RunInstances.
// The name of the namespace is the instance's ID. After the configuration of the boot ENI, the fabric calls the
// function "boot" in a new goroutine, so EC2 can answer first. After OnLaunch, the test must not call
// [Fabric.RunInstance]. If the test called RunInstance, the fabric could not know whether a boot ENI belongs to this
// call or to RunInstances.
func (f *Fabric) OnLaunch(boot func(*Instance)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onLaunch = boot
}

// adoptLaunched creates the namespace of an instance that the action RunInstances has launched. It does this when the
// change c attaches the instance's boot ENI. For all other changes, and before the test calls OnLaunch, it returns nil.
func (f *Fabric) adoptLaunched(c ec2sim.Change) (*Instance, error) {
	f.mu.Lock()
	wanted := f.run != nil && f.onLaunch != nil && f.booting == nil && f.instances[c.Instance] == nil &&
		c.Kind == ec2sim.Attached && c.ENI.Boot
	f.mu.Unlock()
	if !wanted {
		return nil, nil
	}
	i, err := f.newInstance(c.Instance)
	if err != nil {
		return nil, err
	}
	for _, running := range f.EC2.Instances() {
		if running.ID == c.Instance {
			i.Instance = running
		}
	}
	if i.Instance == nil {
		return nil, errors.Join(fmt.Errorf("EC2 shows no instance %s", c.Instance), i.Close())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instances[c.Instance] = i
	return i, nil
}

// startAdopted serves EC2's API in the namespace of an adopted instance, and calls the function of OnLaunch.
func (f *Fabric) startAdopted(i *Instance) error {
	if err := i.serveHTTP(ec2Addr, 0, f.EC2); err != nil {
		return err
	}
	f.mu.Lock()
	boot := f.onLaunch
	f.mu.Unlock()
	go boot(i)
	return nil
}
