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

// Dropped returns how many packets the counting rules of a table have dropped. The error answers to
// fs.ErrNotExist if there is no such table.
func (t Table) Dropped(n *NS) (packets uint64, err error) {
	if _, err := t.itself(n); err != nil {
		return 0, err
	}
	c, err := n.nftables()
	if err != nil {
		return 0, err
	}
	family := tableFamilies[t.Family]
	chains, err := c.ListChainsOfTableFamily(family)
	if err != nil {
		return 0, fmt.Errorf("%s: list chains: %w", n.Name, err)
	}
	for _, chain := range chains {
		if chain.Table.Name != t.Name {
			continue
		}
		rules, err := c.GetRules(&nftables.Table{Family: family, Name: t.Name}, chain)
		if err != nil {
			return 0, fmt.Errorf("%s: rules of %s: %w", n.Name, chain.Name, err)
		}
		for _, r := range rules {
			packets += dropped(r)
		}
	}
	return packets, nil
}

// dropped is what a rule has counted, if it drops.
func dropped(r *nftables.Rule) (packets uint64) {
	drops := false
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter:
			packets = e.Packets
		case *expr.Verdict:
			drops = e.Kind == expr.VerdictDrop
		}
	}
	if !drops {
		return 0
	}
	return packets
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
