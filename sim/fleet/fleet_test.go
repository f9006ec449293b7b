// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"flag"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
)

var (
	nodes   = flag.Int("nodes", 0, "for TestWhole: how many nodes; 0: it does nothing")
	seed    = flag.Uint64("seed", 1, "for TestWhole: the same seed, the same figures")
	only    = flag.String("ways", "", "for TestWhole: a list of the only ways to play")
	stories = flag.String("stories", "ramp,replace",
		"for TestWhole: a list: nodes as they come (ramp), all at once (burst), and the same with all that "+
			"follows (replace)")
	results = flag.String("results", "", "for TestWhole: `directory` of results")
	write   = flag.String("write", "", "for TestWhole: `document` that gets the tables of all results")
)

// The constant churn is how many pods per second a rolling update replaces in a fleet of 2000 nodes (the constant of).
// At this rate, each node replaces a pod every four seconds. For comparison, the largest tier of EKS' control plane can
// start 400 pods per second.
const churn, of = 500, 2000

func planOf(nodes int, seed uint64) plan {
	return plan{nodes: nodes, pods: 30, seed: seed, churn: max(churn*nodes/of, 1), horizon: time.Hour, hour: time.Hour}
}

// TestWhole simulates a large fleet in each way. The command make fleet runs this test.
func TestWhole(t *testing.T) {
	if *nodes == 0 {
		return
	}
	for _, w := range ways {
		if *only != "" && !slices.Contains(strings.Split(*only, ";"), w.name) {
			continue
		}
		for story := range strings.SplitSeq(*stories, ",") {
			p := planOf(*nodes, *seed)
			p.ramp, p.replace = story == "ramp", story == "replace"
			began := time.Now()
			r := play(t, p, w)
			report(t, w, r)
			t.Logf("%s, %s: took %v", w.name, story, time.Since(began).Round(time.Second))
			err := save(*results, w.name, func(all *played) {
				all.Nodes, all.Pods = p.nodes, p.pods
				switch story {
				case "ramp":
					all.Ramp = r.scale.record()
				case "replace":
					all.Burst = r.scale.record()
					all.Roll, all.Hour, all.Idle = r.roll.record(), r.hour.record(), r.idle
				default:
					all.Burst = r.scale.record()
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	text, err := tables(*results)
	if err == nil && *write != "" {
		err = rewrite(*write, "fleet", text)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Log(text)
}

// report reports the first five leaks and the first five errors of a result as failures of the test.
func report(t *testing.T, w way, r result) {
	t.Helper()
	for _, b := range r.bad[:min(len(r.bad), 5)] {
		t.Errorf("%s: %s", w.name, b)
	}
}

// TestSmall simulates a fleet with the real code, and with so few nodes that the token buckets are never empty. It
// checks that all pods run, that no two pods have the same address, and that nothing leaks. It also checks that no way
// makes more calls than it needs.
func TestSmall(t *testing.T) {
	const n = 12
	for _, c := range []struct {
		way         string
		burst, roll map[string]int // maximum number of changing calls of each node
	}{
		{"defaults", enis(2), with1(enis(1), "AssignPrivateIpAddresses", 2)},
		{"prefixes", enis(1), map[string]int{"AssignPrivateIpAddresses": 1}},
		{"prefixes, warm", with1(enis(1), "AssignPrivateIpAddresses", 2),
			map[string]int{"AssignPrivateIpAddresses": 1}},
		{"provisioned", nil, nil},
	} {
		w := ways[slices.IndexFunc(ways, func(w way) bool { return w.name == c.way })]
		p := planOf(n, 7)
		p.churn, p.replace = n/4, true
		r := play(t, p, w)
		report(t, w, r)
		for name, ph := range map[string]*phase{"all at once": &r.scale, "replacement": &r.roll} {
			if len(ph.ends) != ph.pods {
				t.Errorf("%s, %s: %d of %d pods run", w.name, name, len(ph.ends), ph.pods)
			}
			if len(ph.refused) > 0 {
				t.Errorf("%s, %s: EC2 has throttled %v", w.name, name, ph.refused)
			}
		}
		atMost(t, w.name+", all at once", r.scale.made, c.burst, n)
		atMost(t, w.name+", replacement", r.roll.made, c.roll, n)
		if w.launched > 0 && sum(r.scale.made)+sum(r.roll.made)+sum(r.hour.made)+sum(r.hour.refused) > n {
			t.Errorf("%s: calls to EC2 %v %v %v %v: want one describe of each node, by a collection", w.name,
				r.scale.made, r.roll.made, r.hour.made, r.hour.refused)
		}
	}
}

func with1(calls map[string]int, action string, n int) map[string]int {
	calls = maps.Clone(calls)
	calls[action] = n
	return calls
}

func atMost(t *testing.T, what string, made, most map[string]int, nodes int) {
	t.Helper()
	for action, n := range made {
		if api.Changes(action) && n > most[action]*nodes {
			t.Errorf("%s: %d calls of %s, want at most %d for each of %d nodes", what, n, action, most[action], nodes)
		}
	}
}

// TestRepeats simulates the same fleet twice, and expects equal results. The nodes of the fleet wait for the token
// buckets.
func TestRepeats(t *testing.T) {
	w := ways[slices.IndexFunc(ways, func(w way) bool { return w.name == "prefixes" })]
	p := planOf(60, 3)
	one, two := play(t, p, w), play(t, p, w)
	if len(one.scale.refused) == 0 {
		t.Errorf("no call was throttled: %v", one.scale.made)
	}
	if !slices.Equal(one.scale.waits, two.scale.waits) || !maps.Equal(one.scale.made, two.scale.made) ||
		!maps.Equal(one.scale.refused, two.scale.refused) {
		t.Errorf("with the same seed, pods wait differently: at most %v and %v; calls %v and %v, throttled %v and %v",
			quantile(one.scale.waits, 1),
			quantile(two.scale.waits, 1), one.scale.made, two.scale.made, one.scale.refused, two.scale.refused)
	}
}

// TestModels compares the calls of the models of other plugins with figures that follow from the plugins' source.
func TestModels(t *testing.T) {
	for _, c := range []struct {
		way    string
		action string
		least  int // minimum number of calls of each node
	}{{"the original", "AssignPrivateIpAddresses", 20}, {"amazon-vpc-cni-k8s", "AttachNetworkInterface", 2},
		{"amazon-vpc-cni-k8s, prefixes", "AssignPrivateIpAddresses", 2}} {
		w := ways[slices.IndexFunc(ways, func(w way) bool { return w.name == c.way })]
		r := play(t, planOf(20, 5), w)
		if len(r.scale.ends) != r.scale.pods {
			t.Errorf("%s: %d of %d pods run", w.name, len(r.scale.ends), r.scale.pods)
		}
		if got := r.scale.made[c.action]; got < 20*c.least {
			t.Errorf("%s: %d calls of %s, want at least %d for each of 20 nodes", w.name, got, c.action, c.least)
		}
	}
}

// TestBound compares bound with values computed by hand. At once, EC2 allows 100 calls of CreateNetworkInterface and 50
// of AttachNetworkInterface. After that, it allows 5 calls of each action per second.
func TestBound(t *testing.T) {
	for _, c := range []struct {
		needs map[string]int
		nodes int
		want  time.Duration
	}{
		{map[string]int{"CreateNetworkInterface": 1}, 100, 0},
		{map[string]int{"CreateNetworkInterface": 1}, 101, time.Second},
		{map[string]int{"CreateNetworkInterface": 1, "AttachNetworkInterface": 1}, 100, 10 * time.Second},
		{map[string]int{"AttachNetworkInterface": 2}, 2000, 790 * time.Second},
		{nil, 2000, 0},
	} {
		if got := bound(c.needs, make([]time.Duration, c.nodes)); got != c.want {
			t.Errorf("%v of %d nodes: %v, want %v", c.needs, c.nodes, got, c.want)
		}
	}
}
