// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"maps"
)

// Operate calls EC2 for another user, for example for a person at the console. The call takes no token, and [Sim.Calls]
// does not return it. Faults and [Config.Denied] do not affect the call. Operate panics if the action is unknown.
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
