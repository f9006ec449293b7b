// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"maps"
)

// Operate calls EC2 as another user would do, for example a person at the console. The call takes no token from the
// buckets of [Config.Throttle], and [Sim.Calls] does not return the call. Faults and [Config.Denied] do not affect the
// call. Operate panics if the action is unknown.
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
