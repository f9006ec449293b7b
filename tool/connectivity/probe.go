// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package connectivity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"syscall"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ask"
)

// errRefused and errSilent are the errors of a call that no program has answered.
var (
	errRefused = errors.New("the connection is refused")
	errSilent  = errors.New("no answer")
)

// connError adds errRefused to the error of a refused connection, and errSilent to the error of a timeout.
func connError(err error) error {
	var timeout net.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w", errRefused, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return err
}

func tryConnect(ctx context.Context, n *nl.NS, to netip.AddrPort) error {
	c, err := dial(ctx, n, "tcp", to)
	if err != nil {
		return connError(err)
	}
	return c.Close()
}

// requestHTTP sends an HTTP request. Any HTTP answer is a success.
func requestHTTP(ctx context.Context, n *nl.NS, to netip.AddrPort) error {
	c, err := dial(ctx, n, "tcp", to)
	if err != nil {
		return connError(err)
	}
	defer c.Close()
	if end, has := ctx.Deadline(); has {
		_ = c.SetDeadline(end)
	}
	if _, err := c.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		return connError(err)
	}
	answer := make([]byte, 5)
	if _, err := c.Read(answer); err != nil {
		return connError(err)
	}
	if !bytes.HasPrefix(answer, []byte("HTTP")) {
		return fmt.Errorf("the answer is not HTTP: %q", answer)
	}
	return nil
}

// lookUpName asks a DNS server for the addresses of a name. The answer that the name does not exist is also a success.
func lookUpName(ctx context.Context, n *nl.NS, server netip.AddrPort, name string) error {
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dial(ctx, n, network, server)
	}}
	_, err := r.LookupNetIP(ctx, "ip", name)
	if dns, is := errors.AsType[*net.DNSError](err); is && dns.IsNotFound {
		return nil
	}
	return connError(err)
}

// resolveNeighbor makes the kernel ask a router for its MAC address, and waits for the answer. For this, it sends a
// datagram to a port that no router uses.
func resolveNeighbor(ctx context.Context, n *nl.NS, a netip.Addr) error {
	const discard = 9
	to := netip.AddrPortFrom(a, discard)
	if a.IsLinkLocalUnicast() {
		to = netip.AddrPortFrom(a.WithZone("eth0"), discard)
	}
	c, err := dial(ctx, n, "udp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte{0}); err != nil {
		return err
	}
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if is, err := ask.Answered(n, "eth0", a.WithZone("")); err != nil || is {
			return err
		}
	}
	return fmt.Errorf("%w to the request for the gateway's MAC address", errSilent)
}

// kubeletConfigs are the paths at which kubelets of the usual distributions have their configuration.
var kubeletConfigs = []string{"/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet/config.json",
	"/etc/kubernetes/kubelet/kubelet-config.json", "/var/lib/kubelet/kubelet-config.yaml"}

// clusterDNS matches the first DNS server in the configuration of a kubelet, in YAML or JSON.
var clusterDNS = regexp.MustCompile(`(?s)"?clusterDNS"?:\s*(?:\[|-)\s*["']?([0-9a-fA-F.:]+)`)

// KubeletDNS returns the DNS server that the kubelet gives to pods, or the zero address if no configuration names one.
func KubeletDNS() (a netip.Addr) {
	for _, file := range kubeletConfigs {
		text, err := os.ReadFile(file)
		if m := clusterDNS.FindSubmatch(text); err == nil && m != nil {
			if a, err = netip.ParseAddr(string(m[1])); err == nil {
				return a
			}
		}
	}
	return a
}
