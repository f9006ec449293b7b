// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// latencies has the approximate time that EC2 takes for each action.
var latencies = map[string]time.Duration{
	"DescribeNetworkInterfaces": 100 * time.Millisecond, "DescribeSubnets": 100 * time.Millisecond,
	"DescribeInstanceTypes":  100 * time.Millisecond,
	"CreateNetworkInterface": 300 * time.Millisecond, "AttachNetworkInterface": 500 * time.Millisecond,
	"ModifyNetworkInterfaceAttribute": 100 * time.Millisecond, "AssignPrivateIpAddresses": 100 * time.Millisecond,
}

// burst runs ADDs at once, each in a process of its own. The argument pods is the number of ADDs, and first is the
// number of the first pod. burst returns how long all ADDs took, and the errors of the ADDs that failed. If no address
// is free, all ADDs wait before the first ADD has its turn.
func (n *node) burst(first, pods int) (took time.Duration, failed []types.Error) {
	n.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		n.Fatal(err)
	}
	defer r.Close()
	cmds := map[string]*exec.Cmd{}
	for i := range pods {
		pod := fmt.Sprint("pod", first+i)
		cmd := n.cni("ADD", pod, nil)
		cmd.Env, cmd.ExtraFiles = append(cmd.Env, gateFD+"=3"), []*os.File{r}
		n.start(cmd)
		cmds[pod] = cmd
	}
	start, cold := time.Now(), n.State().Free.Len() == 0
	unlock, err := n.Registry().Lock(n.Context(), "queue")
	if err != nil {
		n.Fatal(err)
	}
	w.Close()
	if cold {
		n.until("all wait", func(s *registry.State) bool { return len(s.Waiters) == pods })
		start = time.Now()
	}
	unlock()
	for _, cmd := range cmds {
		cmd.Wait()
	}
	took = time.Since(start)
	for pod, cmd := range cmds {
		n.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() // also of the programs that it executed
		if cmd.ProcessState.Success() {
			n.got(pod, cmd)
			continue
		}
		var e types.Error
		if err := json.Unmarshal(cmd.Stdout.(*bytes.Buffer).Bytes(), &e); err != nil {
			n.Errorf("%s: %v: %s%s", pod, err, cmd.Stdout, cmd.Stderr)
		}
		failed = append(failed, e)
		n.run(n.cni("DEL", pod, nil)) // as a runtime does
	}
	return took, failed
}

// writes returns the number of calls that have changed something in EC2. The text by has the number of these calls for
// each action.
func (n *node) writes() (total int, by string) {
	counts := n.EC2.Changed()
	for _, count := range counts {
		total += count
	}
	return total, fmt.Sprint(counts)
}

// waited returns the sum of the latencies of all calls to the simulated EC2.
func (n *node) waited() (sum time.Duration) {
	for _, c := range n.EC2.Calls() {
		sum += latencies[c.Action]
	}
	return sum
}

// least returns the smallest number of changing calls that give all pods addresses. Each ENI takes three calls: one
// creates it with all its addresses, one attaches it, and one sets DeleteOnTermination.
func least(pods, perENI int) int { return 3 * ((pods + perENI - 1) / perENI) }

// TestBurst runs ADDs at once on a node that has only its boot ENI. The number of ADDs is the number of pods that a
// kubelet allows, or more than the instance can serve. The test prints the number of changing calls. It also prints the
// ratio of two times: of the burst, and of the EC2 calls of a single ADD.
func TestBurst(t *testing.T) {
	table := []string{fmt.Sprintf("%-20s %5s %5s %7s %7s %7s %7s %5s", "", "ADDs", "pods", "writes", "least", "all",
		"one", "ratio")}
	for _, test := range []struct {
		name, instance string
		prefixes       bool
		pods           int
		enis, perENI   int // ENIs that the instance can have beside the boot ENI, and pods on each of these ENIs
	}{
		{"m5.4xlarge", "m5.4xlarge", false, 110, 7, 30},
		{"m5.4xlarge prefixes", "m5.4xlarge", true, 110, 7, 1 + 29*16},
		{"c5.large", "c5.large", false, 26, 2, 10},
		{"c5.large prefixes", "c5.large", true, 300, 2, 1 + 9*16},
	} {
		t.Run(test.name, func(t *testing.T) {
			alone := newNode(t, test.instance, ec2sim.Config{}, nil)
			n := newNode(t, test.instance, ec2sim.Config{}, nil)
			for _, n := range []*node{alone, n} {
				n.conf["prefixDelegation"] = test.prefixes
				for action, d := range latencies {
					n.EC2.Delay(action, d)
				}
			}
			one, _ := alone.burst(0, 1)
			all, failed := n.burst(0, test.pods)
			fit := min(test.pods, test.enis*test.perENI)
			if len(n.pods) != fit || len(failed) != test.pods-fit {
				t.Errorf("%d pods have an address, want %d: %v", len(n.pods), fit, failed)
			}
			for _, e := range failed {
				if e.Code != plugin.CodeTryAgain || e.Details == "" || !strings.Contains(e.Msg, "instance is full") {
					t.Errorf("error %d: %s (%s)", e.Code, e.Msg, e.Details)
				}
			}
			writes, by := n.writes()
			want := least(fit, test.perENI)
			if 10*writes > 11*want {
				t.Errorf("%d writes, the least is %d, and the budget a tenth more:%s", writes, want, by)
			}
			table = append(table, fmt.Sprintf("%-20s %5d %5d %7d %7d %6.2fs %6.2fs %5.1f",
				test.name, test.pods, len(n.pods), writes, want, all.Seconds(), one.Seconds(),
				float64(all)/float64(alone.waited())))
			n.intact()
		})
	}
	t.Log("EC2 takes 0.1 s for a describe, 0.3 s to create, 0.5 s to attach\n" + strings.Join(table, "\n"))
}

// TestBurstWarm: ADDs that find free addresses ask neither EC2 nor metadata, even if 29 of them run at once.
func TestBurstWarm(t *testing.T) {
	n := newNode(t, "m5.4xlarge", ec2sim.Config{}, nil)
	n.conf["ipBatchSize"] = 30
	n.add("pod0")
	n.EC2.ResetCalls()
	if _, failed := n.burst(1, 29); failed != nil {
		t.Error(failed)
	}
	if ec2, metadata := n.EC2.Calls(), n.MetadataCalls(); len(ec2)+len(metadata) > 0 {
		t.Errorf("EC2 was asked %v, metadata %v", ec2, metadata)
	}
}

// TestBurstThrottled: EC2 throttles most calls of a burst. No process makes a call before the time that the registry's
// NotBefore has for the action of this call.
func TestBurstThrottled(t *testing.T) {
	buckets := map[string]ec2sim.Bucket{}
	for _, action := range []string{"CreateNetworkInterface", "AttachNetworkInterface", "AssignPrivateIpAddresses"} {
		buckets[action] = ec2sim.Bucket{Size: 1, Refill: 1}
	}
	w := &watch{}
	n := newNode(t, "m5.4xlarge", ec2sim.Config{Throttle: true, Buckets: buckets}, w.via)
	w.node = n
	n.conf["addTimeout"] = 30
	drain(t, n)
	took, failed := n.burst(0, 110)
	for _, e := range failed {
		if e.Code != plugin.CodeTryAgain {
			t.Errorf("error %d: %s (%s)", e.Code, e.Msg, e.Details)
		}
	}
	if len(n.pods) == 0 {
		t.Error("no pod has an address")
	}
	for _, early := range w.early {
		t.Error(early)
	}
	throttled := 0
	for _, c := range n.EC2.Calls() {
		if c.Code == "RequestLimitExceeded" {
			throttled++
		}
	}
	writes, by := n.writes()
	if 10*writes > 11*least(110, 30) {
		t.Errorf("%d writes, more than without throttling:%s", writes, by)
	}
	t.Logf("%d pods have an address, %d were told to try again, in %v; %d calls throttled, %d writes:%s",
		len(n.pods), len(failed), took.Round(time.Millisecond), throttled, writes, by)
}

// drain makes EC2 throttle the next three calls of each action, as if other nodes of the account had emptied the
// buckets.
func drain(t *testing.T, n *node) {
	t.Helper()
	for _, action := range []string{"CreateNetworkInterface", "AttachNetworkInterface", "AssignPrivateIpAddresses"} {
		n.EC2.Fail(action, "RequestLimitExceeded", 3)
	}
}

// A watch sees all requests to EC2. It records the requests that come before the time in the registry's NotBefore.
type watch struct {
	*node
	mu    sync.Mutex
	early []string
}

func (w *watch) via(service string, next http.Handler) http.Handler {
	if service != "ec2" {
		return next
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.look(r)
		next.ServeHTTP(rw, r)
	})
}

// look checks one request. It ignores the SDK's second attempt, because this attempt is part of the same call.
func (w *watch) look(r *http.Request) {
	body := new(bytes.Buffer)
	body.ReadFrom(r.Body)
	r.Body = readCloser{bytes.NewReader(body.Bytes())}
	if !strings.Contains(r.Header.Get("amz-sdk-request"), "attempt=1;") &&
		!strings.HasSuffix(r.Header.Get("amz-sdk-request"), "attempt=1") {
		return
	}
	s, err := w.Registry().View()
	if err != nil {
		return
	}
	for action, until := range s.NotBefore {
		if strings.Contains(body.String(), "Action="+action+"&") && time.Now().Before(until) {
			w.mu.Lock()
			w.early = append(w.early, fmt.Sprintf("%s %v too early", action, time.Until(until)))
			w.mu.Unlock()
		}
	}
}

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }
