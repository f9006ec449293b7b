// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package less

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Deallocate unassigns addresses of this node's ENIs, in one call for each ENI and family. It unassigns nothing if one
// of the addresses is not free, or is the primary address of an ENI.
func (p *Node) Deallocate(ctx context.Context, addrs ...netip.Addr) error {
	for _, a := range addrs {
		if err := p.Turn(ctx, book.UnassignActionOf(a)); err != nil {
			return err
		}
	}
	if err := errors.Join(p.AskAgain(ctx), p.Learn(ctx)); err != nil {
		return err
	}
	unlock, err := p.Registry.Lock(ctx, "grow") // see release
	if err != nil {
		return err
	}
	defer unlock()
	victims := map[string]book.Releasable{} // by ENI
	err = p.Registry.Update(ctx, func(s *registry.State) error {
		clear(victims)
		var refused error
		for _, a := range addrs {
			id, err := spare(s, a)
			refused = errors.Join(refused, err)
			if victims[id].Addrs == nil {
				victims[id] = book.Releasable{Addrs: map[netip.Addr]time.Time{}}
			}
			victims[id].Addrs[a], _ = s.Free.At(a)
		}
		if refused != nil {
			return refused
		}
		for id, x := range victims {
			book.Withdraw(s, id, x)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var failed error
	for _, id := range slices.Sorted(maps.Keys(victims)) {
		for _, family := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
			x := victims[id].Only(family, func(netip.Prefix) bool { return false })
			if x.Empty() {
				continue
			}
			_, err := p.unassign(ctx, id, x)
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// spare returns the ENI that can lose the address, or an error if no ENI can lose it.
func spare(s *registry.State, a netip.Addr) (string, error) {
	id, e := s.ENIOf(a)
	lease, leased := s.Leases.At(a)
	switch {
	case id == "":
		return "", fmt.Errorf("IP not found - can't release %s: it is on none of this instance's ENIs", a)
	case leased:
		return "", fmt.Errorf("%s is in use: %s", a, book.Holder(lease))
	case !slices.Contains(e.Addrs, a) && a.Is6():
		return "", fmt.Errorf("%s is in a prefix, which stays on %s as long as the ENI exists", a, id)
	case !slices.Contains(e.Addrs, a):
		return "", fmt.Errorf("%s is in a prefix of %s, and EC2 releases only whole prefixes: registry-gc releases "+
			"the prefix when no pod uses it",
			a, id)
	case a == e.Primary():
		return "", fmt.Errorf("%s is the primary address of %s, and EC2 unassigns no primary address", a, id)
	case !s.Free.Has(a):
		return "", fmt.Errorf("%s may be in use: the registry does not list it as free", a)
	}
	return id, nil
}
