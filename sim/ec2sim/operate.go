// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"maps"
)

// Operate calls EC2 as another user, for example a person at the console. Throttling, faults and [Config.Denied] do not
// affect the call, and [Sim.Calls] does not return it. Operate panics if the action is unknown.
func (s *Sim) Operate(action string, parameters map[string]string) error {
	mustHaveAction(action)
	f := form(maps.Clone(parameters))
	var err error
	s.update(func() { _, err = actions[action](s, f) })
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return nil
}
