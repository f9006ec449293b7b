// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// A daemon is an SSH server on an instance. Like cloud-init, it takes its keys from the user data and the key pair of
// the launch. Like sshd(8) by default, it executes commands and forwards connections.
type daemon struct {
	*vpcsim.Instance
	command func(context.Context, string, ...string) *exec.Cmd // returns a command that runs on the instance
}

// serve starts the server. The server runs until the instance's namespace or the listener is closed.
func (d daemon) serve() (net.Listener, error) {
	c, err := d.config()
	if err != nil {
		return nil, err
	}
	var l net.Listener
	err = d.Do(func() (err error) {
		l, err = net.Listen("tcp4", ":"+strconv.Itoa(sshPort))
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go d.connection(conn, c)
		}
	}()
	return l, nil
}

func (d daemon) config() (*ssh.ServerConfig, error) {
	userData, err := metadata(d.Instance, "/latest/user-data")
	if err != nil {
		return nil, err
	}
	_, key, found := strings.Cut(userData, "ed25519_private: |\n")
	key, _, ended := strings.Cut(key, "  ed25519_public:")
	if !found || !ended || !strings.HasPrefix(userData, "#cloud-config\n") ||
		!strings.Contains(userData, "runcmd:\n  - [shutdown, -h, \"+60\"]") {
		return nil, fmt.Errorf("user data: %s", userData)
	}
	host, err := ssh.ParsePrivateKey([]byte(strings.ReplaceAll(key, "    ", "")))
	if err != nil {
		return nil, fmt.Errorf("the host key of the user data: %w", err)
	}
	line, err := metadata(d.Instance, "/latest/meta-data/public-keys/0/openssh-key")
	if err != nil {
		return nil, err
	}
	allowed, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return nil, err
	}
	c := &ssh.ServerConfig{PublicKeyCallback: func(m ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		if m.User() != "admin" || !bytes.Equal(k.Marshal(), allowed.Marshal()) {
			return nil, errors.New("who are you?")
		}
		return &ssh.Permissions{}, nil
	}}
	c.AddHostKey(host)
	return c, nil
}

func (d daemon) connection(conn net.Conn, c *ssh.ServerConfig) {
	defer conn.Close()
	_, channels, requests, err := ssh.NewServerConn(conn, c)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for n := range channels {
		switch n.ChannelType() {
		case "session":
			go d.session(n)
		case "direct-tcpip":
			go d.forward(n)
		default:
			_ = n.Reject(ssh.UnknownChannelType, n.ChannelType())
		}
	}
}

// forward forwards a connection (RFC 4254, section 7.2).
func (d daemon) forward(n ssh.NewChannel) {
	var to struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	var conn net.Conn
	err := ssh.Unmarshal(n.ExtraData(), &to)
	if err == nil {
		err = d.Do(func() (err error) {
			conn, err = net.Dial("tcp", net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))))
			return err
		})
	}
	if err != nil {
		_ = n.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer conn.Close()
	ch, requests, err := n.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	go ssh.DiscardRequests(requests)
	go func() {
		_, _ = io.Copy(conn, ch)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(ch, conn)
}

// session executes one command (RFC 4254, section 6.5).
func (d daemon) session(n ssh.NewChannel) {
	ch, requests, err := n.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	for r := range requests {
		var command struct{ Text string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &command) != nil || d.command == nil {
			_ = r.Reply(false, nil)
			continue
		}
		_ = r.Reply(true, nil)
		c := d.command(background, "sh", "-c", command.Text)
		c.Stdin, c.Stdout, c.Stderr = nil, ch, ch.Stderr()
		status := struct{ Status uint32 }{d.execute(c, ch)}
		_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(&status))
		return
	}
}

// execute runs a command with the given standard input, and returns its exit status. A command may exit before it has
// read all of its input.
func (d daemon) execute(c *exec.Cmd, stdin io.Reader) uint32 {
	in, err := c.StdinPipe()
	if err != nil {
		return 255
	}
	if err := c.Start(); err != nil {
		return 255
	}
	go func() {
		_, _ = io.Copy(in, stdin)
		in.Close()
	}()
	_ = c.Wait()
	return uint32(c.ProcessState.ExitCode())
}
