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

// A transaction is a list of requests to nftables. The kernel executes all of them, or none.
type transaction struct {
	family   uint8 // the family of the table to which the next requests apply
	table    string
	requests []batchRequest
	sets     uint32 // how many sets the requests add; the sets are numbered from 1 to this number
	// generation is a result of rulesetGeneration: if a table has changed since, the kernel refuses the transaction
	// with ERESTART. With 0, the kernel never refuses because of a change.
	generation uint32
}

type batchRequest struct {
	family     uint8
	typ, flags int
	attrs      []attribute
}

func (t Table) newTransaction() (*transaction, error) {
	family, ok := tableFamilies.numberOf(t.Family)
	if !ok {
		return nil, fmt.Errorf("unknown family of tables %q", t.Family)
	}
	return &transaction{family: uint8(family), table: t.Name}, nil
}

func (x *transaction) add(typ, flags int, attrs ...attribute) {
	x.requests = append(x.requests, batchRequest{x.family, unix.NFNL_SUBSYS_NFTABLES<<8 | typ, flags, attrs})
}

func (x *transaction) addTableRequest(typ, flags int) {
	x.add(typ, flags, attrString(unix.NFTA_TABLE_NAME, x.table), attrBigEndian(unix.NFTA_TABLE_FLAGS, 0))
}

func (x *transaction) replaceTable() {
	// add the table first, because the deletion would fail if there is no such table
	x.addTableRequest(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	x.addTableRequest(unix.NFT_MSG_DELTABLE, 0)
	x.addTableRequest(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
}

// addChain adds a request that adds a chain. hookAttrs describe the hook that calls the chain, if there is one.
func (x *transaction) addChain(name string, hookAttrs ...attribute) {
	x.add(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE,
		append([]attribute{attrString(unix.NFTA_CHAIN_TABLE, x.table), attrString(unix.NFTA_CHAIN_NAME, name)},
			hookAttrs...)...)
}

func (x *transaction) addRule(chain, comment string, code []attribute) {
	x.add(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, attrString(unix.NFTA_RULE_TABLE, x.table),
		attrString(unix.NFTA_RULE_CHAIN, chain),
		nested(unix.NFTA_RULE_EXPRESSIONS, code...), attr(unix.NFTA_RULE_USERDATA, encodeComment(comment)))
}

// encodeMessages returns the messages of the transaction. seq is the sequence number of the first message.
func (x *transaction) encodeMessages(seq uint32) (b []byte) {
	all := &nl.Nfgenmsg{ResId: binary.NativeEndian.Uint16([]byte{0, unix.NFNL_SUBSYS_NFTABLES})}
	var unchanged []attribute
	if x.generation != 0 {
		unchanged = append(unchanged, attrBigEndian(unix.NFNL_BATCH_GENID, x.generation))
	}
	b = encodeMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, seq, all, unchanged)
	for _, r := range x.requests {
		seq++
		b = append(b, encodeMessage(r.typ, r.flags, seq, &nl.Nfgenmsg{NfgenFamily: r.family}, r.attrs)...)
	}
	return append(b, encodeMessage(unix.NFNL_MSG_BATCH_END, 0, seq+1, all, nil)...)
}

// commit sends the transaction, and returns the first error. The socket stays open until n is closed. If commit closed
// the socket, the kernel would wait 10 ms or more, until all deleted objects are freed (nft_rcv_nl_event).
func (n *NS) commit(x *transaction) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.familySocket(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	return wrapNotExist(s.commit(x))
}

func (s *socket) commit(x *transaction) error {
	first := s.seq + 1
	b := x.encodeMessages(first)
	s.seq += uint32(len(x.requests)) + 2 // 2 for the messages that begin and end the transaction
	_, err := unix.Write(s.fd, b)
	if err == unix.EMSGSIZE { // the messages are larger than the socket's buffer (net.core.wmem_default)
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, len(b)); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		_, err = unix.Write(s.fd, b)
	}
	if err != nil {
		return err
	}
	return s.firstFailure(first)
}

// firstFailure returns the first error of a transaction whose first message has the given sequence number, or nil. The
// kernel reports each error before write(2) returns, in the order of the messages (nfnl_err_deliver). So a missing
// report means success. If a module is missing, each message fails, and the socket may have no room for all reports.
// Then the first read(2) fails with ENOBUFS, and later calls return the reports for which the socket had room.
func (s *socket) firstFailure(first uint32) (failed error) {
	var lost error
	for {
		b, err := s.readDatagram()
		switch {
		case err == errNoAnswer && failed == nil && lost != nil:
			return fmt.Errorf("%w: %w", ErrUnanswered, lost)
		case err == errNoAnswer:
			return failed
		case errors.Is(err, unix.ENOBUFS):
			lost = err
		case err != nil:
			return fmt.Errorf("%w: %w", ErrUnanswered, err)
		}
		for len(b) > 0 {
			var m message
			if m, b, err = cutMessage(b); err != nil {
				return err
			}
			if m.typ == unix.NLMSG_ERROR && m.seq-first <= s.seq-first && failed == nil {
				failed = m.errno()
			}
		}
	}
}

// encodeComment returns a rule's comment as user data in the form of nft(8): NFTNL_UDATA_RULE_COMMENT, the length, and
// the text with a zero byte at its end.
func encodeComment(comment string) []byte {
	return append(append([]byte{0, byte(len(comment) + 1)}, comment...), 0)
}

// decodeComment returns the comment in the user data of a rule, or "" if there is none.
func decodeComment(userdata []byte) string {
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
