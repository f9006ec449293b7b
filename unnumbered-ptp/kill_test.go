// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// If CNI_COMMAND is set, the test binary is the plugin.
func init() {
	if os.Getenv("CNI_COMMAND") != "" {
		plugin.Unhurried = os.Getenv(hurried) == ""
		plugin.Main("cni-ipvlan-vpc-k8s-unnumbered-ptp", ptp.Commands())
	}
}

// hurried is an environment variable. If it is set, the command must keep its time limit.
const hurried = "TEST_HURRIED"

// An ending is what a runtime does after a command was killed.
type ending string

const (
	deleted   ending = "DEL"
	vanished  ending = "DEL without namespace" // the namespace is gone before DEL
	forgotten ending = "GC"                    // the pod is not among the valid attachments
)

// TestKillEverywhere kills ADD and DEL after each system call. The ADD is the first ADD on its node. After the kill, a
// GC or a DEL leaves nothing of the pod, even if the namespace is gone. The next ADD of the attachment succeeds.
//
// Before a kill of an ADD, the test runs another ADD in which the same system call fails. This ADD must undo its
// changes.
func TestKillEverywhere(t *testing.T) { everywhere(t, slaved) }

// TestKillFurther is TestKillEverywhere with pods of three NICs.
func TestKillFurther(t *testing.T) { everywhere(t, several) }

// TestKillRouted is TestKillEverywhere with routed pods.
func TestKillRouted(t *testing.T) { everywhere(t, routed) }

// TestKillVethPrefix is TestKillEverywhere with routed pods whose pairs have names for engines of NetworkPolicy. All
// are sandboxes of one Kubernetes pod, so their pairs need the same name.
func TestKillVethPrefix(t *testing.T) { everywhere(t, prefixed) }

// A kind says which links the pods of a victim have.
type kind int

const (
	slaved   kind = iota
	several       // three NICs
	routed        // a routed pair
	prefixed      // a routed pair with the name for engines
)

func everywhere(t *testing.T, of kind) {
	if of == several { // here Need skips the whole test, not each subtest
		nltest.Need(t, "ipvlan")
	}
	f := newFabric(t)
	before := nltest.Dump(t, f.node)
	var families []func(*types100.Result)
	if of != slaved {
		families = append(families, dual)
	}
	connected := f.pod
	if of == routed || of == prefixed {
		connected = f.routed
	}
	first := connected("first", "10.0.1.200", families...)
	must(t, f.ADD(first))
	must(t, f.DEL(first))
	v := victim{fabric: f, kind: of, pods: new(0), before: before, after: nltest.Dump(t, f.node)}
	for _, verb := range []string{"ADD", "DEL"} {
		points := trace.Everywhere(t, verb, func(t *testing.T, tr *trace.Trace) {
			v := v.within(t)
			v.verb, v.Trace = verb, tr
			v.play(forgotten)
			v.Trace = tr.Again(0)
			v.play([]ending{deleted, vanished}[tr.Kill%2])
		})
		t.Logf("%s was killed at %d points", verb, points)
	}
}

// A victim is a command that the test kills, and the node on which the command runs.
type victim struct {
	t *testing.T
	*fabric
	*trace.Trace
	verb   string
	kind   kind
	pods   *int   // number of pods so far
	before string // dump of the node before the first pod
	after  string // dump of the node after all pods have ended
}

// within returns the victim for a subtest.
func (v victim) within(t *testing.T) victim {
	v.t, v.fabric = t, &fabric{t, v.router, v.node, v.other}
	return v
}

// next returns a pod with the same name as all earlier pods, and with another address.
func (v victim) next() *pod {
	*v.pods++
	switch v.kind {
	case routed:
		return v.routed("pod1", fmt.Sprint("10.0.1.", *v.pods%190+2), dual)
	case prefixed:
		p := v.sandbox("pod1", fmt.Sprint("10.0.1.", *v.pods%190+2), dual)
		p.request.ContainerID = fmt.Sprint("sandbox", *v.pods)
		return p
	case several:
		n := *v.pods%95 + 2
		return v.several("pod1", fmt.Sprint("10.0.1.", n), fmt.Sprint("10.0.3.", n), fmt.Sprint("10.0.1.", 100+n))
	}
	return v.grouped("pod1", fmt.Sprint("10.0.1.", *v.pods%190+2))
}

// again gives a pod its links to the VPC again.
func (v victim) again(p *pod) {
	switch v.kind {
	case several:
		v.unslave(p) // as the next DEL of the chain does
		v.slaves(p)
	case slaved:
		v.connect(p, nl.PodGroup(p.request.Digest()))
	}
}

// play kills the command, and then does what the ending names.
func (v victim) play(e ending) {
	var gone *pod
	v.t.Run(string(e), func(t *testing.T) { // the pod's namespace ends with the subtest
		v := v.within(t)
		gone = v.next()
		if e == forgotten && v.verb == "ADD" {
			v.fail(gone)
		}
		v.strike(gone)
		if e != deleted {
			return
		}
		for range 2 {
			must(t, v.DEL(gone))
			same(t, "DEL left something in the pod", gone.bare, nltest.Dump(t, gone.NS))
			v.clean()
		}
		v.again(gone)
		v.whole(gone)
	})
	switch e {
	case deleted:
		return
	case vanished:
		gone.request.NetNS = ""
		must(v.t, v.DEL(gone))
	case forgotten:
		must(v.t, v.GC(gone))
	}
	v.clean()
	v.whole(v.next())
}

// fail runs an ADD in which one system call fails. ADD must undo its changes.
func (v victim) fail(p *pod) {
	v.t.Helper()
	before := nltest.Dump(v.t, p.NS)
	v.fresh()
	tr := v.Again(syscall.ENOMEM)
	status := v.run(p, tr)
	if status.ExitStatus() != 1 { // ADD has succeeded without the call, or the Go runtime has ended the process
		must(v.t, v.DEL(p))
		v.again(p)
	}
	same(v.t, "ADD failed and left something in the pod", before, nltest.Dump(v.t, p.NS))
	v.clean()
	if v.t.Failed() {
		v.t.Logf("status %#x when the last of these failed:\n\t%s", status, strings.Join(tr.Seen, "\n\t"))
	}
}

// strike kills the command.
func (v victim) strike(p *pod) {
	v.t.Helper()
	if v.verb == "DEL" {
		must(v.t, v.ADD(p))
	} else {
		v.fresh()
	}
	if status := v.run(p, v.Trace); status.Exited() && status.ExitStatus() != 0 {
		v.t.Fatalf("status %d", status.ExitStatus())
	}
}

// fresh removes from the node the objects that stay after the last pod.
func (v victim) fresh() {
	v.t.Helper()
	v.bare()
	same(v.t, "the node is not as it was", v.before, nltest.Dump(v.t, v.node))
}

// run runs the command as a process.
func (v victim) run(p *pod, tr *trace.Trace) (status syscall.WaitStatus) {
	v.t.Helper()
	r := &p.request
	r.Prev.CNIVersion = "1.0.0"
	stdin, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": r.Network, "type": "cni-ipvlan-vpc-k8s-unnumbered-ptp", "prevResult": r.Prev,
		"hostInterface": r.Config.HostInterface, "containerInterface": r.Config.ContainerInterface,
		"ipMasq": r.Config.IPMasq, "vethPrefix": r.Config.VethPrefix, "hostCidrs": r.Config.HostCIDRs,
		"blockInstanceMetadata": r.Config.BlockInstanceMetadata,
	})
	must(v.t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+v.verb, "CNI_CONTAINERID="+r.ContainerID, "CNI_IFNAME="+r.IfName,
		"CNI_NETNS="+r.NetNS, "CNI_PATH=/opt/cni/bin",
		"CNI_ARGS=K8S_POD_NAMESPACE="+r.Pod.Namespace+";K8S_POD_NAME="+r.Pod.Name)
	cmd.Stdin = bytes.NewReader(stdin)
	must(v.t, v.node.Do(func() (err error) { status, err = tr.Run(cmd); return err }))
	return status
}

// clean checks that the node has nothing of ours except what serves all pods.
func (v victim) clean() {
	v.t.Helper()
	keeps := strings.Split(v.after, "\n")
	for line := range strings.SplitSeq(nltest.Dump(v.t, v.node), "\n") {
		if !slices.Contains(keeps, line) {
			v.t.Errorf("left: %s", line)
		}
	}
}

// whole adds, checks and deletes a pod.
func (v victim) whole(p *pod) {
	v.t.Helper()
	must(v.t, v.ADD(p))
	must(v.t, v.CHECK(p))
	must(v.t, v.DEL(p))
	same(v.t, "DEL left something", v.after, nltest.Dump(v.t, v.node))
}

// TestBlockUnanswered: the kernel adds the route that blocks the metadata service, but the kernel's answer to ADD is
// lost. ADD fails, and leaves nothing in the pod.
func TestBlockUnanswered(t *testing.T) {
	f := newFabric(t)
	p := f.grouped("pod1", "10.0.1.9")
	p.request.Config.BlockInstanceMetadata = new(true)
	before := nltest.Dump(t, p.NS)
	asked := false
	tr := &trace.Trace{Every: true, Kill: 1, Errno: syscall.ENOMEM, Counts: func(c trace.Call) string {
		const at, ofRoute = 4, syscall.SizeofNlMsghdr + 7 // offsets of the message's and the route's type
		if c.Nr == unix.SYS_WRITE {
			b, err := c.Bytes(uintptr(c.Args[1]), ofRoute+1)
			asked = err == nil && b[at] == unix.RTM_NEWROUTE && b[ofRoute] == unix.RTN_PROHIBIT
		}
		if !asked || c.Nr != unix.SYS_READ {
			return ""
		}
		return "answer"
	}}
	if status := (victim{t: t, fabric: f, verb: "ADD"}).run(p, tr); status.ExitStatus() != 1 || len(tr.Seen) == 0 {
		t.Errorf("status %#x, answers %v", status, tr.Seen)
	}
	same(t, "ADD failed and left something in the pod", before, nltest.Dump(t, p.NS))
}
