// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestLinkByMAC waits for a link that comes late, as an ENI does after AttachNetworkInterface.
func TestLinkByMAC(t *testing.T) {
	host, pod := two(t)
	veth := nl.Wiring{{host, nl.Veth{Name: "ens6", MAC: nearMAC, Peer: "far", PeerMAC: farMAC, PeerNS: pod}}}
	plugged := make(chan error)
	go func() {
		time.Sleep(50 * time.Millisecond)
		plugged <- veth.Add()
	}()
	l, err := host.LinkByMAC(t.Context(), "02:00:00:00:00:01")
	if err != nil {
		t.Fatal(err)
	}
	if err := <-plugged; err != nil {
		t.Fatal(err)
	}
	if l.Name != "ens6" {
		t.Errorf("got %s, want ens6", l.Name)
	}
	if l, err = host.LinkByMAC(t.Context(), nearMAC); err != nil || l.Name != "ens6" {
		t.Errorf("at once: got %s, %v", l.Name, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := host.LinkByMAC(ctx, "02:00:00:00:00:ff"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an address of no link: %v", err)
	}
	if _, err := host.LinkByMAC(ctx, "eth0"); err == nil {
		t.Error("no error for what is no MAC address")
	}
}

// TestLinksOf finds a link by its MAC address: under its first name, after a rename, and after a link above it has
// taken its first name.
func TestLinksOf(t *testing.T) {
	host, pod := two(t)
	const otherMAC = "02:00:00:00:00:99"
	veths := nl.Wiring{{host, nl.Veth{Name: "ens6", MAC: nearMAC, Peer: "far", PeerMAC: farMAC, PeerNS: pod}},
		{host, nl.Veth{Name: "other", MAC: otherMAC, Peer: "further", PeerNS: pod}}}
	if err := veths.Add(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		change, name string
		lists        bool
	}{
		{"true", "ens6", false},
		{"ip link set ens6 down; ip link set ens6 name ens7", "ens7", true},
		{"ip link add link ens7 name ens6 type macvlan mode passthru", "ens7", true},
		{"ip link del ens6; ip link del ens7", "", true},
	} {
		nltest.Shell(t, host, tt.change)
		links, err := host.LinksOf(map[string]string{nearMAC: "ens6"})
		_, listed := links[otherMAC]
		if got := links[nearMAC].Name; err != nil || got != tt.name || listed != tt.lists {
			t.Errorf("after %q: got %q, all links %v; want %q, %v; %v", tt.change, got, listed, tt.name, tt.lists, err)
		}
	}
}

// TestDo opens sockets in two namespaces. They exchange packets.
func TestDo(t *testing.T) {
	host, pod := two(t)
	w := nl.Wiring{
		{host, nl.Veth{Name: "near", Peer: "far", PeerNS: pod}},
		{host, nl.Addr{Prefix: netip.MustParsePrefix("10.0.0.1/24"), Dev: "near"}},
		{pod, nl.Addr{Prefix: netip.MustParsePrefix("10.0.0.2/24"), Dev: "far"}},
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	before, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var server net.PacketConn
	if err := pod.Do(func() (err error) {
		server, err = net.ListenPacket("udp4", "10.0.0.2:7")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var client net.Conn
	if err := host.Do(func() (err error) { client, err = net.Dial("udp4", "10.0.0.2:7"); return err }); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 9)
	_ = server.SetDeadline(time.Now().Add(time.Minute))
	if _, from, err := server.ReadFrom(b); err != nil || from.(*net.UDPAddr).IP.String() != "10.0.0.1" {
		t.Errorf("from %v, %v", from, err)
	}
	if err := pod.Do(func() error { return fs.ErrInvalid }); err != fs.ErrInvalid {
		t.Errorf("Do returned %v", err)
	}
	if after, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || after != before {
		t.Errorf("this thread is in %s, was in %s", after, before)
	}
}

// TestDoPanics: a panic in the function that Do calls reaches the caller of Do, with the stack of the function.
func TestDoPanics(t *testing.T) {
	host, pod := two(t)
	for what, do := range map[string]func(func() error) error{"host": host.Do, "pod": pod.Do} {
		func() {
			defer func() {
				if p := fmt.Sprint(recover()); !strings.HasPrefix(p, "boom") || !strings.Contains(p, "TestDoPanics") {
					t.Errorf("%s: panics with %.200s", what, p)
				}
			}()
			t.Errorf("%s: returned %v", what, do(func() error { panic("boom") }))
		}()
	}
}

// TestHost: Node returns the namespace of the calling thread.
func TestHost(t *testing.T) {
	other, _ := nltest.NS(t, "other")
	if err := (nl.Wiring{{other, nl.Veth{Name: "here", Peer: "there", PeerNS: other}}}).Add(); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]func(func() error) error{
		"the test's": func(f func() error) error { return f() },
		"another":    other.Do,
	} {
		err := in(func() error {
			host, err := nl.Node()
			if err != nil {
				return err
			}
			defer host.Close()
			_, err = host.LinkByName("here")
			if _, e := host.Sysctl("net/ipv4/conf/here/forwarding"); (e == nil) != (err == nil) {
				t.Errorf("%s namespace: link: %v, sysctl: %v", name, err, e)
			}
			return err
		})
		if (name == "another") != (err == nil) {
			t.Errorf("%s namespace: %v", name, err)
		}
	}
}

func TestSysctl(t *testing.T) {
	host, pod := two(t)
	key := "net/ipv4/conf/eth0.100/rp_filter"
	w := nl.Wiring{
		{host, nl.Veth{Name: "eth0.100", Peer: "far", PeerNS: pod}},
		{host, nl.Sysctl{Key: key, Value: "2"}},
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	if v, err := host.Sysctl(key); err != nil || v != "2" {
		t.Errorf("got %q, %v", v, err)
	}
	if err := (nl.Sysctl{Key: key, Value: "0"}).Check(host); err == nil || err.Error() != "the value is 2" {
		t.Errorf("Check: %v", err)
	}
	if err := (nl.Sysctl{Key: "net/ipv4/conf/absent/rp_filter", Value: "0"}).Add(host); !errors.Is(err,
		fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

// TestNames: the kernel would replace an empty name by one of its own, and cut a name that is too long. Add refuses
// both names.
func TestNames(t *testing.T) {
	host, pod := two(t)
	for _, name := range []string{"", "sixteen-bytes-16"} {
		if err := (nl.Veth{Name: name, Peer: "eth1", PeerNS: pod}).Add(host); err == nil {
			t.Errorf("a veth named %q", name)
		}
		if err := (nl.Veth{Name: "veth0", Peer: name, PeerNS: pod}).Add(host); err == nil {
			t.Errorf("a peer named %q", name)
		}
		if err := (nl.Veth{Name: name}).Del(host); err == nil {
			t.Errorf("deleted %q", name)
		}
	}
	if err := (nl.Veth{Name: "fifteen-bytes15", Peer: "eth1", PeerNS: pod}).Add(host); err != nil {
		t.Error(err)
	}
}

// BenchmarkWiring measures the netlink part of a pod's wiring.
func BenchmarkWiring(b *testing.B) {
	host, pod := two(b)
	w := pair(host, pod)
	for _, m := range []struct {
		name    string
		do      func() error
		between func() error
	}{{"Add", w.Add, w.Del}, {"Check", w.Check, nil}, {"AddAgain", w.Add, nil}, {"Del", w.Del, w.Add}} {
		if m.between == nil || m.name == "Del" {
			if err := w.Add(); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(m.name, func(b *testing.B) {
			for b.Loop() {
				if err := m.do(); err != nil {
					b.Fatal(err)
				}
				if m.between != nil {
					b.StopTimer()
					if err := m.between(); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			}
		})
	}
}
