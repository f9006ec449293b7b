// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A socket is a netlink socket. It belongs to the namespace in which it was opened, whichever thread uses it.
//
// The socket of vishvananda/netlink waits in the runtime's poller, and its buffer of 64 kB makes the stack grow. Our
// socket does not wait: the kernel's answer is ready when write(2) returns (netlink_unicast).
type socket struct {
	fd  int
	seq uint32 // the sequence number of the last request
}

// answerBuffers has buffers with room for the largest answer. readDatagram puts a buffer back after it has copied the
// answer: most answers are small.
var answerBuffers = sync.Pool{New: func() any { return new([nl.RECEIVE_BUFFER_SIZE]byte) }}

// openNetlink opens a socket of a netlink family (NETLINK_ROUTE and others) in the namespace.
func (n *NS) openNetlink(family int) (*socket, error) {
	fd, err := n.openSocket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK, family)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// Any process may send to a netlink socket that is not connected to the kernel (netlink_getsockbyportid).
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	// Kernels before 4.20 lack this option, and send more objects. So the functions that read answers also check each
	// object.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return &socket{fd: fd}, nil
}

func (s *socket) close() { unix.Close(s.fd) }

// ErrUnanswered reports that the kernel got a request, but the answer was lost. Perhaps the kernel has carried out the
// request.
var ErrUnanswered = errors.New("netlink has not answered")

// roundTrip sends a request, and returns the kernel's answers: several for a dump, otherwise one. If answerType is not
// 0, roundTrip returns only answers of this type.
//
// With NLM_F_ACK, the caller only wants to know whether the request succeeds. roundTrip does not send this flag: the
// kernel reports each failure before write(2) returns, so a missing report means success. If the kernel has no memory
// for the report, read(2) fails with ENOBUFS (netlink_ack).
func (s *socket) roundTrip(
	typ, flags int, answerType uint16, head nl.NetlinkRequestData, attrs []attribute,
) (answers [][]byte, err error) {
	if err := s.sendRequest(typ, flags&^unix.NLM_F_ACK, head, attrs); err != nil {
		return nil, err
	}
	return s.readAnswers(typ, answerType, flags&unix.NLM_F_ACK != 0)
}

// sendRequest sends a request. The kernel writes the first part of a dump before sendRequest returns, and each further
// part when this process has read the part before it.
func (s *socket) sendRequest(typ, flags int, head nl.NetlinkRequestData, attrs []attribute) error {
	s.seq++
	_, err := unix.Write(s.fd, encodeMessage(typ, flags, s.seq, head, attrs))
	return os.NewSyscallError("write", err)
}

// readAnswers returns the answers to the last request. If ackOnly is true, a missing answer means success.
func (s *socket) readAnswers(typ int, answerType uint16, ackOnly bool) (answers [][]byte, err error) {
	// If a part of a dump has more than fullPart bytes, perhaps the next message did not fit into it: the kernel's
	// smallest buffer has 3.7 kB.
	const fullPart = 3 << 10
	interrupted := false
	for {
		b, err := s.readDatagram()
		switch {
		case ackOnly && err == errNoAnswer:
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrUnanswered, err)
		}
		earlier, size := len(answers), len(b)
		for len(b) > 0 {
			var m message
			if m, b, err = cutMessage(b); err != nil {
				return nil, err
			}
			if m.seq != s.seq { // skip an answer to an earlier request, whose call has failed
				continue
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			done := m.flags&unix.NLM_F_MULTI == 0
			switch {
			case m.typ == unix.NLMSG_ERROR, m.typ == unix.NLMSG_DONE:
				done, err = true, m.errno()
			case answerType == 0, answerType == m.typ:
				answers = append(answers, m.data)
				interrupted = interrupted || earlier > 0 && isUnmarkedDump(typ, m.data)
			default:
				done = false
			}
			if err == nil && done && interrupted {
				err = nl.ErrDumpInterrupted
			}
			if done {
				return answers, err
			}
		}
		interrupted = interrupted || size > fullPart && len(answers) > 0 && isUnmarkedDump(typ, answers[0])
	}
}

// isUnmarkedDump reports whether a message belongs to a dump of rules (dump_rules), IPv6 routes (fib6_dump_table) or
// neighbours (neigh_dump_table). If a change interrupts such a dump, the kernel does not mark the dump with
// NLM_F_DUMP_INTR. Between two parts of such a dump, the kernel only remembers how many objects it has sent, and then
// skips this number of objects. If a change moves an unsent object to the beginning of the list, the dump lacks this
// object. This can happen when a rule or a neighbour is deleted, when an IPv6 route is deleted or added, and when the
// table of neighbours grows.
//
// So readAnswers treats an unmarked dump as interrupted if it has more than one part, or a full part. The first part of
// a socket's first dump has up to 3.7 kB. Later parts have up to 32 kB, because the kernel then knows the reader's
// buffer (netlink_dump).
func isUnmarkedDump(typ int, data []byte) bool {
	return typ == unix.RTM_GETRULE || typ == unix.RTM_GETNEIGH ||
		typ == unix.RTM_GETROUTE && len(data) > 0 && data[0] == unix.AF_INET6
}

// encodeMessage returns a netlink message with a header (such as a struct ifinfomsg) and attributes.
func encodeMessage(typ, flags int, seq uint32, head nl.NetlinkRequestData, attrs []attribute) []byte {
	ne, data := binary.NativeEndian, head.Serialize()
	size := unix.SizeofNlMsghdr + aligned(len(data))
	for _, a := range attrs {
		size += len(a)
	}
	b := ne.AppendUint32(make([]byte, 0, size), uint32(size))
	b = ne.AppendUint16(b, uint16(typ))
	b = ne.AppendUint16(b, uint16(unix.NLM_F_REQUEST|flags))
	b = ne.AppendUint32(b, seq)
	b = ne.AppendUint32(b, 0) // nlmsg_pid is 0, because the kernel knows the sender
	b = append(b, data...)
	b = b[:unix.SizeofNlMsghdr+aligned(len(data))]
	for _, a := range attrs {
		b = append(b, a...)
	}
	return b
}

// errNoAnswer reports that the socket has no datagram to read.
var errNoAnswer = errors.New("nothing to read")

func (s *socket) readDatagram() ([]byte, error) {
	room := answerBuffers.Get().(*[nl.RECEIVE_BUFFER_SIZE]byte)
	defer answerBuffers.Put(room)
	for {
		switch n, err := unix.Read(s.fd, room[:]); {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return nil, errNoAnswer
		case err != nil:
			return nil, os.NewSyscallError("read", err)
		case n == len(room): // perhaps read(2) has cut the datagram; normal answers have at most 32 kB (netlink_dump)
			return nil, fmt.Errorf("the kernel's answer may be longer than the buffer of %d bytes: %w", n,
				unix.EMSGSIZE)
		default:
			return bytes.Clone(room[:n]), nil
		}
	}
}

// A message is a netlink message: a struct nlmsghdr and the data after it, netlink(7).
type message struct {
	typ, flags uint16
	seq        uint32
	data       []byte
}

func cutMessage(b []byte) (m message, rest []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return m, nil, fmt.Errorf("netlink sent %d bytes, too few for a message", len(b))
	}
	size := int(binary.NativeEndian.Uint32(b))
	if size < unix.SizeofNlMsghdr || size > len(b) {
		return m, nil, fmt.Errorf("netlink sent a message of %d bytes in a datagram of %d bytes", size, len(b))
	}
	m = message{
		typ:   binary.NativeEndian.Uint16(b[4:]),
		flags: binary.NativeEndian.Uint16(b[6:]),
		seq:   binary.NativeEndian.Uint32(b[8:]),
		data:  b[unix.SizeofNlMsghdr:size],
	}
	return m, b[min(aligned(size), len(b)):], nil
}

// errno returns the error in a message of type NLMSG_ERROR or NLMSG_DONE, or nil if the message reports success.
func (m message) errno() error {
	if len(m.data) < 4 {
		return nil
	}
	if e := int32(binary.NativeEndian.Uint32(m.data)); e != 0 {
		return unix.Errno(-e)
	}
	return nil
}
