// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"maps"
)

// Operate makes a call on behalf of another user, such as a person at the console. The call takes no token, meets no
// fault and no denial, and is not in Calls. An unknown action is a mistake in the test, and panics.
func (s *Sim) Operate(action string, parameters map[string]string) error {
	mustKnow(action)
	f := form(maps.Clone(parameters))
	var err error
	s.update(func() { _, err = actions[action](s, f) })
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return nil
}
