// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"maps"
)

// Operate makes a call on behalf of another user, such as a person at the console. The call takes no token, and is not
// in Calls. Faults and denied actions do not affect the call. Operate panics if the action is unknown.
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
