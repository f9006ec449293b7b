// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// serve answers each caller by TCP and UDP with the caller's source address. The answer to a datagram is as long as the
// datagram.
func serve(t testing.TB, n *nl.NS, addr string) {
	t.Helper()
	listen(t, n, addr, func(c net.Conn) { fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).IP) })
	var u net.PacketConn
	if err := n.Do(func() (err error) { u, err = net.ListenPacket("udp", addr); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	go func() {
		for b := make([]byte, 1<<16); ; {
			k, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			answer := make([]byte, max(k, len(b[:45])))
			copy(answer, from.(*net.UDPAddr).IP.String())
			u.WriteTo(answer, from)
		}
	}()
}

// listen calls the function serve with each connection, and then closes the connection.
func listen(t testing.TB, n *nl.NS, addr string, serve func(net.Conn)) {
	t.Helper()
	var l net.Listener
	if err := n.Do(func() (err error) { l, err = net.Listen("tcp", addr); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { serve(c); c.Close() }()
		}
	}()
}

// drain reads all data of a connection, and answers with the number of bytes.
func drain(c net.Conn) {
	n, _ := io.Copy(io.Discard, c)
	fmt.Fprint(c, n)
}

// call connects and returns the server's answer.
func call(n *nl.NS, network, to string) (string, error) { return send(n, network, to, 1) }

// send sends bytes, and returns the server's answer.
func send(n *nl.NS, network, to string, bytes int) (answer string, err error) {
	err = n.Do(func() (err error) { answer, err = exchange(network, to, bytes); return err })
	return answer, err
}

// exchange is send in the thread's current namespace.
func exchange(network, to string, bytes int) (string, error) {
	c, err := net.DialTimeout(network, to, time.Minute)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	if strings.HasPrefix(network, "udp") {
		c.Write(make([]byte, bytes))
		b := make([]byte, 1<<16)
		k, err := c.Read(b)
		return strings.TrimRight(string(b[:k]), "\x00"), err
	}
	if bytes > 1 {
		c.Write(make([]byte, bytes))
		c.(*net.TCPConn).CloseWrite()
	}
	b, err := io.ReadAll(c)
	return string(b), err
}
