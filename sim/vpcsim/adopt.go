// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"errors"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// OnLaunch makes the fabric also create a namespace for each instance that a program launches by the action
// RunInstances. The name of the namespace is the instance's ID. When the boot ENI is configured, the fabric calls the
// function boot in a new goroutine, because a real instance also boots after EC2 has answered. While programs can call
// the action, no goroutine may call the method RunInstance. If both ran at the same time, the fabric could not find out
// to which instance a boot ENI belongs.
func (f *Fabric) OnLaunch(boot func(*Instance)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onLaunch = boot
}

// adoptLaunched creates the namespace of an instance that the action RunInstances has launched. It does this when EC2
// reports that the boot ENI is attached. For any other change, it returns nil. Without a call of OnLaunch, it always
// returns nil.
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

// startAdopted serves EC2's API in the namespace of an adopted instance, and calls the function that OnLaunch got.
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
