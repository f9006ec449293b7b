// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Counted is a rule of nftables that has a counter.
type Counted struct {
	Chain   string
	IIF     bool // the rule compares the name of the incoming link
	Drops   bool
	Packets uint64
}

// Counters returns those rules of the kernel's table that have a counter. The error is fs.ErrNotExist if there is no
// such table.
func (t Table) Counters(n *NS) (all []Counted, err error) {
	if _, err := t.getTable(n); err != nil {
		return nil, err
	}
	rules, err := t.listRules(n)
	if err != nil {
		return nil, fmt.Errorf("%s: list the rules of %s: %w", n.Name, t.Name, err)
	}
	for _, r := range rules {
		if counted, counts := countedBy(r[nl.SizeofNfgenmsg:]); counts {
			all = append(all, counted)
		}
	}
	return all, nil
}

func countedBy(rule []byte) (c Counted, counts bool) {
	c.Chain = unix.ByteSliceToString(attrAt(rule, unix.NFTA_RULE_CHAIN))
	for name, data := range expressions(rule) {
		switch name {
		case "meta":
			c.IIF = c.IIF || bigEndianUint(attrAt(data, unix.NFTA_META_KEY)) == unix.NFT_META_IIFNAME
		case "counter":
			if packets := attrAt(data, unix.NFTA_COUNTER_PACKETS); len(packets) == 8 {
				c.Packets, counts = binary.BigEndian.Uint64(packets), true
			}
		case "immediate":
			if code, is := verdictOf(data); is {
				c.Drops = code == verdictDrop
			}
		}
	}
	return c, counts
}

// Traffic returns how many packets a link has received and sent (proc_net(5), net/dev). The error
// is fs.ErrNotExist if there is no such link.
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
