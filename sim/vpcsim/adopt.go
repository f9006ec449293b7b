// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"errors"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// OnLaunch gives a namespace to instances that a program launches by the action RunInstances, too. The name of the
// namespace is the instance's ID. When the boot ENI is configured, boot runs in a goroutine of its own, as a real
// instance boots after EC2 has answered. Meanwhile no goroutine may call the method RunInstance: the fabric would not
// know whose boot ENI it sees.
func (f *Fabric) OnLaunch(boot func(*Instance)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onLaunch = boot
}

// adopt creates the namespace of an instance whose boot ENI EC2 reports, if it is one of OnLaunch. Else it returns nil.
func (f *Fabric) adopt(c ec2sim.Change) (*Instance, error) {
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

// ready serves what an adopted instance finds beside its ENIs, and boots it.
func (f *Fabric) ready(i *Instance) error {
	if err := i.serve(ec2Addr, 0, f.EC2); err != nil {
		return err
	}
	f.mu.Lock()
	boot := f.onLaunch
	f.mu.Unlock()
	go boot(i)
	return nil
}
