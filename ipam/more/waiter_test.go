// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestGather: the process that asks EC2 waits for a burst to end. Without a burst, it hardly waits.
func TestGather(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name   string
		age    time.Duration // how long the process has already waited
		others int           // number of ADDs that come later
		every  time.Duration // time between these ADDs
		enough int
		want   time.Duration
	}{
		{"alone", 0, 0, 0, 100, 10 * ms},
		{"alone since the describes", 200 * ms, 0, 0, 100, 0},
		{"nearly alone", 0, 1, 30 * ms, 100, 10 * ms},
		{"burst", 0, 9, 7 * ms, 100, 9*7*ms + 50*ms},
		{"burst since the describes", 5 * ms, 4, 3 * ms, 100, 4*3*ms + 50*ms},
		{"burst of more than a call brings", 0, 99, 7 * ms, 30, 204 * ms}, // checks at 10, 57, 106 and 155 ms
		{"stream", 0, 999, 7 * ms, 1000, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			synctest.Test(t, func(t *testing.T) {
				p := node(t, dir, lease.Policy{Batch: 1}, nil)
				waits(t, p, 0)
				time.Sleep(tt.age)
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					for i := range tt.others {
						if call.Sleep(ctx, tt.every, "") != nil {
							return
						}
						waits(t, p, i+1)
					}
				}()
				start := time.Now()
				must(t, p.gatherADDs(t.Context(), tt.enough, pauseAssign))
				took := time.Since(start)
				cancel()
				synctest.Wait()
				if took != tt.want {
					t.Errorf("gathered for %v, want %v", took, tt.want)
				}
			})
		})
	}
}

// TestPause: if the ADDs of a burst come slowly, the pause before the creation of an ENI is longer, up to a limit. The
// pause before an assignment of addresses stays the same.
func TestPause(t *testing.T) {
	const ms = time.Millisecond
	for each, want := range map[time.Duration]time.Duration{0: 150 * ms, 10 * ms: 150 * ms, 33 * ms: 264 * ms,
		time.Second: 300 * ms} {
		if got := pauseENI.burstPause(each); got != want {
			t.Errorf("an ADD each %v: %v, want %v", each, got, want)
		}
		if got := pauseAssign.burstPause(each); got != 50*ms {
			t.Errorf("addresses, an ADD each %v: %v", each, got)
		}
	}
}

// waits adds the pod n to the waiters in the registry.
func waits(t *testing.T, p *Node, n int) {
	t.Helper()
	must(t, p.Registry.Change(context.Background(), func(s *registry.State) {
		s.Waiters[fmt.Sprint(n)] = registry.Waiter{Since: time.Now(), Until: time.Now().Add(time.Minute)}
	}))
}

// TestWaitersWhileThrottled: ADDs that come while EC2 throttles are included in the call that succeeds.
func TestWaitersWhileThrottled(t *testing.T) {
	const action = "AssignPrivateIpAddresses"
	dir := filepath.Join(t.TempDir(), "state")
	synctest.Test(t, func(t *testing.T) {
		p := node(t, dir, lease.Policy{Batch: 1}, aws.New(aws.Options{}))
		waits(t, p, 0)
		var wanted []int
		must(t, p.Call(t.Context(), action, call.Object{}, call.NewIntent(registry.Intent{Action: action}),
			func(s *registry.State, _ string) (func(*registry.State), error) {
				wanted = append(wanted, p.wantedAddrs(s))
				if len(wanted) == 3 {
					return func(*registry.State) {}, nil
				}
				waits(t, p, len(wanted))
				return nil, &aws.Error{Action: action, Code: "RequestLimitExceeded"}
			}))
		if !slices.Equal(wanted, []int{1, 2, 3}) {
			t.Errorf("wanted %v", wanted)
		}
	})
}

// node returns a Node that opens the registry in dir, as a new process does.
func node(t *testing.T, dir string, policy lease.Policy, cloud *aws.Client) *Node {
	t.Helper()
	r, err := registry.Open(dir)
	must(t, err)
	p := &Node{}
	p.Pool, p.Cloud = lease.Pool{Registry: r, Policy: policy}, cloud
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
