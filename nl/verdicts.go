// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Verdicts records which rules of nftables drop packets from and to some addresses, like "nft monitor trace". A
// temporary table makes the kernel report the verdicts about these packets, and does not change the packets. The table
// belongs to a socket, so the kernel removes it when the process closes the socket or is killed.
type Verdicts struct{ socket *socket }

// A Dropper is a rule of nftables, or the policy of a chain, that has dropped or rejected a packet.
type Dropper struct {
	Table  string // the family and the name: "inet filter"
	Chain  string
	Handle uint64 // the handle of the rule; 0: the chain's policy has dropped the packet
}

// String describes the policy, or names the rule by its handle. The command "nft --handle list chain" shows the handles
// of rules.
func (d Dropper) String() string {
	if d.Handle == 0 {
		return fmt.Sprintf("the policy of the chain %s of the table %s", d.Chain, d.Table)
	}
	return fmt.Sprintf("the rule with the handle %d of the chain %s of the table %s", d.Handle, d.Chain, d.Table)
}

// traceBefore is the priority of the temporary table's chains: the kernel calls them before all other chains.
const traceBefore = -1000

// tableOwned is the flag NFT_TABLE_F_OWNER of linux/netfilter/nf_tables.h.
const tableOwned = 2

// Verdicts returns a Verdicts that records packets from and to addrs. It fails on Linux before 5.12, which has no
// tables that belong to a socket.
func (n *NS) Verdicts(addrs []netip.Addr) (*Verdicts, error) {
	s, err := n.openNetlink(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	v := &Verdicts{s}
	t := Table{Family: "inet", Name: fmt.Sprintf("trace.%s.%d", OwnTable, os.Getpid())}
	for _, hook := range []string{"prerouting", "output"} {
		c := Chain{Name: hook, Type: "filter", Hook: hook, Priority: traceBefore}
		for _, a := range addrs {
			host := HostPrefix(a)
			c.Rules = append(c.Rules, NFRule{SAddr(host), traceTerm()}, NFRule{DAddr(host), traceTerm()})
		}
		t.Chains = append(t.Chains, c)
	}
	x, err := t.newTransaction()
	if err == nil {
		x.add(unix.NFT_MSG_NEWTABLE, addNew, attrString(unix.NFTA_TABLE_NAME, x.table),
			attrBigEndian(unix.NFTA_TABLE_FLAGS, tableOwned))
		err = t.addContent(x)
	}
	if err == nil {
		err = s.commit(x)
	}
	if err == nil {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP,
			unix.NFNLGRP_NFTRACE))
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return v, nil
}

func traceTerm() Term {
	return term("meta nftrace set 1", func() []attribute {
		return exprs(immediate(unix.NFT_REG_1, []byte{1}), setMeta(unix.NFT_META_NFTRACE))
	})
}

// Drops returns the rules and policies that have dropped packets since Drops was last called. It returns each rule or
// policy only once.
func (v *Verdicts) Drops() (all []Dropper) {
	seen := map[Dropper]bool{}
	for {
		b, err := v.socket.readDatagram()
		if err != nil {
			return all // there are no more messages
		}
		for len(b) > 0 {
			var m message
			if m, b, err = cutMessage(b); err != nil {
				return all
			}
			if d, is := dropOf(m); is && !seen[d] {
				seen[d] = true
				all = append(all, d)
			}
		}
	}
}

// dropOf decodes a message about a verdict. ok reports whether the verdict has dropped a packet.
func dropOf(m message) (d Dropper, ok bool) {
	if m.typ != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE || len(m.data) < nl.SizeofNfgenmsg {
		return d, false
	}
	var policy, verdict []byte
	for typ, value := range attrsOf(m.data[nl.SizeofNfgenmsg:]) {
		switch typ {
		case unix.NFTA_TRACE_TABLE:
			d.Table = nftName(m.data[0], value)
		case unix.NFTA_TRACE_CHAIN:
			d.Chain = unix.ByteSliceToString(value)
		case unix.NFTA_TRACE_RULE_HANDLE:
			if len(value) == 8 {
				d.Handle = binary.BigEndian.Uint64(value)
			}
		case unix.NFTA_TRACE_VERDICT:
			verdict = attrAt(value, unix.NFTA_VERDICT_CODE)
		case unix.NFTA_TRACE_POLICY:
			policy = value
		}
	}
	code := verdict
	if policy != nil {
		code, d.Handle = policy, 0
	}
	return d, len(code) == 4 && bigEndianUint(code) == verdictDrop
}

func (v *Verdicts) Close() { v.socket.close() }
