// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package simtest builds the worlds of tests around the simulators. What it builds ends with the test.
//
// A Fabric is a VPC with packets, for tests of the data plane. A Node is an instance whose ENIs are links that lead
// nowhere, and needs no fabric: for tests of the addresses that EC2, the kernel and the registry have. [ec2sim.World]
// describes the VPCs of both.
package simtest

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// Fabric starts a VPC with packets. At its end, the test fails if the fabric has not followed EC2.
func Fabric(t testing.TB, c ec2sim.Config) *vpcsim.Fabric {
	t.Helper()
	f, err := vpcsim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// Launch launches an instance of a fabric.
func Launch(t testing.TB, f *vpcsim.Fabric, name string, run ec2sim.RunInstance) *vpcsim.Instance {
	t.Helper()
	i, err := f.RunInstance(name, run)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// simulations counts those of Sim.
var simulations atomic.Uint32

// Sim starts EC2. Its ENIs have MAC addresses of their own: collections look for the links of ENIs in all namespaces of
// the machine, and tests run at once.
func Sim(t testing.TB, c ec2sim.Config) *ec2sim.Sim {
	t.Helper()
	c.MACs = uint16(simulations.Add(1))
	sim, err := ec2sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return sim
}

// A Node is an instance with a network namespace, which has a link for each of its ENIs.
type Node struct {
	*ec2sim.Instance
	EC2  *ec2sim.Sim
	Host *nl.NS // its namespace
	Path string // of that
	Dir  string // where its registry will be, on a tmpfs as on a node

	mu sync.Mutex
	t  testing.TB // nil: the test has ended, and an attachment may come later
}

// NewNode makes the namespace. Launch may be called in a bubble of synctest, whose processes do not outlive it.
func NewNode(t testing.TB) *Node {
	t.Helper()
	nltest.Need(t, "root", "netns")
	n := &Node{t: t, Dir: filepath.Join(Memory(t), "state")}
	n.Host, n.Path = nltest.NS(t, "node")
	t.Cleanup(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.t = nil
	})
	return n
}

// Launch starts EC2, and launches the instance.
func (n *Node) Launch(t testing.TB, c ec2sim.Config, run ec2sim.RunInstance) {
	t.Helper()
	n.EC2 = Sim(t, c)
	n.EC2.OnChange(n.Plug)
	var err error
	if n.Instance, err = n.EC2.RunInstance(run); err != nil {
		t.Fatal(err)
	}
}

// Plug gives an ENI that is attached to the node its link, and takes it away again.
func (n *Node) Plug(c ec2sim.Change) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.t == nil || n.Instance != nil && c.Instance != n.ID {
		return
	}
	host, err := nl.Open("node", n.Path) // an NS serves one goroutine, and this one may answer a process
	if err != nil {
		n.t.Error(err)
		return
	}
	defer host.Close()
	link := nl.Veth{Name: "vpc" + c.ENI.ID[len(c.ENI.ID)-4:], Peer: fmt.Sprintf("eth%d", 100*c.ENI.Card+c.ENI.Index),
		PeerMAC: c.ENI.MAC, PeerNS: host}
	switch c.Kind {
	case ec2sim.Attached:
		err = link.Add(host)
	case ec2sim.Detached:
		err = link.Del(host)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the test may have taken it away before
		n.t.Errorf("%s %s: %v", c.Kind, link, err)
	}
}

// Memory is a directory on a tmpfs, as /run is.
func Memory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "sim-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Operate makes a call of EC2 as an operator or another program, with names and values of parameters in turn.
func Operate(t testing.TB, sim *ec2sim.Sim, action string, parameters ...string) {
	t.Helper()
	form := map[string]string{}
	for i := 0; i < len(parameters); i += 2 {
		form[parameters[i]] = parameters[i+1]
	}
	if err := sim.Operate(action, form); err != nil {
		t.Fatal(err)
	}
}

// Serve answers HTTP on a socket of this process.
func Serve(t testing.TB, h http.Handler) (url string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// ServeIn answers HTTP at an address in a namespace, from where its URL is.
func ServeIn(t testing.TB, n *nl.NS, at string, h http.Handler) (url string) {
	t.Helper()
	var l net.Listener
	if err := n.Do(func() (err error) { l, err = net.Listen("tcp4", at); return err }); err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return fmt.Sprint("http://127.0.0.1:", l.Addr().(*net.TCPAddr).Port)
}

// Credentials sets what a client of EC2 needs in the environment.
func Credentials(t testing.TB) {
	t.Helper()
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
}
