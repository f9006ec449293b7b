// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A transaction is a list of requests to nftables. The kernel carries out all of them, or none.
type transaction struct {
	family   uint8 // of the table that the next requests are about
	table    string
	requests []request
	sets     uint32 // the number of sets among the requests
	// if not 0, the kernel refuses the transaction with ERESTART when its tables have another generation
	generation uint32
}

// A request is one message of a transaction.
type request struct {
	family     uint8
	typ, flags int
	attrs      []attribute
}

// begin begins a transaction about the table.
func (t Table) begin() (*transaction, error) {
	family, ok := tableFamilies.number(t.Family)
	if !ok {
		return nil, fmt.Errorf("unknown family of tables %q", t.Family)
	}
	return &transaction{family: uint8(family), table: t.Name}, nil
}

func (x *transaction) add(typ, flags int, attrs ...attribute) {
	x.requests = append(x.requests, request{x.family, unix.NFNL_SUBSYS_NFTABLES<<8 | typ, flags, attrs})
}

// itself adds a request about the table itself.
func (x *transaction) itself(typ, flags int) {
	x.add(typ, flags, attrString(unix.NFTA_TABLE_NAME, x.table), attrOrdered(unix.NFTA_TABLE_FLAGS, 0))
}

// replaceTable adds requests to delete the table, if it is there, and to add it.
func (x *transaction) replaceTable() {
	// add the table first: otherwise the deletion fails if there is none, or another program has deleted it meanwhile
	x.itself(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	x.itself(unix.NFT_MSG_DELTABLE, 0)
	x.itself(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
}

// chain adds a chain. If a hook of netfilter calls the chain, called are the attributes about the hook.
func (x *transaction) chain(name string, called ...attribute) {
	x.add(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE,
		append([]attribute{attrString(unix.NFTA_CHAIN_TABLE, x.table), attrString(unix.NFTA_CHAIN_NAME, name)},
			called...)...)
}

// rule adds a rule at the end of a chain.
func (x *transaction) rule(chain, comment string, code []attribute) {
	x.add(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, attrString(unix.NFTA_RULE_TABLE, x.table),
		attrString(unix.NFTA_RULE_CHAIN, chain),
		nested(unix.NFTA_RULE_EXPRESSIONS, code...), attr(unix.NFTA_RULE_USERDATA, commented(comment)))
}

// encode makes the messages of the transaction. seq is the sequence number of the first message.
func (x *transaction) encode(seq uint32) (b []byte) {
	all := &nl.Nfgenmsg{ResId: binary.NativeEndian.Uint16([]byte{0, unix.NFNL_SUBSYS_NFTABLES})}
	var unchanged []attribute
	if x.generation != 0 {
		unchanged = append(unchanged, attrOrdered(unix.NFNL_BATCH_GENID, x.generation))
	}
	b = encode(unix.NFNL_MSG_BATCH_BEGIN, 0, seq, all, unchanged)
	for _, r := range x.requests {
		seq++
		b = append(b, encode(r.typ, r.flags, seq, &nl.Nfgenmsg{NfgenFamily: r.family}, r.attrs)...)
	}
	return append(b, encode(unix.NFNL_MSG_BATCH_END, 0, seq+1, all, nil)...)
}

// commit sends the transaction, and returns the first failure. The socket stays open until n is closed. When a socket
// is closed, the kernel waits until all deleted objects are freed, 10 ms or more (nft_rcv_nl_event). When n is closed,
// the kernel must wait anyway, for other reasons.
func (n *NS) commit(x *transaction) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.socket(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	return kernel(s.commit(x))
}

func (s *socket) commit(x *transaction) error {
	first := s.seq + 1
	b := x.encode(first)
	s.seq += uint32(len(x.requests)) + 2 // also for the messages that begin and end the transaction
	_, err := unix.Write(s.fd, b)
	if err == unix.EMSGSIZE { // larger than the socket's buffer, net.core.wmem_default
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, len(b)); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		_, err = unix.Write(s.fd, b)
	}
	if err != nil {
		return err
	}
	return s.failure(first)
}

// failure returns the first failure that the kernel reports about the messages of a transaction. first is the sequence
// number of the transaction's first message. The kernel reports each failure before write(2) returns, in the order of
// the messages (nfnl_err_deliver). So if there is no report, the transaction has succeeded, and the kernel need not
// acknowledge the messages. If a module is missing, each message fails. If the socket has no room for all the reports,
// read(2) fails once with ENOBUFS, and then returns the reports for which there was room.
func (s *socket) failure(first uint32) (failed error) {
	var lost error
	for {
		b, err := s.receive()
		switch {
		case err == errNothing && failed == nil && lost != nil:
			return fmt.Errorf("%w: %w", ErrUnanswered, lost)
		case err == errNothing:
			return failed
		case errors.Is(err, unix.ENOBUFS):
			lost = err
		case err != nil:
			return fmt.Errorf("%w: %w", ErrUnanswered, err)
		}
		for len(b) > 0 {
			var m message
			if m, b, err = cut(b); err != nil {
				return err
			}
			if m.typ == unix.NLMSG_ERROR && m.seq-first <= s.seq-first && failed == nil {
				failed = m.errno()
			}
		}
	}
}

// commented returns a comment as nft(8) stores it with a rule: NFTNL_UDATA_RULE_COMMENT, its length, and a text with a
// zero at its end.
func commented(comment string) []byte {
	return append(append([]byte{0, byte(len(comment) + 1)}, comment...), 0)
}

// comment returns the comment in userdata, or "" if there is none. userdata is the data that a program has stored with
// a rule.
func comment(userdata []byte) string {
	for len(userdata) >= 2 {
		end := 2 + int(userdata[1])
		if end > len(userdata) {
			break
		}
		if userdata[0] == 0 {
			return unix.ByteSliceToString(userdata[2:end])
		}
		userdata = userdata[end:]
	}
	return ""
}
