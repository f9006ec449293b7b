// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

var writeCold = flag.String("cold", "", "for TestCold: `directory` of cold.txt and speed.md, which it writes")

// A cold is a situation in which ADDs find no free address, so that they wait for EC2.
type cold struct {
	name  string
	way   way
	had   int           // number of pods that the node has before; their ADDs leave no free address
	pods  int           // number of pods whose ADDs run at the same time
	ec2   func(*region) // makes EC2 behave differently in this case; may be nil
	drawn bool          // if true, docs/cold.svg shows the calls of this case
	calls int           // maximum number of calls to EC2
	most  float64       // maximum of coldRun.ratio
}

// shipped returns a way. Its policy is the policy of the shipped configuration, with routes to the VPC's peers. The
// function change then changes this policy.
func shipped(change func(*lease.Policy)) way {
	return way{policy: with(func(p *lease.Policy) { p.Peers = true; change(p) })}
}

func single(*lease.Policy)     {}
func prefixes(p *lease.Policy) { p.Prefixes = true }

func (w way) on(instance string) way { w.instance = instance; return w }

// goal is the maximum of coldRun.ratio in most cases.
const goal = 1.05

// colds are the cases. The case with two new ENIs exceeds the goal, because a node creates its ENIs one after the other
// (see docs/speed.md).
var colds = []cold{
	{name: "addresses on an ENI with room", way: shipped(single), had: 1, pods: 1, drawn: true, calls: 1, most: goal},
	{name: "a prefix on an ENI with room", way: shipped(prefixes), had: 17, pods: 1, calls: 1, most: goal},
	{name: "a new ENI, the node's first", way: shipped(single), pods: 1, drawn: true, calls: 7, most: goal},
	{name: "a further ENI", way: shipped(single), had: 15, pods: 1, calls: 5, most: goal},
	{name: "a new ENI in the second subnet", way: shipped(single), pods: 1, drawn: true, calls: 8, most: goal,
		ec2: func(r *region) { r.sim.Fail("CreateNetworkInterface", "InsufficientFreeAddressesInSubnet", 1) }},
	{name: "60 ADDs together, prefixes", way: shipped(prefixes), pods: 60, calls: 7, most: goal},
	{name: "60 ADDs together, two ENIs", way: shipped(single).on("m5.4xlarge"), pods: 60, drawn: true, calls: 12,
		most: 1.2},
}

// A span is one call to EC2, from the request to the answer. The times count from the start of the ADDs.
type span struct {
	action       string
	begins, ends time.Duration
}

func (s span) took() time.Duration { return s.ends - s.begins }

// onPath reports whether the call is one of the changes that must follow each other. An ADD waits for each of these
// changes.
func (s span) onPath() bool {
	return slices.Contains([]string{"AssignPrivateIpAddresses", "CreateNetworkInterface", "AttachNetworkInterface"},
		s.action)
}

// prepares reports whether the node needs the answer of this call before it creates its first ENI. These calls do not
// wait for each other.
func (s span) prepares() bool {
	return slices.Contains([]string{"DescribeInstanceTypes", "DescribeNetworkInterfaces", "DescribeSubnets"}, s.action)
}

// A coldRun is the outcome of a case.
type coldRun struct {
	spans  []span        // in the order of their start
	leased time.Duration // time until the last ADD has its address
}

// path returns the sum of two times: the time of all calls that must follow each other, and the time of the longest
// preparing call before these calls.
func (r coldRun) path() (sum time.Duration) {
	asked := time.Duration(0)
	for _, s := range r.spans {
		switch {
		case s.onPath():
			sum += s.took()
		case s.prepares() && sum == 0:
			asked = max(asked, s.took())
		}
	}
	return asked + sum
}

func (r coldRun) ratio() float64 { return float64(r.leased) / float64(r.path()) }

// play runs the case. The latencies are random; seed is the seed of the random numbers.
func (c cold) play(outside *testing.T, seed uint64) (run coldRun) {
	dir := simtest.Memory(outside)
	synctest.Test(outside, func(t *testing.T) {
		r, err := newRegion(func(string) *host { return newHost(outside) })
		if err != nil {
			t.Fatal(err)
		}
		n := &ours{place: newPlace(seed, 0), region: r, way: c.way, dir: filepath.Join(dir, "registry"),
			queue: make(chan struct{}, 1), turn: make(chan struct{}, 1), owners: newOwners()}
		if err := n.launch(); err != nil {
			t.Fatal(err)
		}
		for i := range c.had {
			if err := n.add(t.Context(), fmt.Sprint("had", i)); err != nil {
				t.Fatal(err)
			}
		}
		const rest = 3 * time.Minute // after this time, the node does not use its earlier answers from EC2
		time.Sleep(rest)
		if c.ec2 != nil {
			c.ec2(r)
		}
		run = c.burst(t, n)
		if bad := append(n.leaks(c.had+c.pods), n.owners.bad...); len(bad) > 0 {
			t.Errorf("%s: %v", c.name, bad)
		}
	})
	return run
}

// burst runs the ADDs of the case at the same time, and records the calls to EC2.
func (c cold) burst(t *testing.T, n *ours) (run coldRun) {
	var mu sync.Mutex
	began := time.Now()
	n.watch = func(action string, at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		run.spans = append(run.spans, span{action, at.Sub(began), time.Since(began)})
	}
	var all sync.WaitGroup
	for i := range c.pods {
		all.Go(func() {
			if err := n.add(t.Context(), fmt.Sprint("pod", i)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	run.leased = time.Since(began)
	time.Sleep(time.Minute) // until EC2 has answered all calls
	slices.SortFunc(run.spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.begins.Milliseconds(), b.begins.Milliseconds()), cmp.Compare(a.ends, b.ends))
	})
	return run
}

func millis(d time.Duration) string { return fmt.Sprint(d.Round(time.Millisecond).Milliseconds()) }

// row returns the table row of the case. The figures are those of the first run. The last cell has the highest ratio of
// all runs.
func (c cold) row(runs []coldRun) []string {
	worst := slices.MaxFunc(runs, func(a, b coldRun) int { return cmp.Compare(a.ratio(), b.ratio()) })
	return []string{c.name, fmt.Sprint(len(runs[0].spans)), millis(runs[0].leased), millis(runs[0].path()),
		fmt.Sprintf("%.2f", runs[0].ratio()), fmt.Sprintf("%.2f", worst.ratio())}
}

// rows returns a row for each EC2 call of a run. The cell "after" names the call whose answer came less than 1 ms
// before this call began.
func (c cold) rows(r coldRun) (rows [][]string) {
	for _, s := range r.spans {
		after, on := "", "beside"
		for _, b := range r.spans {
			if ended := s.begins - b.ends; ended >= 0 && ended < time.Millisecond {
				after = b.action
			}
		}
		if s.onPath() || s.prepares() {
			on = "path"
		}
		rows = append(rows, []string{c.name, s.action, millis(s.begins), millis(s.ends), on, after})
	}
	return append(rows, []string{c.name, "the last address is leased", millis(r.leased), millis(r.leased), "", ""})
}

// TestCold runs the cases, and checks them against their limits. It also checks that the docs have these figures. The
// command make cold writes the figures.
func TestCold(t *testing.T) {
	const draws = 10
	simtest.Credentials(t)
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.DiscardHandler))
	figures := table.Table{{"cold ADD, milliseconds", "calls", "leased", "path", "x", "x, worst"}}
	waterfall := table.Table{{"case", "call", "begins", "ends", "on", "after"}}
	for _, c := range colds {
		var runs []coldRun
		for seed := range uint64(draws) {
			r := c.play(t, seed+1)
			runs = append(runs, r)
			if r.ratio() > c.most || len(r.spans) > c.calls {
				t.Errorf("%s, draw %d: leased after %.3f of the path, want at most %v; %d calls, want at most %d",
					c.name, seed+1, r.ratio(), c.most, len(r.spans), c.calls)
			}
		}
		figures = append(figures, c.row(runs))
		if c.drawn {
			waterfall = append(waterfall, c.rows(runs[0])...)
		}
	}
	published(t, fmt.Sprintf("\n%s", figures), fmt.Sprintf("%s\n%s", figures, waterfall))
}

// published checks that the docs have the tables. If the flag -cold is set, it writes the tables instead.
func published(t *testing.T, inSpeed, coldTxt string) {
	t.Helper()
	if *writeCold != "" {
		err := cmp.Or(os.WriteFile(filepath.Join(*writeCold, "cold.txt"), []byte(coldTxt), 0o644),
			rewrite(filepath.Join(*writeCold, "speed.md"), "cold", inSpeed))
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	for file, want := range map[string]string{"cold.txt": coldTxt, "speed.md": inSpeed} {
		b, err := os.ReadFile(filepath.Join("../../docs", file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), want) {
			t.Errorf("docs/%s does not have the figures of this version: run make cold\n%s", file, want)
		}
	}
}
