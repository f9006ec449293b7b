// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// A Counted is what a rule with a counter has counted.
type Counted struct {
	Chain   string
	IIF     bool // the rule is about packets from a link
	Drops   bool
	Packets uint64
}

// Counters returns what the counting rules of a table have counted. The error answers to
// fs.ErrNotExist if there is no such table.
func (t Table) Counters(n *NS) (all []Counted, err error) {
	if _, err := t.itself(n); err != nil {
		return nil, err
	}
	c, err := n.nftables()
	if err != nil {
		return nil, err
	}
	family := tableFamilies[t.Family]
	chains, err := c.ListChainsOfTableFamily(family)
	if err != nil {
		return nil, fmt.Errorf("%s: list chains: %w", n.Name, err)
	}
	for _, chain := range chains {
		if chain.Table.Name != t.Name {
			continue
		}
		rules, err := c.GetRules(&nftables.Table{Family: family, Name: t.Name}, chain)
		if err != nil {
			return nil, fmt.Errorf("%s: rules of %s: %w", n.Name, chain.Name, err)
		}
		for _, r := range rules {
			if counted, counts := countedBy(r); counts {
				all = append(all, counted)
			}
		}
	}
	return all, nil
}

func countedBy(r *nftables.Rule) (c Counted, counts bool) {
	c.Chain = r.Chain.Name
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Meta:
			c.IIF = c.IIF || e.Key == expr.MetaKeyIIFNAME
		case *expr.Counter:
			c.Packets, counts = e.Packets, true
		case *expr.Verdict:
			c.Drops = e.Kind == expr.VerdictDrop
		}
	}
	return c, counts
}

// Traffic returns how many packets a link has received and sent (proc_net(5), net/dev). The error
// answers to fs.ErrNotExist if there is no such link.
func (n *NS) Traffic(link string) (received, sent uint64, err error) {
	var text []byte
	err = n.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	})
	for line := range bytes.Lines(text) {
		name, counters, _ := strings.Cut(strings.TrimSpace(string(line)), ":")
		c := strings.Fields(counters)
		if name != link || len(c) < 16 {
			continue
		}
		if received, err = strconv.ParseUint(c[1], 10, 64); err == nil {
			sent, err = strconv.ParseUint(c[9], 10, 64)
		}
		return received, sent, err
	}
	if err == nil {
		err = fmt.Errorf("%s: link %s: %w", n.Name, link, fs.ErrNotExist)
	}
	return 0, 0, err
}
