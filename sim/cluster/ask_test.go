// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// httpFrom returns an HTTP client in a network namespace, with a new connection for each request.
func httpFrom(ns *nl.NS, patience time.Duration) *http.Client {
	dial := func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		if e := ns.Do(func() error {
			conn, err = new(net.Dialer).DialContext(ctx, network, addr)
			return nil
		}); e != nil {
			return nil, e
		}
		return conn, err
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: patience}
}

func get(from *nl.NS, url string) (string, error) { return getWithin(from, url, 10*time.Second) }

func getWithin(from *nl.NS, url string, patience time.Duration) (string, error) {
	r, err := httpFrom(from, patience).Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, r.Status, b)
	}
	return string(b), err
}

// port is the HTTP port of netexec, a server of agnhost. The UDP port of netexec is port + 1.
const port = 8080

func netexec(a netip.Addr, path string, query ...string) string {
	v := url.Values{}
	for i := 0; i < len(query); i += 2 {
		v.Set(query[i], query[i+1])
	}
	return fmt.Sprintf("http://%s/%s?%s", netip.AddrPortFrom(a, port), path, v.Encode())
}

// call makes a pod call an address by http or udp. It returns the source address that the other end saw.
func (w *world) call(from pod, protocol string, to netip.AddrPort) (seen netip.Addr, err error) {
	answer, err := w.dial(from, protocol, to, "clientip")
	if err != nil {
		return seen, err
	}
	a, err := netip.ParseAddrPort(answer)
	return a.Addr().Unmap(), err
}

// dial makes a pod send a request to a netexec in another pod or host, and returns the answer.
func (w *world) dial(from pod, protocol string, to netip.AddrPort, request string) (string, error) {
	body, err := get(w.Master.NS, netexec(from.addr, "dial", "host", to.Addr().String(), "port", fmt.Sprint(to.Port()),
		"protocol", protocol, "request", request, "tries", "1"))
	if err != nil {
		return "", fmt.Errorf("dial by %s: %w", from.name, err)
	}
	var answer struct{ Responses, Errors []string }
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return "", err
	}
	if len(answer.Responses) != 1 {
		return "", fmt.Errorf("%s calls %s by %s: %v", from.name, to, protocol, answer.Errors)
	}
	return answer.Responses[0], nil
}

func (w *world) sh(in pod, command string) (string, error) {
	body, err := get(w.Master.NS, netexec(in.addr, "shell", "cmd", command))
	if err != nil {
		return "", fmt.Errorf("%s: %w", in.name, err)
	}
	var answer struct{ Output, Error string }
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return "", err
	}
	if answer.Error != "" {
		return answer.Output, fmt.Errorf("%s: %s: %s: %s", in.name, command, answer.Error, answer.Output)
	}
	return strings.TrimSpace(answer.Output), nil
}

// seenBy calls a netexec from a namespace. It returns the source address that the netexec saw.
func seenBy(from *nl.NS, at netip.AddrPort) (netip.Addr, error) {
	body, err := get(from, fmt.Sprintf("http://%s/clientip", at))
	if err != nil {
		return netip.Addr{}, err
	}
	a, err := netip.ParseAddrPort(body)
	return a.Addr().Unmap(), err
}
