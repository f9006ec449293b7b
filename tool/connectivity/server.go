// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package connectivity

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A server answers calls in a namespace. A caller connects, sends a line of JSON (see [call]), and then as many bytes
// as the line says. The server answers with a line of JSON (see [answer]). If a caller asks the server to call back,
// the server calls only the caller's address.
type server struct {
	ns *nl.NS
	// The server reports the addresses of this pod, and calls back from this pod. nil: the server does neither.
	pod      *pod
	listener *net.TCPListener
}

// A call is the line that a caller sends first.
type call struct {
	Size int    `json:"size"` // number of bytes after the line
	Back uint16 `json:"back"` // the caller's port to which the server calls back; 0: do not call back
}

// An answer is the line that a server sends.
type answer struct {
	Seen  netip.Addr   `json:"seen"` // the address of the caller, as the server sees it
	Bytes int64        `json:"bytes"`
	Pods  []netip.Addr `json:"pods"`
	Port  uint16       `json:"port"` // at which the pod answers
	// why the server could not call back; "": the server has called back, or the caller did not ask
	Back string `json:"back"`
}

// mostBytes is the maximum number of bytes that a caller may send.
const mostBytes = 1 << 20

// startServer begins to answer at a port in a namespace, and returns the server. If port is 0, the kernel chooses the
// port.
func startServer(n *nl.NS, port uint16, p *pod) (*server, error) {
	s := &server{ns: n, pod: p}
	err := n.Do(func() (err error) {
		s.listener, err = net.ListenTCP("tcp",
			net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.IPv6Unspecified(), port)))
		if err != nil { // a kernel without IPv6
			s.listener, err = net.ListenTCP("tcp4", &net.TCPAddr{Port: int(port)})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: open a port for the test: %w", n.Name, err)
	}
	go s.answerAll()
	return s, nil
}

func (s *server) port() uint16 { return uint16(s.listener.Addr().(*net.TCPAddr).Port) }

func (s *server) close() { s.listener.Close() }

// answerAll answers callers until close is called. It answers at most 16 callers at the same time.
func (s *server) answerAll() {
	turns := make(chan struct{}, 16)
	for {
		c, err := s.listener.AcceptTCP()
		if err != nil {
			return
		}
		turns <- struct{}{}
		go func() {
			defer func() { c.Close(); <-turns }()
			_ = c.SetDeadline(time.Now().Add(3 * pathTimeout))
			_ = s.answerCall(c)
		}()
	}
}

func (s *server) answerCall(c *net.TCPConn) error {
	r := bufio.NewReader(io.LimitReader(c, mostBytes))
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	var asked call
	if err := json.Unmarshal(line, &asked); err != nil {
		return err
	}
	a := answer{Seen: c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()}
	if a.Bytes, err = io.CopyN(io.Discard, r, int64(asked.Size)); err != nil {
		return err
	}
	if s.pod != nil {
		a.Pods, a.Port = s.pod.addrs, s.pod.server.port()
	}
	if asked.Back != 0 && s.pod != nil {
		ctx, cancel := context.WithTimeout(context.Background(), pathTimeout)
		defer cancel()
		to := netip.AddrPortFrom(a.Seen, asked.Back)
		if _, err := callServer(ctx, s.pod.ns, to, call{Size: smallCall}); err != nil {
			a.Back = err.Error()
		}
	}
	return json.NewEncoder(c).Encode(a)
}

// The numbers of bytes of a small call and of a large call. The packets of a large call are as large as the links
// allow.
const (
	smallCall = 16
	largeCall = 1 << 16
)

// errLarge means that a small call was answered, and a large call was not.
var errLarge = errors.New("small packets arrive, and large ones do not")

// callServer calls a server. The connection begins in the namespace n.
func callServer(ctx context.Context, n *nl.NS, to netip.AddrPort, what call) (a answer, err error) {
	c, err := dial(ctx, n, "tcp", to)
	if err != nil {
		return a, err
	}
	defer c.Close()
	if end, has := ctx.Deadline(); has {
		_ = c.SetDeadline(end)
	}
	if err := json.NewEncoder(c).Encode(what); err != nil {
		return a, err
	}
	if _, err := c.Write(make([]byte, what.Size)); err != nil {
		return a, err
	}
	line, err := bufio.NewReader(io.LimitReader(c, mostBytes)).ReadSlice('\n')
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(line, &a)
}

// dial makes a connection that begins in the namespace n.
func dial(ctx context.Context, n *nl.NS, network string, to netip.AddrPort) (c net.Conn, err error) {
	err = n.Do(func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, network, to.String())
		return err
	})
	return c, err
}
