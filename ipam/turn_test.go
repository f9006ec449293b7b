// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// countFile is the environment variable with the path of a file. Each GrowProgram adds a line to this file.
const countFile = "IPAM_TEST_COUNT"

// count records the execution of this process, with its PID.
func count() {
	path := os.Getenv(countFile)
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid(), strings.Join(os.Args[1:], " "))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		panic(err)
	}
}

// counting returns a node that counts the executions of GrowProgram. The argument k is the kind of the node's plugins.
func counting(t testing.TB, k kind, instance string, via *mute) *node {
	t.Helper()
	n := newNode(t, instance, ec2sim.Config{}, via.via)
	n.kind = k
	n.env = append(n.env, countFile+"="+filepath.Join(t.TempDir(), "count"))
	return n
}

// executed returns the PID and the arguments of each GrowProgram that was executed.
func (n *node) executed() (all []string) {
	n.Helper()
	path := ""
	for _, v := range n.env {
		if name, value, _ := strings.Cut(v, "="); name == countFile {
			path = value
		}
	}
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		all = append(all, strings.TrimSpace(line))
	}
	return all
}

// TestBurstExecutes: in a burst of ADDs, GrowProgram is executed once for each growth, and not once for each pod. The
// log shows the cost.
func TestBurstExecutes(t *testing.T) {
	const pods, spare = 110, 2
	n := counting(t, alone, "m5.4xlarge", &mute{})
	for action, d := range latencies {
		n.EC2.Delay(action, d)
	}
	took, failed := n.burst(0, pods)
	if len(n.pods) != pods || failed != nil {
		t.Errorf("%d pods have an address, want %d: %v", len(n.pods), pods, failed)
	}
	growths := n.EC2.Asked("CreateNetworkInterface") + n.EC2.Asked("AssignPrivateIpAddresses")
	executed := n.executed()
	if len(executed) > growths+spare {
		t.Errorf("the program that asks EC2 was executed %d times, for %d growths:\n%s", len(executed), growths,
			strings.Join(executed, "\n"))
	}
	t.Logf("%d ADDs in %v: %d processes, of which %d ask EC2; %v of CPU time", pods,
		took.Round(time.Millisecond),
		pods+len(executed), len(executed), n.cpu.Round(time.Millisecond))
	n.intact()
}

// TestRefusedExecutes: EC2 refuses the calls of a burst. All ADDs report the same error, and few have executed
// GrowProgram.
func TestRefusedExecutes(t *testing.T) {
	const pods = 60
	n := counting(t, alone, "m5.large", &mute{})
	for _, e := range n.refused(pods) {
		if !strings.HasPrefix(e.Msg, "acquire an address: no address is free: ") {
			t.Error(e.Msg)
		}
	}
	if executed := n.executed(); len(executed) > pods/6 {
		t.Errorf("the program that asks EC2 was executed %d times", len(executed))
	}
	n.EC2.Fail("CreateNetworkInterface", "UnauthorizedOperation", 0)
	n.Forgive()
	n.add("later")
}

// TestTurnKilled: the ADD that has its turn, or its GrowProgram, is killed while EC2 does not answer. One or two more
// GrowPrograms get the addresses for the waiting ADDs. Nothing of the killed processes is left on the node or in EC2.
func TestTurnKilled(t *testing.T) {
	for name, kill := range map[string]func(parent *exec.Cmd, child int) error{
		"parent": func(parent *exec.Cmd, _ int) error { return parent.Process.Kill() },
		"child": func(_ *exec.Cmd, child int) error {
			p, err := os.FindProcess(child)
			return errors.Join(err, p.Kill())
		},
		"both": func(parent *exec.Cmd, child int) error {
			p, err := os.FindProcess(child)
			return errors.Join(err, p.Kill(), parent.Process.Kill())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &mute{}
			n := counting(t, alone, "m5.large", m)
			m.hush("CreateNetworkInterface")
			first := n.cni("ADD", "first", nil)
			n.start(first)
			n.until("EC2 is asked", func(*registry.State) bool { return m.ignored() > 0 })
			var others []*exec.Cmd
			for i := range 5 {
				others = append(others, n.cni("ADD", fmt.Sprint("pod", i), nil))
				n.start(others[i])
			}
			n.until("all wait", func(s *registry.State) bool { return len(s.Waiters) == 6 })
			child, _, _ := strings.Cut(n.executed()[0], " ")
			pid, err := strconv.Atoi(child)
			must(t, err)
			m.hush("")
			must(t, kill(first, pid))
			if first.Wait() == nil {
				t.Error("the ADD that was killed has an answer")
			}
			for i, cmd := range others {
				if err := cmd.Wait(); err != nil {
					t.Errorf("%v: %s%s", err, cmd.Stdout, cmd.Stderr)
				}
				n.got(fmt.Sprint("pod", i), cmd)
			}
			if executed := n.executed(); len(executed) > 3 {
				t.Errorf("the program that asks EC2 was executed %d times", len(executed))
			}
			n.run(n.cni("DEL", "first", nil))
			n.lost("first")
			n.Age(time.Hour)
			n.run(n.gc())
			n.intact()
		})
	}
}

// TestTimeLeft: GrowProgram gets only the rest of addTimeout as its time.
func TestTimeLeft(t *testing.T) {
	n := counting(t, alone, "m5.large", &mute{})
	n.conf["addTimeout"] = 30
	unlock, err := n.Registry().Lock(t.Context(), "queue")
	must(t, err)
	cmd := n.cni("ADD", "web", nil)
	n.start(cmd)
	n.until("the ADD waits", func(s *registry.State) bool { return len(s.Waiters) == 1 })
	var end time.Time
	for _, w := range n.State().Waiters {
		end = w.Until
	}
	most := time.Until(end)
	unlock()
	must(t, cmd.Wait())
	_, args, _ := strings.Cut(n.executed()[0], " ")
	text, _, _ := strings.Cut(strings.TrimPrefix(args, "acquire "), " ") // the number of the interface follows
	left, err := time.ParseDuration(text)
	if err != nil || left > most || left <= 0 {
		t.Errorf("the program was executed with %q, when %v were left", args, most)
	}
}
