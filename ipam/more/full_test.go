// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestFullWithoutDetached: the errors about a full instance do not count the ENIs that are detached.
func TestFullWithoutDetached(t *testing.T) {
	s := &registry.State{Instance: registry.Instance{ID: "i-1", ENIs: 4, Cards: []int{2, 2}},
		ENIs: map[string]registry.ENI{"eni-1": {Boot: true}, "eni-2": {Index: 1}, "eni-3": {Detached: true}}}
	p := &Node{}
	p.Policy.MinIndex = 2
	noIndex := p.fullError(s)
	s.Instance.FullUntil = time.Now().Add(time.Minute)
	for err, want := range map[error]string{noIndex: "i-1 has 2 ENIs, and no free device index",
		refusalError(s): "This node has 2 ENIs."} {
		if got := fmt.Sprint(err); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
