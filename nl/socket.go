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

// A socket is a netlink socket. The socket stays in the namespace in which it was opened, whichever thread uses it.
//
// The socket of package netlink is slower. That socket waits for answers in the runtime's poller, and reads each answer
// into 64 kB of a stack, which must grow for this buffer. Our socket need not wait: the kernel's answer is ready when
// write(2) returns (netlink_unicast).
type socket struct {
	fd  int
	seq uint32 // of the last request
}

// rooms are buffers for answers. Each buffer has room for the largest answer, but most answers are small. So receive
// copies an answer, and reads the next answer into the same buffer.
var rooms = sync.Pool{New: func() any { return new([nl.RECEIVE_BUFFER_SIZE]byte) }}

// netlink opens a socket of a netlink family in the namespace.
func (n *NS) netlink(family int) (*socket, error) {
	fd, err := n.openSocket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK, family)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// Any process may send to a netlink socket. But if the socket is connected to the kernel, only the kernel may send
	// to it (netlink_getsockbyportid).
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	// Kernels before 4.20 do not have this option. The answers of such kernels have more objects than the request asks
	// for. So the functions that read an answer leave out all other objects.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return &socket{fd: fd}, nil
}

func (s *socket) close() { unix.Close(s.fd) }

// ErrUnanswered reports that the kernel got a request, but its answer was lost. The kernel may
// have carried out the request.
var ErrUnanswered = errors.New("netlink has not answered")

// exchange sends a request, and returns the kernel's answers: all answers of a dump, or the only answer. If answer is
// not 0, exchange returns only answers of this type.
//
// With the flag NLM_F_ACK, the caller only wants to know whether the request succeeds. The kernel reports a failure
// before write(2) returns. So if there is no report, the request has succeeded, and exchange need not ask for an
// acknowledgement. If the kernel has no memory for the report, read(2) fails with ENOBUFS (netlink_ack).
func (s *socket) exchange(
	typ, flags int, answer uint16, head nl.NetlinkRequestData, attrs []attribute,
) (answers [][]byte, err error) {
	if err := s.send(typ, flags&^unix.NLM_F_ACK, head, attrs); err != nil {
		return nil, err
	}
	return s.collect(typ, answer, flags&unix.NLM_F_ACK != 0)
}

// send sends a request. The kernel writes the first part of a dump before send returns, and each further part when the
// part before it is read.
func (s *socket) send(typ, flags int, head nl.NetlinkRequestData, attrs []attribute) error {
	s.seq++
	_, err := unix.Write(s.fd, encode(typ, flags, s.seq, head, attrs))
	return os.NewSyscallError("write", err)
}

// collect returns the answers to the last request. If silent is set, a missing answer is a success.
func (s *socket) collect(typ int, answer uint16, silent bool) (answers [][]byte, err error) {
	// full is a size in bytes. A part of a dump that is at least this large may have had no room for one more message.
	// The kernel's smallest buffer for a part has 3.7 kB.
	const full = 3 << 10
	interrupted := false
	for {
		b, err := s.receive()
		switch {
		case silent && err == errNothing:
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrUnanswered, err)
		}
		earlier, size := len(answers), len(b)
		for len(b) > 0 {
			var m message
			if m, b, err = cut(b); err != nil {
				return nil, err
			}
			if m.seq != s.seq { // the answer to an earlier exchange that failed
				continue
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			done := m.flags&unix.NLM_F_MULTI == 0
			switch {
			case m.typ == unix.NLMSG_ERROR, m.typ == unix.NLMSG_DONE:
				done, err = true, m.errno()
			case answer == 0, answer == m.typ:
				answers = append(answers, m.data)
				interrupted = interrupted || earlier > 0 && unmarked(typ, m.data)
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
		interrupted = interrupted || size > full && len(answers) > 0 && unmarked(typ, answers[0])
	}
}

// unmarked reports whether a message belongs to a dump that the kernel does not mark if a change interrupts it. Such
// dumps are the dumps of rules (dump_rules), of IPv6 routes (fib6_dump_table), and of neighbours (neigh_dump_table).
// The kernel counts the objects that it has sent, and begins the next part at that count. So the next part may lack
// objects that have moved towards the front. Objects move after a deletion of rules or neighbours, after deletions and
// additions of IPv6 routes, and when the table of neighbours grows.
//
// So collect treats such a dump as interrupted if it has more than one part, or if a full part comes before its end.
// The first part of a socket's first dump has up to 3.7 kB. Later parts have up to 32 kB, because the first read has
// shown the kernel that the reader has room (netlink_dump).
func unmarked(typ int, data []byte) bool {
	return typ == unix.RTM_GETRULE || typ == unix.RTM_GETNEIGH ||
		typ == unix.RTM_GETROUTE && len(data) > 0 && data[0] == unix.AF_INET6
}

// encode makes a message of a header and attributes.
func encode(typ, flags int, seq uint32, head nl.NetlinkRequestData, attrs []attribute) []byte {
	ne, data := binary.NativeEndian, head.Serialize()
	size := unix.SizeofNlMsghdr + aligned(len(data))
	for _, a := range attrs {
		size += len(a)
	}
	b := ne.AppendUint32(make([]byte, 0, size), uint32(size))
	b = ne.AppendUint16(b, uint16(typ))
	b = ne.AppendUint16(b, uint16(unix.NLM_F_REQUEST|flags))
	b = ne.AppendUint32(b, seq)
	b = ne.AppendUint32(b, 0) // the kernel knows the sender
	b = append(b, data...)
	b = b[:unix.SizeofNlMsghdr+aligned(len(data))]
	for _, a := range attrs {
		b = append(b, a...)
	}
	return b
}

// errNothing reports that the kernel has sent nothing.
var errNothing = errors.New("there is no answer")

// receive reads one datagram.
func (s *socket) receive() ([]byte, error) {
	room := rooms.Get().(*[nl.RECEIVE_BUFFER_SIZE]byte)
	defer rooms.Put(room)
	for {
		switch n, err := unix.Read(s.fd, room[:]); {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return nil, errNothing
		case err != nil:
			return nil, os.NewSyscallError("read", err)
		case n == len(room): // and maybe more. The kernel's answers are smaller (netlink_dump: 32 kB).
			return nil, fmt.Errorf("the kernel's answer has %d bytes or more: %w", n, unix.EMSGSIZE)
		default:
			return bytes.Clone(room[:n]), nil
		}
	}
}

// A message is a struct nlmsghdr and its data, netlink(7).
type message struct {
	typ, flags uint16
	seq        uint32
	data       []byte
}

// cut takes the first message from b.
func cut(b []byte) (m message, rest []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return m, nil, fmt.Errorf("netlink sent %d bytes, which are no message", len(b))
	}
	size := int(binary.NativeEndian.Uint32(b))
	if size < unix.SizeofNlMsghdr || size > len(b) {
		return m, nil, fmt.Errorf("netlink sent a message whose length is %d, in %d bytes", size, len(b))
	}
	m = message{
		typ:   binary.NativeEndian.Uint16(b[4:]),
		flags: binary.NativeEndian.Uint16(b[6:]),
		seq:   binary.NativeEndian.Uint32(b[8:]),
		data:  b[unix.SizeofNlMsghdr:size],
	}
	return m, b[min(aligned(size), len(b)):], nil
}

// errno returns the kernel's error in the last message of an exchange, or nil.
func (m message) errno() error {
	if len(m.data) < 4 {
		return nil
	}
	if e := int32(binary.NativeEndian.Uint32(m.data)); e != 0 {
		return unix.Errno(-e)
	}
	return nil
}
