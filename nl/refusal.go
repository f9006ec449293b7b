// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// A Passage is the first packet of a connection that goes on through the namespace, or
// the first answer to it.
type Passage struct {
	In, Out           string // the links
	InGroup, OutGroup uint32
	IPv6              bool
	Rewritten         bool // the connection is to another destination than it was begun to
	Answer            bool
}

// A Refusal is a chain at netfilter's hook forward that does not let a packet pass.
type Refusal struct {
	Chain string // as nft(8) writes it: "ip filter FORWARD"
	Maybe bool   // but a rule of it would, of which more has to be known than a Passage says
}

// Refusals lists the chains that do not let a packet pass: by their policy, or by a rule
// that applies to it. It sees what nftables has, and iptables-nft; iptables-legacy is
// another engine.
func (n *NS) Refusals(p Passage) ([]Refusal, error) {
	c, err := n.nftables()
	if err != nil {
		return nil, err
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("%s: list chains: %w", n.Name, err)
	}
	var found []Refusal
	families := []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyIPv4}
	if p.IPv6 {
		families[1] = nftables.TableFamilyIPv6
	}
	for _, k := range chains {
		if !slices.Contains(families, k.Table.Family) || k.Hooknum == nil || *k.Hooknum != *nftables.ChainHookForward {
			continue
		}
		name := nftName(k.Table) + " " + k.Name
		t := trial{ns: n, conn: c, table: k.Table, packet: p}
		end, err := t.follow(k.Name, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", n.Name, name, err)
		}
		if end == expr.VerdictDrop || end == undecided && k.Policy != nil && *k.Policy == nftables.ChainPolicyDrop {
			found = append(found, Refusal{name, t.maybe})
		}
	}
	return found, nil
}

// A trial follows a packet through the chains of a table.
type trial struct {
	ns     *NS
	conn   *nftables.Conn
	table  *nftables.Table
	packet Passage
	maybe  bool // it has met a rule that may accept it
}

// undecided is what a chain says that the packet leaves by its end.
const undecided = expr.VerdictContinue

// follow has the packet meet the rules of a chain, and returns accept, drop or undecided.
func (t *trial) follow(chain string, depth int) (expr.VerdictKind, error) {
	const deepest = 16 // NFT_JUMP_STACK_SIZE
	if depth > deepest {
		return undecided, nil
	}
	rules, err := t.conn.GetRules(t.table, &nftables.Chain{Name: chain})
	if err != nil {
		return undecided, err
	}
	for _, r := range rules {
		is, v, err := t.meet(r)
		if err != nil {
			return undecided, err
		}
		if is == no {
			continue
		}
		end := v.Kind
		if v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto {
			if end, err = t.follow(v.Chain, depth+1); err != nil {
				return undecided, err
			}
		}
		if is == maybe {
			t.maybe = t.maybe || end == expr.VerdictAccept
			continue
		}
		switch {
		case end == expr.VerdictAccept, end == expr.VerdictDrop:
			return end, nil
		case v.Kind == expr.VerdictGoto, v.Kind == expr.VerdictReturn:
			return undecided, nil
		}
	}
	return undecided, nil
}
