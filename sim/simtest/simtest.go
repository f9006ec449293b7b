// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package simtest makes simulated worlds for tests. Each world ends with its test.
//
// [Fabric] makes a VPC that moves packets, for tests of the data plane. [NewNode] makes an instance whose links lead
// nowhere, for tests that compare the addresses in EC2, in the kernel and in the registry. [Sim] makes only EC2, for
// tests that need no kernel. [ec2sim.World] returns a Config for Fabric, [Node.Launch] and Sim.
package simtest

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// Fabric starts a VPC that moves packets. If the fabric cannot follow a change in EC2, the test fails, but only at its
// end.
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

// macRange counts the calls of Sim and NewNode. Each call has its own range of MAC addresses.
var macRange atomic.Uint32

// Sim starts EC2. The ENIs of two Sims have different MAC addresses, because registry-gc looks for the links of its
// node's ENIs in all namespaces of the machine. It must not find the links of another test that runs at the same time.
func Sim(t testing.TB, c ec2sim.Config) *ec2sim.Sim {
	t.Helper()
	c.MACs = uint16(macRange.Add(1))
	return startSim(t, c)
}

func startSim(t testing.TB, c ec2sim.Config) *ec2sim.Sim {
	t.Helper()
	sim, err := ec2sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return sim
}

// Memory returns a temporary directory. Like /run, it is on a tmpfs if this machine has /dev/shm.
func Memory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "sim-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Serve answers HTTP requests on a local TCP port until the test ends. It returns the URL.
func Serve(t testing.TB, h http.Handler) (url string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// ServeIn does what [Serve] does, but in the namespace n, where it listens at the address and port in the argument
// "at". Only clients in this namespace can use the URL.
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

// Credentials sets the environment variables that a client of EC2 needs.
func Credentials(t testing.TB) {
	t.Helper()
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
}
