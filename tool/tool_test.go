// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// TestScript runs the transcripts in testdata. Each transcript has a new node: an instance that was launched a moment
// ago, with its registry in $WORK/state. The node's links are in the network namespace of the test process, so the
// transcripts run one after the other. The node of boot_elsewhere has its boot ENI at device index 1.
//
// The transcripts have the commands of testscript, and these commands:
//
//	shows FILE               standard output is FILE, in which · is a blank at the end of a line
//	fail ACTION CODE N       EC2 refuses the next N calls of an action with this code
//	calls                    print the EC2 calls since the previous "calls"
//	enis                     print the ENIs that EC2 has
//	ec2 ACTION KEY=VALUE...  a person or another program makes an EC2 call
//	elsewhere                from now on, EC2 does not know the node
//	leak INSTANCE [TAG=VALUE...]  create an ENI for an instance, and leave it unattached
//	launch                   run another instance
//	terminate INSTANCE       terminate an instance
//	freeze ENI               from now on, metadata does not show changes of an ENI
//	hide ENI KEY             metadata does not show this key of an ENI
//	lease ADDRESS NAMESPACE/POD [AGE]
//	has NAMESPACE LINK ADDRESS  a pod has the address, on a slave of one of the node's links
//	bound ADDRESS            the address of a lease becomes bound
//	forgive                  from now on, the node may repeat calls that EC2 has refused
//	freed ADDRESS AGE        in the registry, the address became free this long ago
//	age DURATION             in the registry, all events happened this much earlier
//	intents [ACTION...]      the registry has intents for these calls, and no other intents
//	fields COMMAND           standard output has the JSON fields that the command's help names
//	exposition FILE          Prometheus can read the file
//	apiserver NODE           run an API server that knows the node, with the kubeconfig kubelet.conf
//	locked FILE COMMAND      wait until a process that executes the command has, or waits for, a lock on the file
//	patches [STATUS]         print the requests to the API server since the previous "patches"; with STATUS, the
//	                         server answers later requests with it
func TestScript(t *testing.T) {
	testscript.RunT(inTurn{t}, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup:               setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"shows": shows,
			"fail":  fail,
			"calls": calls,
			"enis":  enis,
			"lease": reserve,
			"bound": bound,
			"has":   has,

			"count":   count,
			"forgive": forgive,
			"freed":   freed,
			"age":     age,

			"intents": intents,
			"rebuilt": rebuilt,

			"ec2":        callEC2,
			"elsewhere":  elsewhere,
			"leak":       leak,
			"launch":     launch,
			"terminate":  terminate,
			"freeze":     freeze,
			"hide":       hide,
			"fields":     fieldsOf,
			"exposition": exposition,
			"apiserver":  startAPIServer,
			"locked":     locked,
			"patches":    patches,
		},
	})
}

// forgive ends the time in which the node does not repeat calls that EC2 has refused.
func forgive(ts *testscript.TestScript, _ bool, _ []string) {
	on(ts).Forgive()
}

// age makes the entries of the registry older by a duration.
func age(ts *testscript.TestScript, _ bool, args []string) {
	d, err := time.ParseDuration(args[0])
	ts.Check(err)
	on(ts).Age(d)
}

// count counts the execution of a command, as the plugins do.
func count(ts *testscript.TestScript, _ bool, args []string) {
	took, err := time.ParseDuration(args[2])
	ts.Check(err)
	registry.Count(on(ts).Dir, args[0], args[1], took)
}

// locked waits until a process has a lock on a file, or waits for a lock on it. In a line of /proc/locks
// (proc_locks(5)), the process ID and the inode come after the mode of the lock.
func locked(ts *testscript.TestScript, _ bool, args []string) {
	file, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	of := regexp.MustCompile(fmt.Sprintf(`(?m)FLOCK +ADVISORY +\w+ (\d+) \S+:%d `, file.Sys().(*syscall.Stat_t).Ino))
	for range 6000 {
		locks, err := os.ReadFile("/proc/locks")
		ts.Check(err)
		for _, m := range of.FindAllStringSubmatch(string(locks), -1) {
			name, _ := os.ReadFile("/proc/" + m[1] + "/comm")
			if strings.TrimSpace(string(name)) == args[1] {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	ts.Fatalf("no process that executes %s has or awaits the lock of %s", args[1], args[0])
}

// has gives an address to a pod, as the plugins do: it puts the address on a slave of one of the node's links. If the
// kernel has no ipvlan, the slave is a macvlan.
func has(ts *testscript.TestScript, _ bool, args []string) {
	netns, link, addr := args[0], args[1], args[2]
	name := "on-" + link
	if ts.Exec("ip", "-n", netns, "link", "show", name) != nil {
		add := []string{"link", "add", "link", link, "name", name, "netns", netns, "up", "type"}
		if ts.Exec("ip", append(add, "macvlan", "mode", "private")...) != nil {
			ts.Check(ts.Exec("ip", append(add, "ipvlan", "mode", "l2")...))
		}
	}
	ts.Check(ts.Exec("ip", "-n", netns, "addr", "add", addr+"/32", "dev", name))
}

// inTurn is a testscript.T that does not run scripts in parallel.
type inTurn struct{ *testing.T }

func (inTurn) Parallel()     {}
func (inTurn) Verbose() bool { return testing.Verbose() }
func (t inTurn) Run(name string, f func(testscript.T)) {
	t.T.Run(name, func(t *testing.T) { f(inTurn{t}) })
}

// vpc returns the VPC in which the output of the original tool was recorded.
func vpc() ec2sim.Config {
	c := ec2sim.World(`
		vpc-1       10.0.0.0/16 100.64.0.0/16 2001:db8:1::/56
		subnet-a    10.0.0.0/24 2001:db8:1::/64
		subnet-b    10.0.1.0/24 kubernetes_kubelet=true Name=pods
		subnet-c    10.0.2.0/24 us-east-1b kubernetes_kubelet=true Name=pods
		subnet-tiny 100.64.0.0/28 tiny=true
		pcx-1       vpc-1 vpc-9 10.9.0.0/16
		pcx-2       vpc-8 10.8.0.0/16 vpc-1 deleted`)
	c.AttachDelay = 100 * time.Millisecond
	c.InstanceTypes = []ec2sim.InstanceType{{Name: "t9.xen", ENIs: 3, IPv4PerENI: 4, IPv6PerENI: 4, Xen: true},
		{Name: "t9.old", ENIs: 3, IPv4PerENI: 4, Xen: true}}
	return c
}

func setup(e *testscript.Env) error {
	examples, err := filepath.Abs("../conflist-examples")
	if err != nil {
		return err
	}
	e.Setenv("EXAMPLES", examples)
	run := asRecorded
	if strings.HasSuffix(e.WorkDir, "boot_elsewhere") {
		run.BootIndex, run.Secondary = 1, 1
	}
	e.Values[onNode{}] = launched(e.T().(inTurn), vpc(), run, e.Setenv)
	e.Setenv("CNI_IPVLAN_VPC_STATE_DIR", filepath.Join(e.WorkDir, "state"))
	e.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise each process of a -race build takes a second to exit
	return nil
}

// asRecorded is the node on which the output of the original tool was recorded.
var asRecorded = ec2sim.RunInstance{Type: "c5.large", Subnet: "subnet-a", SecurityGroups: []string{"sg-node"},
	PrivateIP: netip.MustParseAddr("10.0.0.10")}

// launched launches a node in the namespaces of this process. It sets the environment variables that tell programs
// where EC2, metadata and the registry are.
func launched(t testing.TB, c ec2sim.Config, run ec2sim.RunInstance, setenv func(key, value string)) *simtest.Node {
	t.Helper()
	n := simtest.Here(t)
	t.Cleanup(func() { unmount(t) })
	n.Launch(t, c, run)
	setenv("AWS_ENDPOINT_URL_EC2", simtest.Serve(t, n.EC2))
	setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", simtest.Serve(t, n.Metadata()))
	setenv("AWS_METADATA_SERVICE_TIMEOUT", "60") // in seconds, because this machine may be busy
	setenv("CNI_IPVLAN_VPC_STATE_DIR", n.Dir)
	return n
}

// unmount removes the pods' namespaces that a failed script has left.
func unmount(t testing.TB) {
	left, err := filepath.Glob("/run/netns/*")
	for _, path := range left {
		err = errors.Join(err, syscall.Unmount(path, syscall.MNT_DETACH), os.Remove(path))
	}
	if err != nil {
		t.Error(err)
	}
}

type onNode struct{}

// on returns the node of a script. The script may have set another directory for the registry.
func on(ts *testscript.TestScript) *simtest.Node {
	n := ts.Value(onNode{}).(*simtest.Node)
	n.Dir = ts.Getenv("CNI_IPVLAN_VPC_STATE_DIR")
	return n
}

func shows(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: shows FILE")
	}
	want := strings.ReplaceAll(ts.ReadFile(args[0]), "·", " ")
	if diff := cmp.Diff(want, ts.ReadFile("stdout")); diff != "" {
		ts.Fatalf("-want +got\n%s", diff)
	}
}

func fail(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	on(ts).EC2.Fail(args[0], args[1], n)
}

func calls(ts *testscript.TestScript, _ bool, _ []string) {
	out := ts.Stdout() // ts.Stdout also empties the buffer
	for _, c := range on(ts).EC2.Calls() {
		fmt.Fprintln(out, c)
	}
	on(ts).EC2.ResetCalls()
}

func enis(ts *testscript.TestScript, _ bool, _ []string) {
	out := ts.Stdout()
	for _, e := range on(ts).EC2.ENIs() {
		fmt.Fprintln(out, e.ID, e.Status, e.Index, e.DeleteOnTermination, e.Addrs, e.Description)
	}
}

func reserve(ts *testscript.TestScript, _ bool, args []string) {
	namespace, pod, _ := strings.Cut(args[1], "/")
	age, err := time.ParseDuration(append(args, "0s")[2])
	ts.Check(err)
	on(ts).Edit(func(s *registry.State) {
		a := netip.MustParseAddr(args[0])
		id, _ := s.ENIOf(a)
		key := registry.Key{Network: "net", Attachment: registry.Attachment{ContainerID: pod, IfName: "eth0"}}
		ts.Check(s.Reserve(a, registry.Lease{Key: key, ENI: id, PodNamespace: namespace, PodName: pod,
			NetNS: "/run/netns/" + pod, Since: time.Now().Add(-age)}))
	})
}

func bound(ts *testscript.TestScript, _ bool, args []string) {
	on(ts).Edit(func(s *registry.State) {
		a := netip.MustParseAddr(args[0])
		l, ok := s.Leases.At(a)
		if !ok {
			ts.Check(errors.New(args[0] + " is not leased"))
		}
		l.Bound = true
		s.Leases.Set(a, l)
	})
}

func intents(ts *testscript.TestScript, _ bool, args []string) {
	on(ts).Edit(func(s *registry.State) {
		clear(s.Intents)
		s.Rebuilt = registry.Rebuilt{}
		for _, action := range args {
			s.Intents[action] = registry.Intent{Action: action, Since: time.Now()}
		}
	})
}

// rebuilt makes the registry look like a registry that was rebuilt, and that the node has not yet compared with EC2.
func rebuilt(ts *testscript.TestScript, _ bool, _ []string) {
	on(ts).Edit(func(s *registry.State) {
		clear(s.Intents)
		s.Rebuilt = registry.Rebuilt{Since: time.Now(), Unconfirmed: true}
	})
}

func freed(ts *testscript.TestScript, _ bool, args []string) {
	age, err := time.ParseDuration(args[1])
	ts.Check(err)
	on(ts).Edit(func(s *registry.State) {
		a := netip.MustParseAddr(args[0])
		if !s.Free.Has(a) {
			ts.Check(errors.New(args[0] + " is not free"))
		}
		s.Free.Set(a, time.Now().Add(-age))
	})
}
