// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nltest_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// leaks has functions that leave something behind. A key is the beginning of Guard's message about what the function
// leaves.
var leaks = map[string]func(t *testing.T) error{
	"namespace /run/netns/forgotten": func(*testing.T) error {
		return os.WriteFile("/run/netns/forgotten", nil, 0o644)
	},
	"namespace /run/netns/pod-": func(*testing.T) error {
		return os.WriteFile(named(os.Getpid()), nil, 0o644)
	},
	"descriptor of socket:[": func(*testing.T) (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	},
	"thread in net:[": func(t *testing.T) error {
		n, _ := nltest.NS(t, "pod")
		inside := make(chan struct{})
		go n.Do(func() error {
			close(inside)
			select {}
		})
		<-inside
		return nil
	},
	"process sleep": func(*testing.T) error { return exec.Command("sleep", "9").Start() },
	"link add forgotten": func(*testing.T) error {
		host, err := nl.Node()
		if err != nil {
			return err
		}
		defer host.Close()
		return nl.Veth{Name: "forgotten", Peer: "too", PeerNS: host}.Add(host)
	},
}

// named returns a path as NS makes it in a process.
func named(pid int) string { return fmt.Sprintf("/run/netns/pod-%d-1", pid) }

// another is the ID of a process whose tests run at the same time.
const another = 1

var listener net.Listener // a reference, so that the garbage collector does not close it

// TestLeak leaves something behind. TestGuard runs it in a process and a namespace of its own.
func TestLeak(t *testing.T) {
	if os.Getenv("LEAK") == "" {
		return
	}
	if err := os.WriteFile(named(another), nil, 0o644); err != nil {
		t.Error(err)
	}
	for what, leave := range leaks {
		if err := leave(t); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestGuard(t *testing.T) {
	n, _ := nltest.NS(t, "host")
	run := func(leak string) (out []byte, err error) {
		f, err := os.Create(filepath.Join(t.TempDir(), "output")) // no pipe, which a leftover process would keep open
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestLeak$")
		cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "LEAK="+leak), f, f
		status := n.Do(cmd.Run)
		out, err = os.ReadFile(f.Name())
		return out, errors.Join(status, err)
	}
	if out, err := run(""); err != nil {
		t.Errorf("left nothing: %v\n%s", err, out)
	}
	out, err := run("all")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Errorf("left all: %v, want exit status 1", err)
	}
	for what := range leaks {
		if !strings.Contains(string(out), what) {
			t.Errorf("want %q in\n%s", what, out)
		}
	}
	if strings.Contains(string(out), named(another)) {
		t.Errorf("the namespace is of another process:\n%s", out)
	}
	files, _ := filepath.Glob("/run/netns/pod-*-1")
	for _, file := range append(files, "/run/netns/forgotten") {
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
	}
}
