// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// This file is about ENIs whose link is not on the node: see lease.Pool.Obtain. A growth does not use such ENIs, but
// its error names them.

// withPassedOver adds text to err, the error of a growth. The text names the ENIs of the pool whose link is not on the
// node.
func (p *Pool) withPassedOver(err error) error {
	if err == nil {
		return nil
	}
	s, e := p.Registry.View()
	if e != nil {
		return err
	}
	over := []error{err}
	for _, id := range known.WithoutLink(s) {
		if e := s.ENIs[id]; e.Pool == p.Policy.Pool && p.Policy.Serves(e) {
			over = append(over, fmt.Errorf("%s (%s) is passed over: %w (since %s)", id, e.MAC, lease.ErrNoLink,
				e.Missed.Format(time.RFC3339)))
		}
	}
	if len(over) == 1 {
		return err
	}
	advice, code := lease.HintNoLink, uint(plugin.CodeTryAgain)
	if first := Hint(err); first != "" {
		advice = first + "; " + advice
	}
	if e, ok := errors.AsType[*plugin.Error](err); ok {
		code = e.Code
	}
	return plugin.Errorf(code, advice, "%w", errors.Join(over...))
}
