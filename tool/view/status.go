// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// A Status is the state of the node. Most of it comes from the registry.
type Status struct {
	Instance instanceStatus `json:"instance"`
	Work     workStatus     `json:"work"`
	Egress   EgressStatus   `json:"egress"` // not from the registry
	Pools    []poolStatus   `json:"pools"`
	ENIs     []eniStatus    `json:"enis"`
	Addrs    []Holding      `json:"addresses"`
}

// StatusOf returns the status of the node, as the registry shows it. maxENIs is the number of ENIs that the node may
// have. reuseWait returns how long the addresses of a pool cool. misfitOf returns why an ENI of an operator or another
// program serves no pods. linkNames has the names of the node's links by MAC address.
func StatusOf(
	s *registry.State, maxENIs int, reuseWait func(pool string) time.Duration, misfitOf func(registry.ENI) string,
	linkNames map[string]string, now time.Time,
) Status {
	all := Tally(s, reuseWait, now)
	return Status{Instance: instanceOf(s, maxENIs), Work: workOf(s, now), Pools: poolsOf(s, all),
		ENIs:  enisOf(s, all, misfitOf, linkNames, now),
		Addrs: cli.List(all)}
}

// An instanceStatus is the instance, with the number of its ENIs and their limit.
type instanceStatus struct {
	ID      string `json:"id"` // "": the registry knows nothing yet
	Type    string `json:"type"`
	Zone    string `json:"zone"`
	ENIs    int    `json:"enis"`
	ENIsMax int    `json:"enis_max"` // the instance type and maxENIs limit the number; 0: not known yet
}

func instanceOf(s *registry.State, most int) instanceStatus {
	return instanceStatus{s.Instance.ID, s.Instance.Type, s.Instance.Zone, s.Attached(), most}
}

// A workStatus has the work that is under way, and what stops work: throttled and refused EC2 calls, and locks.
type workStatus struct {
	Waiting    int              `json:"waiting"` // ADDs without an address
	Unfinished []unfinishedCall `json:"unfinished"`
	Throttled  []throttledCall  `json:"throttled"`
	Refused    []refusedCall    `json:"refused"`
	Locks      []LockStatus     `json:"locks"` // not from the registry
}

// An unfinishedCall is an EC2 call that is under way, or that was interrupted. The next process finishes an interrupted
// call.
type unfinishedCall struct {
	Action string    `json:"action"`
	ENI    string    `json:"eni"` // "": no ENI yet
	Since  time.Time `json:"since"`
}

// A throttledCall is an EC2 action that this node does not call for a while.
type throttledCall struct {
	Action string    `json:"action"`
	Until  time.Time `json:"until"`
}

// A refusedCall is an action that EC2 has refused for an ENI or a subnet. This node does not call the action again for
// this ENI or subnet until the time Until.
type refusedCall struct {
	Action string    `json:"action"`
	About  string    `json:"about"` // "": all ENIs and subnets
	Code   string    `json:"code"`
	Until  time.Time `json:"until"`
}

func workOf(s *registry.State, now time.Time) workStatus {
	n := workStatus{Waiting: waitingADDs(s, now), Unfinished: []unfinishedCall{}, Throttled: []throttledCall{},
		Refused: []refusedCall{}, Locks: []LockStatus{}}
	for _, i := range s.Intents {
		n.Unfinished = append(n.Unfinished, unfinishedCall{i.Action, i.ENI, Seconds(i.Since)})
	}
	slices.SortFunc(n.Unfinished, func(a, b unfinishedCall) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Action, b.Action))
	})
	for _, action := range slices.Sorted(maps.Keys(s.NotBefore)) {
		if until := s.NotBefore[action]; until.After(now) {
			n.Throttled = append(n.Throttled, throttledCall{action, Seconds(until)})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.Refusals)) {
		if r := s.Refusals[key]; r.Until.After(now) {
			action, about, _ := strings.Cut(key, " ")
			n.Refused = append(n.Refused, refusedCall{action, about, r.Code, Seconds(r.Until)})
		}
	}
	return n
}

// waitingADDs counts the ADDs that wait for an address, and have not given up.
func waitingADDs(s *registry.State, now time.Time) (n int) {
	for _, w := range s.Waiters {
		if w.Until.After(now) {
			n++
		}
	}
	return n
}

// A LockStatus is a lock that a process has held for a while.
type LockStatus struct {
	Lock    string `json:"lock"`
	PID     int    `json:"pid"`
	Program string `json:"program"` // "": the process has just ended
	Stopped bool   `json:"stopped"` // by a signal or a debugger
	Waiting int    `json:"waiting"` // processes that wait for the lock
}

// LocksOf looks twice, and lists the locks that the same process holds both times. A process that keeps the lock
// "registry" for this time is slow, is stopped, or hangs. A process that keeps another lock may wait for EC2.
func LocksOf(dir string) ([]LockStatus, error) {
	const between = 200 * time.Millisecond
	before, err := registry.Locks(dir)
	if err != nil || len(before) == 0 {
		return []LockStatus{}, err
	}
	time.Sleep(between)
	after, err := registry.Locks(dir)
	kept := []LockStatus{}
	for _, l := range after {
		same := func(b registry.LockUse) bool { return b.Lock == l.Lock && b.PID == l.PID }
		if slices.ContainsFunc(before, same) {
			kept = append(kept, LockStatus{l.Lock, l.PID, l.Program, l.Stopped, l.Waiting})
		}
	}
	return kept, err
}

func (l LockStatus) print(w io.Writer) {
	stopped := ""
	if l.Stopped {
		stopped = ", stopped"
	}
	fmt.Fprintf(w, "process %d (%s%s) holds the lock %s; processes that wait for this lock: %d\n",
		l.PID, l.Program, stopped, l.Lock,
		l.Waiting)
}

// print writes how many ADDs wait. It writes a line for each unfinished, throttled or refused call, and a line for each
// lock. If there are no waiting ADDs, calls and locks, print writes nothing.
func (n workStatus) print(w io.Writer, now time.Time) {
	if n.Waiting > 0 {
		fmt.Fprintf(w, "ADDs that wait for an address: %d\n", n.Waiting)
	}
	for _, c := range n.Unfinished {
		fmt.Fprintf(w, "EC2 call unfinished for %s: %s\n",
			Brief(now.Sub(c.Since)), strings.TrimSpace(c.Action+" "+c.ENI))
	}
	for _, c := range n.Throttled {
		fmt.Fprintf(w, "EC2 call throttled for another %s: %s\n", Brief(c.Until.Sub(now)), c.Action)
	}
	for _, l := range n.Locks {
		l.print(w)
	}
	for _, c := range n.Refused {
		fmt.Fprintf(w, "EC2 call refused, and skipped for another %s: %s (%s)\n", Brief(c.Until.Sub(now)),
			strings.TrimSpace(c.Action+" "+c.About), c.Code)
	}
}

type poolStatus struct {
	Pool string `json:"pool"`
	ENIs int    `json:"enis"`
	counts
	WarmMin int `json:"warm_min"`
	WarmMax int `json:"warm_max"` // 0: no limit
}

func poolsOf(s *registry.State, all []Holding) []poolStatus {
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
		name := conf.PoolName(pool)
		// leave out free addresses that are on no ENI, because no pod gets them
		n := countBy(all, func(h Holding) bool { return h.Pool == name && (h.ENI != "" || h.Leased()) })
		pools = append(pools, poolStatus{name, enis[pool], n, s.Warm[pool].Min, s.Warm[pool].Max})
	}
	return pools
}

type eniStatus struct {
	ID    string `json:"eni"`
	Iface string `json:"iface"` // "": no process has seen the link yet
	Index int    `json:"index"`
	Card  int    `json:"card"`
	Pool  string `json:"pool"`
	counts
	Prefixes int `json:"prefixes"`
	// State is one of eniStates, or "unused". "requested": a pod has asked for this ENI. "exclusive": a pod has the
	// whole ENI, and the ENI's link. "idle": the ENI has served no pod yet. "unused": an operator or another program
	// has attached the ENI, and the ENI serves no pods.
	State string `json:"state"`

	// time since which the node lacks the link of the ENI; null: the node has the link
	Missed *time.Time `json:"link_missed" head:"-"`
	Why    string     `json:"why" head:"-"` // why the ENI is unused; else ""
}

func enisOf(
	s *registry.State, all []Holding, misfit func(registry.ENI) string, links map[string]string, now time.Time,
) []eniStatus {
	enis, exclusive := []eniStatus{}, s.Exclusive()
	for id, e := range s.ENIs {
		n := countBy(all, func(h Holding) bool { return h.ENI == id })
		state, why := stateOf(e, exclusive[id], now), misfit(e)
		if why != "" && (state == "serving" || state == "idle") {
			state = "unused"
		}
		if state == "serving" && e.Link != "" && links[e.MAC] == "" { // no ADD has noticed yet that the link is gone
			state = "no-link"
		}
		enis = append(enis, eniStatus{id, e.Link, e.Index, e.Card, conf.PoolName(e.Pool), n, len(e.Prefixes), state,
			Moment(e.Missed), why})
	}
	slices.SortFunc(enis, func(a, b eniStatus) int {
		return cmp.Or(cmp.Compare(a.Card, b.Card), cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID))
	})
	return enis
}

// eniStates are the states that stateOf returns.
var eniStates = []string{"serving", "requested", "exclusive", "idle", "draining", "foreign", "no-link", "detached"}

func stateOf(e registry.ENI, exclusive bool, now time.Time) string {
	phase := e.Phase()
	switch {
	case phase == registry.Foreign || phase == registry.Draining:
		return string(phase)
	case e.Retired:
		return string(registry.Draining)
	case exclusive:
		return "exclusive"
	case e.NoLink(now) && phase == registry.Detached:
		return string(phase)
	case e.NoLink(now):
		return "no-link"
	case e.Origin() == registry.Requested:
		return "requested"
	case e.Serving:
		return "serving"
	}
	return "idle"
}

// printMissed writes a line if the ENI's link is missing on the node. The line says how long the link has been missing,
// and what the consequences are.
func (e eniStatus) printMissed(w io.Writer, now time.Time) {
	if e.Missed == nil {
		if e.State == "no-link" {
			fmt.Fprintf(w, "%s has no link on this node, so its pods have lost their network. The next ADD or "+
				"registry-gc finds out why\n", e.ID)
		}
		return
	}
	since := Brief(now.Sub(*e.Missed))
	switch e.State {
	case "detached":
		fmt.Fprintf(w, "%s is no longer attached to this instance, and its link has been missing for %s. Its pods "+
			"have lost their network, and new pods do not use this ENI\n", e.ID, since)
	case "no-link":
		fmt.Fprintf(w, "%s has had no link on this node for %s. Its pods have lost their network, and new pods "+
			"do not use this ENI\n", e.ID, since)
	default:
		fmt.Fprintf(w, "%s has had no link on this node for %s. New pods on this ENI wait for the link\n",
			e.ID, since)
	}
}

// Print writes the totals, then the addresses.
func (n Status) Print(w io.Writer, now time.Time) {
	switch {
	case n.Instance.ID == "" && len(n.Addrs) > 0:
		fmt.Fprintln(w, "the original plugin wrote the registry, so the registry has no ENI and no pod yet. The next "+
			"ADD or collection adds the ENIs and pods")
	case n.Instance.ID == "":
		fmt.Fprintln(w, emptyRegistry+". The next ADD or registry-gc builds the registry from the kernel, metadata "+
			"and EC2. Pods keep their addresses")
	default:
		limit := " (the limit is not known yet, because this node has not asked EC2)"
		if n.Instance.ENIsMax > 0 {
			limit = fmt.Sprintf(" of %d", n.Instance.ENIsMax)
		}
		fmt.Fprintf(w, "%s, %s, %s: %d ENIs%s\n", n.Instance.ID, n.Instance.Type, n.Instance.Zone, n.Instance.ENIs,
			limit)
	}
	n.Work.print(w, now)
	n.Egress.print(w)
	for _, e := range n.ENIs {
		e.printMissed(w, now)
		if e.State == "unused" {
			fmt.Fprintf(w, "%s is not used: %s\n", e.ID, e.Why)
		}
	}
	fmt.Fprintln(w)
	cli.Tabulate(w, n.Pools)
	fmt.Fprintln(w)
	cli.Tabulate(w, n.ENIs)
	fmt.Fprintln(w)
	rows := make([]holdingRow, 0, len(n.Addrs))
	for _, h := range n.Addrs {
		rows = append(rows, h.row(now))
	}
	cli.Tabulate(w, rows)
}

// A holdingRow is a [Holding] as a row of the table for people.
type holdingRow struct {
	Addr      string `json:"ip"`
	State     string `json:"state"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	ENI       string `json:"eni"`
	Age       string `json:"age"`
}

func (h Holding) row(now time.Time) holdingRow {
	const short = 12 // as container runtimes shorten their IDs
	r := holdingRow{h.Addr.String(), h.State, h.Owner(), h.Container[:min(len(h.Container), short)], h.ENI, ""}
	if h.Until != nil {
		r.State += " " + Brief(h.Until.Sub(now))
	}
	if h.Since != nil {
		r.Age = Brief(now.Sub(*h.Since))
	}
	return r
}
