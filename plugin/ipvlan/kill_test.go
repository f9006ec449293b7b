// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// If CNI_COMMAND is set, the test binary is the plugin.
func init() {
	if os.Getenv("CNI_COMMAND") != "" {
		plugin.Unhurried = true
		plugin.Main("cni-ipvlan-vpc-k8s-ipvlan", Commands(nil))
	}
}

// A victim is a pod whose command the test kills.
type victim struct {
	bench
	*plugin.Request[Config]
	pod    *nl.NS
	before string
}

func (b bench) victim() victim {
	r, pod := b.pod(`{}`, [2]string{"10.0.1.20/24", "10.0.1.1"}, [2]string{"fd00:0:0:1::20/64", "fd00:0:0:1::1"})
	return victim{b, r, pod, nltest.Dump(b, b.node, pod)}
}

// TestKillEverywhere kills ADD and DEL after each system call. Then a DEL leaves nothing of the interface. The next ADD
// of the attachment succeeds, in the same namespace or in a new one.
//
// Before each kill of an ADD, the test runs another ADD in which the same system call fails. This ADD must undo its
// changes.
func TestKillEverywhere(t *testing.T) {
	b := newBench(t)
	b.everywhere(bench.victim)
}

// TestKillSeveral is TestKillEverywhere with an ADD that makes three NICs.
func TestKillSeveral(t *testing.T) {
	newSeveral(t, 1, 3, 1).everywhere(func(b bench) victim {
		pod, path := nltest.NS(b, "pod")
		r := request(b.T, `{}`, nil, nil)
		r.NetNS, r.Prev = path, answer(eniAt{0, 1}, eniAt{1, 3}, eniAt{2, 1})
		return victim{b, r, pod, nltest.Dump(b, b.node, pod)}
	})
}

// TestKillFurther is TestKillEverywhere with a further attachment. The first attachment does not change.
func TestKillFurther(t *testing.T) {
	s := newSeveral(t, 1, 3)
	n := 0
	s.everywhere(func(b bench) victim {
		n++
		pod, path := nltest.NS(b, "pod")
		first := several{bench: b}.ask(path, "eth0", `{}`, answer(eniAt{0, 1}))
		first.Prev.IPs[0].Address = cidr(fmt.Sprintf("10.0.1.%d/24", 20+n%200))
		first.Prev.IPs[1].Address = cidr(fmt.Sprintf("fd00:0:0:1::%x/64", 0x1000+n))
		_, err := b.ADD(first)
		b.must(err)
		r := several{bench: b}.ask(path, "net1", `{}`, answer(eniAt{1, 3}))
		return victim{b, r, pod, nltest.Dump(b, b.node, pod)}
	})
}

func (b bench) everywhere(victim func(bench) victim) {
	t := b.T
	for _, verb := range []string{"ADD", "DEL"} {
		points := trace.Everywhere(t, verb, func(t *testing.T, tr *trace.Trace) {
			b := bench{t, b.node, b.vpc}
			v := victim(b)
			if verb == "ADD" {
				v.fail(tr.Again(syscall.ENOMEM))
			}
			v.strike(verb, tr)
			b.must(b.DEL(v.Request))
			b.same("DEL left something", v.before, nltest.Dump(t, b.node, v.pod))
			b.must(b.DEL(v.Request))
			v.whole()

			t.Run("and its namespace", func(t *testing.T) { victim(bench{t, b.node, b.vpc}).strike(verb, tr.Again(0)) })
			v = victim(b)
			gone := *v.Request
			gone.NetNS = ""
			b.must(b.DEL(&gone))
			v.whole()
		})
		t.Logf("%s was killed at %d points", verb, points)
	}
}

// fail runs an ADD in which one system call fails.
func (v victim) fail(tr *trace.Trace) {
	v.Helper()
	if v.run("ADD", tr).ExitStatus() != 1 {
		v.must(v.DEL(v.Request)) // ADD has succeeded without this call, or the Go runtime has ended the process
	}
	v.same("ADD failed and left something", v.before, nltest.Dump(v, v.node, v.pod))
}

func (v victim) strike(verb string, tr *trace.Trace) {
	v.Helper()
	if verb == "DEL" {
		_, err := v.ADD(v.Request)
		v.must(err)
	}
	if status := v.run(verb, tr); status.Exited() && status.ExitStatus() != 0 {
		v.Fatalf("status %d", status.ExitStatus())
	}
}

func (v victim) run(verb string, tr *trace.Trace) (status syscall.WaitStatus) {
	v.Helper()
	cmd := v.process(verb)
	v.must(v.node.Do(func() (err error) { status, err = tr.Run(cmd); return err }))
	return status
}

// process returns a process that runs the command.
func (v victim) process(verb string) *exec.Cmd {
	v.Helper()
	v.Prev.CNIVersion = "1.0.0"
	stdin, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": v.Network,
		"type": "cni-ipvlan-vpc-k8s-ipvlan", "prevResult": v.Prev})
	v.must(err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+v.ContainerID, "CNI_IFNAME="+v.IfName,
		"CNI_NETNS="+v.NetNS, "CNI_PATH=/opt/cni/bin")
	cmd.Stdin = bytes.NewReader(stdin)
	return cmd
}

// whole adds, checks and deletes a pod.
func (v victim) whole() {
	v.Helper()
	res, err := v.ADD(v.Request)
	// The kernel removes a deleted namespace later. Until then, its addresses are in use.
	for deadline := time.Now().Add(time.Minute); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(deadline); {
		res, err = v.ADD(v.Request)
	}
	v.must(err)
	v.must(v.CHECK(v.Request, res))
	v.must(v.DEL(v.Request))
	v.same("DEL left something", v.before, nltest.Dump(v, v.node, v.pod))
}
