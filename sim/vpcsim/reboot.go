// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	_ "embed"
	"errors"
	"fmt"
	"os/exec"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// emptyScript is a script that empties the namespace of an instance.
//
//go:embed empty.sh
var emptyScript string

// Reboot restarts the instance, whose processes the caller must have ended. All attached ENIs get new links in the
// instance's namespace, even if their old links were in namespaces of pods. Only the boot ENI has addresses and routes.
// The metadata service tells the given lies instead of the earlier lies (see [ec2sim.Lie]).
func (i *Instance) Reboot(lies ...ec2sim.Lie) error {
	i.Instance.Reboot(lies...)
	if err := i.fabric.reboot(i, i.ENIs()); err != nil {
		return fmt.Errorf("%s: reboot: %w", i.Name, err)
	}
	return i.awaitIPv6()
}

func (f *Fabric) reboot(i *Instance, enis []ec2sim.ENI) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range enis {
		if err := f.unplugENI(e.ID); err != nil {
			return err
		}
	}
	if err := i.Do(func() error {
		out, err := exec.Command("sh", "-c", emptyScript).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}); err != nil {
		return err
	}
	err := instanceSysctls(i.NS).Add()
	for _, e := range enis {
		err = errors.Join(err, f.plugENI(e, i))
	}
	return errors.Join(err, dhcpWiring(enis[0], i.NS).Add())
}
