// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"sync"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// An account simulates EC2 for the models of other plugins. It has only EC2's token buckets.
type account struct {
	*ledger
	mu     sync.Mutex
	tokens ec2sim.Tokens
	closed bool // if true, EC2 refuses all calls
}

func newAccount() *account { return &account{ledger: newLedger()} }

// call makes a call for the node that has the place at, and reports whether EC2 has carried out the call.
func (a *account) call(at *place, action string) bool {
	at.sleep(refusalLatency / 2)
	a.mu.Lock()
	ok := !a.closed && a.tokens.Take(action)
	a.mu.Unlock()
	a.note(action, !ok)
	at.sleep(latency(action, !ok) - refusalLatency/2)
	return ok
}
