// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import "strings"

// upgradeFields moves data that earlier releases kept under special names to the fields of this release. Earlier
// releases had intents instead of State.Rebuilt: one for each comparison with EC2 that was left to do. They had
// QuotaUntil in NotBefore, under the name of an action that does not exist.
func (s *State) upgradeFields() {
	const describe, unconfirmed = "DescribeNetworkInterfaces", ", for addresses in doubt"
	const quota = "CreateNetworkInterface beyond the quota"
	old := false
	for token, i := range s.Intents {
		if !strings.HasPrefix(i.Action, describe) {
			continue
		}
		delete(s.Intents, token)
		if !old {
			old, s.Rebuilt = true, Rebuilt{Since: i.Since, Compared: true}
		}
		if i.Action == describe {
			s.Rebuilt.Compared = false
		}
		s.Rebuilt.Unconfirmed = s.Rebuilt.Unconfirmed || strings.HasSuffix(i.Action, unconfirmed)
	}
	if until, ok := s.NotBefore[quota]; ok {
		delete(s.NotBefore, quota)
		s.Instance.QuotaUntil = until
	}
}
