// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// watchSpoofed opens a socket that receives the packets in the drain "spoofed". [Fabric.Spoofed] reads the socket.
func (f *Fabric) watchSpoofed() error {
	return f.vpc.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		f.spoofed = os.NewFile(uintptr(fd), drainSpoofed)
		link, err := f.vpc.LinkByName(drainSpoofed)
		if err != nil {
			return err
		}
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: link.Index,
			Protocol: binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))}))
	})
}

// Spoofed describes each spoofed packet since the last call of Spoofed. A packet is spoofed if the sending ENI does not
// have the packet's source address. If the buffer of the socket becomes full, later packets are missing.
func (f *Fabric) Spoofed() (packets []string, err error) {
	raw, err := f.spoofed.SyscallConn()
	if err != nil {
		return nil, err
	}
	packet := make([]byte, 128)
	err = raw.Control(func(fd uintptr) {
		for {
			n, _, err := unix.Recvfrom(int(fd), packet, 0)
			if err != nil {
				return // no packet is left
			}
			packets = append(packets, packetText(packet[:n]))
		}
	})
	return packets, err
}

// packetText returns the addresses, the protocol, the TTL, the ports and the TCP flags of an IPv4 packet as text. It
// shows any other packet as hexadecimal numbers.
func packetText(p []byte) string {
	const header = 20
	if len(p) < header+14 || p[0]>>4 != 4 {
		return fmt.Sprintf("% x", p)
	}
	from, _ := netip.AddrFromSlice(p[12:16])
	to, _ := netip.AddrFromSlice(p[16:20])
	data := p[header:]
	return fmt.Sprintf("from %s to %s, protocol %d, ports %d and %d, flags %#x, TTL %d", from, to, p[9],
		binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:]), data[13], p[8])
}
