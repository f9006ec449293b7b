// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim_test

import (
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim"
)

func TestMTU(t *testing.T) {
	const headers = 20 + 8 // IP's and UDP's
	f := newFabric(t)
	a, b := run(t, f, "a", "subnet-nodes"), run(t, f, "b", "subnet-private")
	send := func(to netip.Addr, size int) {
		t.Helper()
		if err := a.Do(func() error { return datagram(netip.Addr{}, to, size-headers) }); err != nil {
			t.Error(err)
		}
	}
	for to, want := range map[netip.Addr]int{b.Addr(): 9001, vpcsim.InternetAddr: 1500} {
		send(to, 9001) // if it is too big the fabric says so, and the kernel remembers
		var got int
		for end := time.Now().Add(10 * time.Second); got != want && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if err := a.Do(func() (err error) { got, err = pathMTU(to); return err }); err != nil {
				t.Fatal(err)
			}
		}
		if got != want {
			t.Errorf("the path to %s has MTU %d, want %d", to, got, want)
		}
	}
	drops(t, f, vpcsim.Drops{})
}

// pathMTU is what the kernel knows of the path to an address: ip(7), IP_MTU.
func pathMTU(to netip.Addr) (mtu int, err error) {
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port)))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	control := raw.Control(func(fd uintptr) {
		mtu, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU)
	})
	if control != nil {
		return 0, control
	}
	return mtu, err
}
