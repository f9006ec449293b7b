// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Verdicts collects the decisions of netfilter's rules about the packets from and to some addresses, as "nft monitor
// trace" shows such decisions. A table asks the kernel to report these decisions. The table belongs to the socket of
// the Verdicts. So the kernel removes the table with the socket, even if the process is killed. The table does not
// change packets.
type Verdicts struct{ socket *socket }

// A Dropper is a rule, or the policy of a chain, that has dropped or rejected a packet.
type Dropper struct {
	Table  string // as nft(8) writes it: "inet filter"
	Chain  string
	Handle uint64 // of the rule; 0: the chain's policy
}

// String names the rule as "nft --handle list chain" shows it.
func (d Dropper) String() string {
	if d.Handle == 0 {
		return fmt.Sprintf("the policy of the chain %s of the table %s", d.Chain, d.Table)
	}
	return fmt.Sprintf("the rule with the handle %d of the chain %s of the table %s", d.Handle, d.Chain, d.Table)
}

// traceBefore is the priority of the chains that ask for verdicts: before all our chains, and all chains of other
// programs.
const traceBefore = -1000

// tableOwned is NFT_TABLE_F_OWNER of linux/netfilter/nf_tables.h.
const tableOwned = 2

// Verdicts begins to collect decisions. It fails on Linux before 5.12, which has no tables that belong to a socket.
func (n *NS) Verdicts(addrs []netip.Addr) (*Verdicts, error) {
	s, err := n.netlink(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	v := &Verdicts{s}
	t := Table{Family: "inet", Name: fmt.Sprintf("trace.%s.%d", OwnTable, os.Getpid())}
	for _, hook := range []string{"prerouting", "output"} {
		c := Chain{Name: hook, Type: "filter", Hook: hook, Priority: traceBefore}
		for _, a := range addrs {
			host := netip.PrefixFrom(a, a.BitLen())
			c.Rules = append(c.Rules, NFRule{SAddr(host), traced()}, NFRule{DAddr(host), traced()})
		}
		t.Chains = append(t.Chains, c)
	}
	x, err := t.begin()
	if err == nil {
		x.add(unix.NFT_MSG_NEWTABLE, addNew, attrString(unix.NFTA_TABLE_NAME, x.table),
			attrOrdered(unix.NFTA_TABLE_FLAGS, tableOwned))
		err = cmp.Or(t.fill(x), s.commit(x))
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

// traced asks the kernel for the verdicts about a packet.
func traced() Term {
	return term("meta nftrace set 1", func() []attribute {
		return exprs(immediate(unix.NFT_REG_1, []byte{1}), setMeta(unix.NFT_META_NFTRACE))
	})
}

// Drops returns the rules and policies that have dropped packets since the last call of Drops, each once.
func (v *Verdicts) Drops() (all []Dropper) {
	seen := map[Dropper]bool{}
	for {
		b, err := v.socket.receive()
		if err != nil {
			return all // there are no more messages
		}
		for len(b) > 0 {
			var m message
			if m, b, err = cut(b); err != nil {
				return all
			}
			if d, is := dropOf(m); is && !seen[d] {
				seen[d] = true
				all = append(all, d)
			}
		}
	}
}

// dropOf reads a message about a verdict. The second result reports whether the verdict has dropped a packet.
func dropOf(m message) (d Dropper, is bool) {
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
			verdict = inside(value, unix.NFTA_VERDICT_CODE)
		case unix.NFTA_TRACE_POLICY:
			policy = value
		}
	}
	code := verdict
	if policy != nil {
		code, d.Handle = policy, 0
	}
	return d, len(code) == 4 && ordered(code) == verdictDrop
}

// Close closes the socket. The kernel then removes the table.
func (v *Verdicts) Close() { v.socket.close() }
