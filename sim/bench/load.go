// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A load is a kind of traffic. It consists of many equal operations.
type load struct {
	name string
	unit string // what one operation does
	ops  int    // how many operations to measure
	run  func(to netip.AddrPort, ops int) time.Duration
}

var loads = []load{
	{"rr", "request and response of a byte", 1000, measureRequests},
	{"crr", "connect, request, response, close", 200, measureConnections},
	{"bulk", "128 KiB one way", 60, measureStream},
}

// loadPort is the port on which the function "serve" listens.
const loadPort = 5001

// The first byte from a client tells the server what to do with all later bytes: send them back (echo), or only read
// them (sink).
const (
	echo = 'e'
	sink = 's'
)

// A socket is one end of a connection. Its methods make system calls without Go's scheduler, whose work is not a cost
// of a pod's traffic. A system call blocks the whole thread, and its failure ends the process.
type socket uintptr

func newSocket() socket {
	return socket(rawSyscall("socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
}

func rawSyscall(what string, trap, a, b, c uintptr) uintptr {
	for {
		r, _, errno := unix.RawSyscall(trap, a, b, c)
		switch errno {
		case 0:
			return r
		case unix.EINTR:
		default:
			fmt.Fprintf(os.Stderr, "bench: load: %s: %v\n", what, errno)
			os.Exit(1)
		}
	}
}

func sockaddr(to netip.AddrPort) *unix.RawSockaddrInet4 {
	return &unix.RawSockaddrInet4{Family: unix.AF_INET, Port: to.Port()<<8 | to.Port()>>8, Addr: to.Addr().As4()}
}

func (s socket) setOption(level, name int) {
	on := int32(1)
	if _, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(s), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&on)), unsafe.Sizeof(on), 0); errno != 0 {
		fmt.Fprintln(os.Stderr, "bench: load: setsockopt:", errno)
		os.Exit(1)
	}
}

func (s socket) read(b []byte) int {
	return int(rawSyscall("read", unix.SYS_READ, uintptr(s), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b))))
}

func (s socket) write(b []byte) {
	for len(b) > 0 {
		b = b[rawSyscall("write", unix.SYS_WRITE, uintptr(s), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b))):]
	}
}

func (s socket) close() { rawSyscall("close", unix.SYS_CLOSE, uintptr(s), 0, 0) }

// dial connects, and sends the first byte of the connection: echo or sink.
func dial(to netip.AddrPort, what byte) socket {
	s, addr := newSocket(), sockaddr(to)
	rawSyscall("connect to "+to.String(), unix.SYS_CONNECT, uintptr(s), uintptr(unsafe.Pointer(addr)),
		unsafe.Sizeof(*addr))
	s.setOption(unix.IPPROTO_TCP, unix.TCP_NODELAY)
	s.write([]byte{what})
	return s
}

// serve answers one connection after another, for ever.
func serve() {
	l, addr := newSocket(), sockaddr(netip.AddrPortFrom(netip.IPv4Unspecified(), loadPort))
	l.setOption(unix.SOL_SOCKET, unix.SO_REUSEADDR)
	rawSyscall("bind", unix.SYS_BIND, uintptr(l), uintptr(unsafe.Pointer(addr)), unsafe.Sizeof(*addr))
	rawSyscall("listen", unix.SYS_LISTEN, uintptr(l), 16, 0)
	fmt.Println("listening")
	b := make([]byte, 128<<10)
	for {
		s := socket(rawSyscall("accept", unix.SYS_ACCEPT, uintptr(l), 0, 0))
		s.setOption(unix.IPPROTO_TCP, unix.TCP_NODELAY)
		s.answer(b)
		s.close()
	}
}

func (s socket) answer(b []byte) {
	if s.read(b[:1]) == 0 {
		return
	}
	what := b[0]
	for {
		n := s.read(b)
		switch {
		case n == 0:
			if what == sink {
				s.write(b[:1]) // all bytes have arrived
			}
			return
		case what == echo:
			s.write(b[:n])
		}
	}
}

// measureRequests returns the time for requests of one byte and their responses of one byte, on one connection.
func measureRequests(to netip.AddrPort, ops int) time.Duration {
	s, b := dial(to, echo), []byte{0}
	const warm = 100
	var start time.Time
	for i := range warm + ops {
		if i == warm {
			start = time.Now()
		}
		s.write(b)
		s.read(b)
	}
	return time.Since(start)
}

// measureConnections returns the time for connections one after the other, each with a request and a response of one
// byte.
func measureConnections(to netip.AddrPort, ops int) time.Duration {
	b := []byte{0}
	const warm = 20
	var start time.Time
	for i := range warm + ops {
		if i == warm {
			start = time.Now()
		}
		s := dial(to, echo)
		s.write(b)
		s.read(b)
		s.close()
	}
	return time.Since(start)
}

// measureStream sends bytes, and returns the time until the server has read all of them.
func measureStream(to netip.AddrPort, ops int) time.Duration {
	s, b := dial(to, sink), make([]byte, 128<<10)
	start := time.Now()
	for range ops {
		s.write(b)
	}
	rawSyscall("shutdown", unix.SYS_SHUTDOWN, uintptr(s), unix.SHUT_WR, 0)
	s.read(b[:1])
	return time.Since(start)
}

// runGenerator is the main function of the process in a pod. args is "serve", or the name of a load, the destination
// and the number of operations.
func runGenerator(args []string) error {
	if args[0] == "serve" {
		serve()
	}
	for _, l := range loads {
		if l.name == args[0] && len(args) == 3 {
			to, err := netip.ParseAddrPort(args[1])
			if err != nil {
				return err
			}
			ops, err := strconv.Atoi(args[2])
			if err != nil {
				return err
			}
			fmt.Println(l.run(to, ops).Nanoseconds())
			return nil
		}
	}
	return fmt.Errorf("there is no load %q", args)
}
