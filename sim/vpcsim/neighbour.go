// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// An instance may ask for the MAC address of any address in an ENI's subnet. For IPv4, the fabric's kernel answers for
// all addresses to which the fabric can forward (proxy_arp). For IPv6, the kernel answers only for listed addresses,
// and the list for a /80 prefix would be too long. So a goroutine of the fabric answers neighbour solicitations.

// answerNeighbours answers the neighbour solicitations of all ENIs until the fabric is closed.
func (f *Fabric) answerNeighbours() error {
	var fd int
	err := f.vpc.Do(func() (err error) { fd, err = listenSolicitations(); return err })
	if err != nil {
		return fmt.Errorf("answer neighbour solicitations: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "neighbour solicitations")
	f.vpc.open = append(f.vpc.open, socket)
	c, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	go func() {
		// The method Read returns when the socket is closed.
		_ = c.Read(func(fd uintptr) bool { return f.answerPending(int(fd)) })
	}()
	return nil
}

// listenSolicitations opens a socket that gets a copy of each neighbour solicitation on any link: packet(7).
func listenSolicitations() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	const load, jumpEqual, give = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ |
		unix.BPF_K, unix.BPF_RET | unix.BPF_K
	program := []unix.SockFilter{
		{Code: load, K: atNextHeader}, {Code: jumpEqual, K: syscall.IPPROTO_ICMPV6, Jf: 3},
		{Code: load, K: headerLen6}, {Code: jumpEqual, K: solicitation, Jf: 1},
		{Code: give, K: 0xffff}, {Code: give, K: 0},
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_IPV6)})
	}
	if err != nil {
		unix.Close(fd)
		return 0, os.NewSyscallError("filter", err)
	}
	return fd, nil
}

// bigEndian returns a number in network byte order, which packet(7) expects.
func bigEndian(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// answerPending answers all pending solicitations. The method Read of the socket's RawConn
// calls answerPending. With the result false, Read waits for more solicitations. The result true means that the socket
// is closed.
func (f *Fabric) answerPending(fd int) bool {
	for b := make([]byte, vpcMTU); ; {
		size, from, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			return err != unix.EAGAIN && err != unix.EINTR
		}
		sender, ok := from.(*unix.SockaddrLinklayer)
		if !ok || size < headerLen6+solicitationLen {
			continue
		}
		if answer := f.advertisement(net.HardwareAddr(sender.Addr[:sender.Halen]).String(), b[:size]); answer != nil {
			_ = unix.Sendto(fd, answer, 0, sender)
		}
	}
}

// Fields of the messages of RFC 4861, sections 4.3 and 4.4: offsets, lengths and values.
const (
	headerLen6      = 40
	atNextHeader    = 6
	atSource        = 8
	atTarget        = headerLen6 + 8
	solicitation    = 135
	solicitationLen = 24
	advertisement   = 136
	solicited       = 0x40 // the flag S
	targetMAC       = 2    // option: target link-layer address
	maxHops         = 255  // hosts ignore a message with a smaller hop limit, because it comes from another link
)

// advertisement returns the answer to a solicitation from the ENI with this MAC address. It returns nil if the ENI asks
// for its own address, or for the router's address: the kernel answers for the router. It also returns nil for
// duplicate address detection, where the source is the unspecified address (RFC 4862).
func (f *Fabric) advertisement(mac string, question []byte) []byte {
	source := netip.AddrFrom16([16]byte(question[atSource:]))
	target := netip.AddrFrom16([16]byte(question[atTarget:]))
	if source.IsUnspecified() || !target.IsGlobalUnicast() {
		return nil
	}
	for _, e := range f.EC2.ENIs() {
		hasTarget := func(p netip.Prefix) bool { return p.Contains(target) }
		if e.MAC == mac && !slices.ContainsFunc(eniPrefixes(e), hasTarget) {
			return advertise(target, source)
		}
	}
	return nil
}

// advertise returns a packet in which the router claims that it has the target address.
func advertise(target, to netip.Addr) []byte {
	hw, err := net.ParseMAC(routerMAC)
	if err != nil {
		panic(err) // routerMAC is a constant of this package
	}
	message := append([]byte{advertisement, 0, 0, 0, solicited, 0, 0, 0}, target.AsSlice()...)
	message = append(append(message, targetMAC, 1), hw...)
	header := []byte{0x60, 0, 0, 0, 0, byte(len(message)), syscall.IPPROTO_ICMPV6, maxHops}
	header = append(append(header, target.AsSlice()...), to.AsSlice()...)
	// RFC 4443, section 2.3: the checksum includes addresses, length and next header.
	pseudo := append(slices.Clone(header[atSource:]), 0, byte(len(message)), 0, syscall.IPPROTO_ICMPV6)
	binary.BigEndian.PutUint16(message[2:], checksum(slices.Concat(pseudo, message)))
	return append(header, message...)
}
