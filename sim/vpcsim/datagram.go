// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// datagrams wraps a UDP socket. The values of the fields depend on the socket's family.
type datagrams struct {
	net.Conn
	raw      syscall.RawConn
	level    int // the level of the socket options
	discover int // the option for path MTU discovery
	mtu      int // the option that returns the MTU
	headers  int // the size of the IP header and the UDP header in bytes
}

func newDatagrams(c net.Conn, to netip.Addr) (datagrams, error) {
	udp, ok := c.(*net.UDPConn)
	if !ok {
		return datagrams{}, fmt.Errorf("%T sends no datagrams", c)
	}
	raw, err := udp.SyscallConn()
	if to.Is6() {
		return datagrams{c, raw, syscall.IPPROTO_IPV6, syscall.IPV6_MTU_DISCOVER, syscall.IPV6_MTU, 40 + 8}, err
	}
	return datagrams{c, raw, syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_MTU, 20 + 8}, err
}

// control calls the function f with the file descriptor of the socket.
func (d datagrams) control(f func(fd int) error) (err error) {
	if failed := d.raw.Control(func(fd uintptr) { err = f(int(fd)) }); failed != nil {
		return failed
	}
	return err
}

// forbidFragments makes the kernel refuse a datagram that is too large for the path. By default, the kernel would send
// fragments.
func (d datagrams) forbidFragments() error {
	return d.control(func(fd int) error {
		return syscall.SetsockoptInt(fd, d.level, d.discover, syscall.IP_PMTUDISC_DO)
	})
}

// pathMTU returns the path MTU that the kernel knows: ip(7), IP_MTU.
func (d datagrams) pathMTU() (mtu int, err error) {
	err = d.control(func(fd int) (err error) { mtu, err = syscall.GetsockoptInt(fd, d.level, d.mtu); return err })
	return mtu, err
}

// send sends a datagram, and returns the source address that the other end saw. sizeFor returns the size of the
// datagram for a path MTU. If a router drops the datagram because it is too big, send tries again with the smaller path
// MTU. If a datagram is lost for another reason, send returns an error.
func (d datagrams) send(sizeFor func(mtu int) int) (seen netip.AddrPort, err error) {
	for end := time.Now().Add(answerTimeout); time.Now().Before(end); {
		mtu, err := d.pathMTU()
		if err != nil {
			return seen, err
		}
		sent := sizeFor(mtu)
		if _, err := d.Write(make([]byte, sent)); err != nil && !errors.Is(err, syscall.EMSGSIZE) {
			return seen, err
		}
		for now := mtu; now == mtu && time.Now().Before(end); {
			answer, err := d.awaitAnswer()
			if err == nil && answer != nil {
				return parseAnswer(answer, sent)
			}
			if err == nil {
				now, err = d.pathMTU()
			}
			if err != nil {
				return seen, err
			}
		}
	}
	return seen, fmt.Errorf("no answer: %w", os.ErrDeadlineExceeded)
}

// awaitAnswer waits for an answer. After pollInterval, it returns nil.
func (d datagrams) awaitAnswer() ([]byte, error) {
	if err := d.SetReadDeadline(time.Now().Add(pollInterval)); err != nil {
		return nil, err
	}
	answer := make([]byte, 99)
	n, err := d.Read(answer)
	// The kernel returns EMSGSIZE if a router has reported that a packet was too big: udp(7).
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.EMSGSIZE) {
		return nil, nil
	}
	return answer[:n], err
}

// PathMTU finds out the path MTU to a port where a Namespace answers. It returns the size in bytes of the first packet
// that the other end answered, and the source address that the other end saw. Each packet is as large as the path MTU
// that the kernel knows, and no router fragments it.
func (n *Namespace) PathMTU(to netip.AddrPort) (mtu int, seen netip.AddrPort, err error) {
	err = n.Do(func() error {
		c, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		d, err := newDatagrams(c, to.Addr())
		if err != nil {
			return err
		}
		if err := d.forbidFragments(); err != nil {
			return err
		}
		seen, err = d.send(func(now int) int { mtu = now; return now - d.headers })
		return err
	})
	if err != nil {
		return 0, seen, fmt.Errorf("%s: path MTU to %s: %w", n.Name, to.Addr(), err)
	}
	return mtu, seen, nil
}
