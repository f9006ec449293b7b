// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// controlAddr is an abstract socket: it has no file. Only processes in the network namespace of the shell's instance
// can reach it.
var controlAddr = &net.UnixAddr{Net: "unix", Name: "@sim"}

// A control runs the shell's commands "on", "ec2" and "service" in a process outside of the instance. On the instance,
// each of these commands is a symbolic link to this program. The program sends its arguments to the control, together
// with its standard input, output and error.
type control struct {
	scene *paths.Scene
	other *instance // node2

	mu         sync.Mutex
	madeFaults []madeFault
	endService func() error // removes the Service that the command "service" has made; nil: no Service
}

// listen accepts commands from programs on the node, and runs these commands, until the caller calls stop.
func (c *control) listen(node *vpcsim.Instance) (stop func() error, err error) {
	var l *net.UnixListener
	if err := node.Do(func() error { l, err = net.ListenUnix("unix", controlAddr); return err }); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go c.serveConn(conn)
		}
	}()
	return func() error {
		err := l.Close()
		<-done
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.endService != nil {
			err = errors.Join(err, c.endService())
		}
		return err
	}, nil
}

func (c *control) serveConn(conn *net.UnixConn) {
	defer conn.Close()
	args, stdio, err := receiveArgs(conn)
	for _, f := range stdio {
		defer f.Close()
	}
	status := 1
	if err == nil {
		status, err = c.runCommand(conn, args, stdio)
	}
	if err != nil && len(stdio) == 3 {
		fmt.Fprintf(stdio[2], "%s: %v\n", args[0], err)
	}
	_, _ = conn.Write([]byte{byte(status)})
}

func (c *control) runCommand(conn *net.UnixConn, args []string, stdio []*os.File) (status int, err error) {
	if args[0] == "on" {
		return c.runOnNode2(conn, args[1:], stdio)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if args[0] == "service" {
		err = c.serviceCommand(args[1:], stdio[1])
	} else {
		err = c.ec2Command(args[1:], stdio[1])
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// runOnNode2 runs a command on node2. If the process "on" on node1 ends before the command, for example after Ctrl-C,
// runOnNode2 ends the command.
func (c *control) runOnNode2(conn *net.UnixConn, args []string, stdio []*os.File) (status int, err error) {
	if len(args) < 2 || args[0] != "node2" {
		return 2, errors.New("want node2 and a command")
	}
	p := c.other.command(args[1:])
	p.Stdin, p.Stdout, p.Stderr = stdio[0], stdio[1], stdio[2]
	// Start a new session for the command, because the terminal belongs to the session of the shell on node1.
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.Start(); err != nil {
		return 1, err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // returns when the process "on" ends, or when serveConn closes the connection
		select {
		case <-ended: // send no signal: the command has ended, so another process may have its PID
		default:
			_ = syscall.Kill(-p.Process.Pid, syscall.SIGTERM)
		}
	}()
	err = p.Wait()
	close(ended)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// askControl makes the control run a command, with the standard input, output and error of this process. It returns the
// command's exit status.
func askControl(args []string) int {
	conn, err := net.DialUnix("unix", nil, controlAddr)
	if err == nil {
		err = sendArgs(conn, args)
	}
	var status []byte
	if err == nil {
		status, err = io.ReadAll(conn)
	}
	if err != nil || len(status) != 1 {
		fmt.Fprintf(os.Stderr, "%s: this command works only in the shell of node1: %v\n", args[0], err)
		return 1
	}
	return int(status[0])
}

func sendArgs(conn *net.UnixConn, args []string) error {
	text, err := json.Marshal(args)
	if err == nil {
		_, _, err = conn.WriteMsgUnix(text, syscall.UnixRights(0, 1, 2), nil)
	}
	return err
}

func receiveArgs(conn *net.UnixConn) (args []string, stdio []*os.File, err error) {
	text, rights := make([]byte, 1<<17), make([]byte, syscall.CmsgSpace(3*4))
	n, oob, _, _, err := conn.ReadMsgUnix(text, rights)
	if err != nil {
		return nil, nil, err
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:oob])
	if err != nil || len(messages) != 1 {
		return nil, nil, fmt.Errorf("%d messages: %w", len(messages), err)
	}
	files, err := syscall.ParseUnixRights(&messages[0])
	for _, f := range files {
		syscall.CloseOnExec(f)
		stdio = append(stdio, os.NewFile(uintptr(f), "stdio"))
	}
	if err == nil {
		err = json.Unmarshal(text[:n], &args)
	}
	return args, stdio, err
}
