// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// A DroppingChain is a chain at netfilter's hook forward. It drops or rejects a packet that none
// of its rules accepts.
type DroppingChain struct {
	Name  string // as nft(8) writes it: "ip filter FORWARD"
	Empty bool   // no rule accepts anything
}

// DroppingChains lists the chains that drop packets of a family. It does not know which packets
// their rules accept. It sees the rules of nftables and iptables-nft. iptables-legacy is another
// engine.
func (n *NS) DroppingChains(family Family) ([]DroppingChain, error) {
	c, err := n.nftables()
	if err != nil {
		return nil, err
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("%s: list chains: %w", n.Name, err)
	}
	families := []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyIPv4}
	if family == IPv6 {
		families[1] = nftables.TableFamilyIPv6
	}
	var found []DroppingChain
	for _, k := range chains {
		if !slices.Contains(families, k.Table.Family) || k.Hooknum == nil || *k.Hooknum != *nftables.ChainHookForward {
			continue
		}
		rules, err := c.GetRules(k.Table, k)
		if err != nil {
			return nil, fmt.Errorf("%s: rules of %s %s: %w", n.Name, nftName(k.Table), k.Name, err)
		}
		if k.Policy != nil && *k.Policy == nftables.ChainPolicyDrop || len(rules) > 0 && dropsAll(rules[len(rules)-1]) {
			found = append(found, DroppingChain{nftName(k.Table) + " " + k.Name, len(rules) == 0})
		}
	}
	return found, nil
}

// dropsAll reports whether a rule drops or rejects every packet, as the last one of firewalld does.
func dropsAll(r *nftables.Rule) bool {
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Reject:
			return true
		case *expr.Verdict:
			return e.Kind == expr.VerdictDrop
		default:
			return false // it is about some packets only
		}
	}
	return false
}
