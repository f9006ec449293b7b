// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// locals has the addresses of one end of a tunnel.
var locals = []netip.Addr{netip.MustParseAddr("10.0.1.5"), netip.MustParseAddr("fd00:1::5")}

// tunneled makes a namespace with the addresses in locals.
func tunneled(t *testing.T) *nl.NS {
	t.Helper()
	nltest.Need(t, "fou")
	n, _ := nltest.NS(t, "pod")
	w := nl.Wiring{{n, nl.Veth{Name: "eth0", Peer: "eni0", PeerNS: n, MTU: 9001}}}
	for _, a := range locals {
		w = append(w, nl.Step{NS: n, Object: nl.Addr{Prefix: netip.PrefixFrom(a, a.BitLen()), Dev: "eth0",
			NoDAD: true}})
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTunnel adds and deletes tunnels of both families. Check must find tunnels that differ.
func TestTunnel(t *testing.T) {
	n := tunneled(t)
	before := nltest.Dump(t, n)
	for _, local := range locals {
		f := nl.FamilyOf(local)
		tunnel := nl.Tunnel{Name: "egress", Local: local, Port: 5555, MTU: nl.TunnelMTU(f, 9001), Group: 7}
		w := nl.Wiring{{n, nl.FOU{Local: local, Port: 5555}}, {n, tunnel}}
		if err := w.Check(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: Check before Add: %v", f, err)
		}
		for range 2 {
			if err := errors.Join(w.Add(), w.Check()); err != nil {
				t.Fatalf("%v: %v", f, err)
			}
		}
		l, err := n.LinkByName("egress")
		if a, port, is := l.Tunnel(); err != nil || a != local || port != 5555 || !is || l.Group != 7 || !l.Up {
			t.Errorf("%v: %+v, %v", f, l, err)
		}
		for want, other := range map[string]nl.Tunnel{
			"a tunnel of " + local.String() + " by UDP port 5555, not": {Name: "egress", Local: local, Port: 5556,
				MTU: tunnel.MTU},
			"mtu is": {Name: "egress", Local: local, Port: 5555, MTU: 1280},
		} {
			if err := (nl.Wiring{{n, other}}).Add(); !errors.Is(err, fs.ErrExist) ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%v: another tunnel of that name: %v, want %q", f, err, want)
			}
		}
		for range 2 {
			if err := w.Del(); err != nil {
				t.Fatalf("%v: %v", f, err)
			}
		}
		if d := cmp.Diff(before, nltest.Dump(t, n)); d != "" {
			t.Errorf("%v: -before +after\n%s", f, d)
		}
	}
}

// TestFOUPortInUse: another program of the pod already uses the port. The error of Add says so.
func TestFOUPortInUse(t *testing.T) {
	n := tunneled(t)
	for _, local := range locals {
		var c net.PacketConn
		err := n.Do(func() (err error) {
			c, err = net.ListenPacket("udp", netip.AddrPortFrom(local, 5555).String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		err = (nl.Wiring{{n, nl.FOU{Local: local, Port: 5555}}}).Add()
		if err == nil || !strings.Contains(err.Error(), "a program in the namespace uses UDP port 5555") {
			t.Errorf("%s: %v", local, err)
		}
		c.Close()
	}
}

// TestNoFOU: without FOU in the kernel, Supported and Add return ErrNoFOU. Without CAP_SYS_MODULE, the error is also
// ErrMayNotLoad.
func TestNoFOU(t *testing.T) {
	n, _ := nltest.NS(t, "pod")
	look := func() error {
		err := nl.FOU{}.Supported(n)
		add := (nl.Wiring{{n, nl.FOU{Local: netip.MustParseAddr("127.0.0.1"), Port: 5555}}}).Add()
		if (err == nil) != (add == nil) ||
			err != nil && (!errors.Is(err, nl.ErrNoFOU) || !errors.Is(add, nl.ErrNoFOU)) {
			t.Errorf("Supported reports %v, and Add %v", err, add)
		}
		return err
	}
	nltest.Without(t, unix.CAP_SYS_MODULE, func() {
		if err := look(); err != nil && !errors.Is(err, nl.ErrMayNotLoad) {
			t.Errorf("without CAP_SYS_MODULE: %v", err)
		}
	})
	if err := look(); errors.Is(err, nl.ErrMayNotLoad) {
		t.Error(err)
	}
}
