// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

func status() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "Show who has which address; with --diff, who disagrees about it",
		Description: `The totals, then each address: the pod that has it, or for how long it still
cools after one had it (reuseIPWait of the configuration). It reads the
registry alone.

--diff compares what the registry, the kernel, the metadata service and EC2
say, disagreements first, each with what it means and what to do. It changes
nothing. If they disagree, the exit status is 1. It does without EC2, or
without metadata, if these do not answer, and says so.`,
		Flags: []cli.Flag{
			configFlag(),
			&cli.BoolFlag{Name: "diff", Usage: "compare the registry with the kernel, the metadata service and EC2"},
		},
		Action: func(c *cli.Context) error {
			if c.Bool("diff") {
				return diff(c)
			}
			s, err := viewRegistry()
			if err != nil {
				return err
			}
			now := time.Now()
			all := tally(s, reuseWaits(c), now)
			n := nodeStatus{instanceOf(s), workOf(s, now), poolsOf(s, all), enisOf(s, all), list(all)}
			return answer(c, n, func(w io.Writer) { n.print(w, now) })
		},
	}
}

// A nodeStatus is what the registry knows.
type nodeStatus struct {
	Instance instanceStatus `json:"instance"`
	Work     workStatus     `json:"work"`
	Pools    []poolStatus   `json:"pools"`
	ENIs     []eniStatus    `json:"enis"`
	Addrs    []holding      `json:"addresses"`
}

// An instanceStatus is the machine, and how full it is.
type instanceStatus struct {
	ID      string `json:"id"` // "": nothing is known yet
	Type    string `json:"type"`
	Zone    string `json:"zone"`
	ENIs    int    `json:"enis"`
	ENIsMax int    `json:"enis_max"` // 0: not known yet
}

func instanceOf(s *registry.State) instanceStatus {
	return instanceStatus{s.Instance.ID, s.Instance.Type, s.Instance.Zone, len(s.ENIs), s.Instance.ENIs}
}

// A workStatus is what is under way, and what is in its way.
type workStatus struct {
	Waiting    int              `json:"waiting"` // ADDs without an address
	Unfinished []unfinishedCall `json:"unfinished"`
	Throttled  []throttledCall  `json:"throttled"`
}

// An unfinishedCall is an EC2 call that is under way, or that somebody has to look after.
type unfinishedCall struct {
	Action string    `json:"action"`
	ENI    string    `json:"eni"` // "": none yet
	Since  time.Time `json:"since"`
}

// A throttledCall is an EC2 action that this node does not call for a while.
type throttledCall struct {
	Action string    `json:"action"`
	Until  time.Time `json:"until"`
}

func workOf(s *registry.State, now time.Time) workStatus {
	n := workStatus{waitingADDs(s, now), []unfinishedCall{}, []throttledCall{}}
	for _, i := range s.Intents {
		n.Unfinished = append(n.Unfinished, unfinishedCall{i.Action, i.ENI, seconds(i.Since)})
	}
	slices.SortFunc(n.Unfinished, func(a, b unfinishedCall) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Action, b.Action))
	})
	for _, action := range slices.Sorted(maps.Keys(s.NotBefore)) {
		if until := s.NotBefore[action]; until.After(now) {
			n.Throttled = append(n.Throttled, throttledCall{action, seconds(until)})
		}
	}
	return n
}

// waitingADDs counts the ADDs that wait for an address, and have not given up.
func waitingADDs(s *registry.State, now time.Time) (n int) {
	for _, wish := range s.Wishes {
		if wish.Until.After(now) {
			n++
		}
	}
	return n
}

// print writes a line for each thing, and none if all is quiet.
func (n workStatus) print(w io.Writer, now time.Time) {
	if n.Waiting > 0 {
		fmt.Fprintf(w, "%d ADDs wait for an address\n", n.Waiting)
	}
	for _, c := range n.Unfinished {
		fmt.Fprintf(w, "unfinished since %s: %s\n", brief(now.Sub(c.Since)), strings.TrimSpace(c.Action+" "+c.ENI))
	}
	for _, c := range n.Throttled {
		fmt.Fprintf(w, "throttled for another %s: %s\n", brief(c.Until.Sub(now)), c.Action)
	}
}

// A poolStatus is a pool of addresses.
type poolStatus struct {
	Pool string `json:"pool"`
	ENIs int    `json:"enis"`
	counts
	WarmMin int `json:"warm_min"`
	WarmMax int `json:"warm_max"` // 0: no limit
}

func poolsOf(s *registry.State, all []holding) []poolStatus {
	enis := map[string]int{}
	for pool := range s.Warm {
		enis[pool] = 0
	}
	for _, e := range s.ENIs {
		if !e.Foreign {
			enis[e.Pool]++
		}
	}
	pools := []poolStatus{}
	for _, pool := range slices.Sorted(maps.Keys(enis)) {
		name := poolName(pool)
		n := count(all, func(h holding) bool { return h.Pool == name })
		pools = append(pools, poolStatus{name, enis[pool], n, s.Warm[pool].Min, s.Warm[pool].Max})
	}
	return pools
}

// An eniStatus is an ENI.
type eniStatus struct {
	ID    string `json:"eni"`
	Iface string `json:"iface"` // "": not seen yet
	Index int    `json:"index"`
	Card  int    `json:"card"`
	Pool  string `json:"pool"`
	counts
	Prefixes int    `json:"prefixes"`
	State    string `json:"state"` // serving, idle (no pod was here yet), draining, foreign
}

func enisOf(s *registry.State, all []holding) []eniStatus {
	enis := []eniStatus{}
	for id, e := range s.ENIs {
		n := count(all, func(h holding) bool { return h.ENI == id })
		enis = append(enis, eniStatus{id, e.Link, e.Index, e.Card, poolName(e.Pool), n, len(e.Prefixes), stateOf(e)})
	}
	slices.SortFunc(enis, func(a, b eniStatus) int {
		return cmp.Or(cmp.Compare(a.Card, b.Card), cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID))
	})
	return enis
}

func stateOf(e registry.ENI) string {
	switch {
	case e.Foreign:
		return "foreign"
	case e.Draining:
		return "draining"
	case e.Serving:
		return "serving"
	}
	return "idle"
}

// print writes the totals, then the addresses.
func (n nodeStatus) print(w io.Writer, now time.Time) {
	if n.Instance.ID == "" {
		fmt.Fprintln(w, "nothing is known of this node yet: no pod has asked for an address")
	} else {
		limit := "as many as it can have, not asked yet"
		if n.Instance.ENIsMax > 0 {
			limit = fmt.Sprint(n.Instance.ENIsMax)
		}
		fmt.Fprintf(w, "%s, %s, %s: %d ENIs of %s\n", n.Instance.ID, n.Instance.Type, n.Instance.Zone, n.Instance.ENIs, limit)
	}
	n.Work.print(w, now)
	fmt.Fprintln(w)
	tabulate(w, n.Pools)
	fmt.Fprintln(w)
	tabulate(w, n.ENIs)
	fmt.Fprintln(w)
	var rows []holdingRow
	for _, h := range n.Addrs {
		rows = append(rows, h.row(now))
	}
	tabulate(w, rows)
}

// A holdingRow is a holding for people.
type holdingRow struct {
	Addr      string `json:"ip"`
	State     string `json:"state"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	ENI       string `json:"eni"`
	Age       string `json:"age"`
}

func (h holding) row(now time.Time) holdingRow {
	const short = 12 // as container runtimes shorten their IDs
	r := holdingRow{h.Addr.String(), h.State, h.owner(), h.Container[:min(len(h.Container), short)], h.ENI, ""}
	if h.Until != nil {
		r.State += " " + brief(h.Until.Sub(now))
	}
	if h.Since != nil {
		r.Age = brief(now.Sub(*h.Since))
	}
	return r
}
