// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package compare makes the same calls to two EC2s and to the metadata services of their instances, and compares the
// answers field by field. One EC2 is the real one, and the other is the simulator, set up alike.
//
// The calls are the calls of the suite: its own client (package aws) makes them, by the unchanged SDK. They lead an ENI
// through its life, and also ask for what EC2 must refuse. What goes over the wire is recorded.
//
// IDs, addresses and times differ in any case. So a text is compared by its form: "an ID eni-", "an IPv4 address".
// Texts that both sides know by a name, such as the ID of the new ENI, are compared by the name.
//
// Whether the suite reads a field is not on a list. The recorded answer is played to the suite's client again, without
// the field. If the client's result is then another one, the suite reads the field. A difference in kind of such a
// field is a failure: the simulator, and so all tests with it, differ from EC2 where it matters.
package compare

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// A Place is an EC2 with two running instances in one subnet, which have their boot ENIs alone.
type Place struct {
	Name        string         // real, or simulated
	EC2         aws.HTTPClient // reaches EC2,
	EC2URL      string         // at this URL; empty: as the environment says
	Metadata    aws.HTTPClient // reaches the metadata service of Node,
	MetadataURL string         // at this URL

	Node, Other         string // IDs of the instances
	Type, Zone          string // of both
	VPC, Subnet, Group  string // IDs
	NodeAddr, OtherAddr netip.Addr
	Account             string
}

// Options are what both sides do alike.
type Options struct {
	Tags  map[string]string // of the ENIs that are made
	Pause time.Duration     // between two looks, while a change is under way
}

// patience is how long a change may take. An attachment takes seconds, and metadata may lag by half a minute.
const patience = 3 * time.Minute

// A Table is the outcome.
type Table struct {
	Rows    []Row
	Fields  int      // how many were compared
	Actions []string // of EC2, that were called
	Paths   []string // of metadata, that were asked for
}

// A Row is a field that differs.
type Row struct {
	Step  string // the first in which it differs
	Call  string // the action, or the path of metadata
	Field string
	Real  string
	Sim   string
	Kind  bool // they differ in kind: one side lacks it, or the forms differ
	Read  bool // the suite reads it
}

// Fails reports whether the difference matters: the suite reads the field, and it differs in kind.
func (r Row) Fails() bool { return r.Kind && r.Read }

// Failures returns the rows that matter.
func (t Table) Failures() []Row {
	return slices.DeleteFunc(slices.Clone(t.Rows), func(r Row) bool { return !r.Fails() })
}

// Run takes all steps on both sides. An error means that a side could not go on, for example because EC2 refuses what
// the simulator allows. The table then has what was compared until then.
func Run(ctx context.Context, real, simulated Place, o Options) (Table, error) {
	defer quiet()()
	t := &table{seen: map[Row]int{}, calls: map[string]bool{}}
	sides := []*side{newSide(real, o), newSide(simulated, o)}
	for _, s := range script {
		var failed error
		for _, side := range sides {
			if err := side.take(ctx, s); err != nil && failed == nil {
				failed = fmt.Errorf("%s: %s: %w", side.place.Name, s.name, err)
			}
		}
		if ctx.Err() != nil {
			return t.table(), context.Cause(ctx)
		}
		t.compare(s, sides[0], sides[1])
		if failed != nil {
			return t.table(), failed
		}
	}
	return t.table(), nil
}

// quiet silences the client's log: played without a field, an answer is one that the client warns of.
func quiet() (restore func()) {
	was := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	return func() { slog.SetDefault(was) }
}

// A table collects rows.
type table struct {
	rows   []Row
	seen   map[Row]int // where the row is, by all except its step and Read
	calls  map[string]bool
	fields int
}

// compare adds what differs in a step.
func (t *table) compare(s step, real, sim *side) {
	probes := [2]*probe{newProbe(s, real), newProbe(s, sim)}
	calls := [2]map[string]string{real.calls(), sim.calls()}
	for _, call := range union(calls[0], calls[1]) {
		t.calls[call] = true
		a, b := real.fields(calls[0][call]), sim.fields(calls[1][call])
		for _, field := range union(a, b) {
			t.fields++
			r := Row{Step: s.name, Call: call, Field: field, Real: a[field].shown, Sim: b[field].shown,
				Kind: a[field].kind != b[field].kind}
			if r.Real == r.Sim && !r.Kind {
				continue
			}
			r.Read = r.Kind && (probes[0].reads(calls[0][call], field) || probes[1].reads(calls[1][call], field))
			t.add(r)
		}
	}
	if a, b := real.outcome.meaning, sim.outcome.meaning; a != b {
		t.add(Row{Step: s.name, Call: s.name, Field: "(meaning to the suite)", Real: a, Sim: b, Kind: true, Read: true})
	}
}

// add adds a row once.
func (t *table) add(r Row) {
	key := r
	key.Step, key.Read = "", false
	key.Field = withoutIndex(key.Field)
	if at, ok := t.seen[key]; ok {
		t.rows[at].Read = t.rows[at].Read || r.Read
		return
	}
	t.seen[key] = len(t.rows)
	t.rows = append(t.rows, r)
}

func (t *table) table() Table {
	all := Table{Rows: t.rows, Fields: t.fields}
	for _, call := range slices.Sorted(maps.Keys(t.calls)) {
		if call[0] == '/' {
			all.Paths = append(all.Paths, call)
		} else {
			all.Actions = append(all.Actions, call)
		}
	}
	return all
}

// union returns the keys of both maps, sorted.
func union[V, W any](a map[string]V, b map[string]W) []string {
	all := map[string]bool{}
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	return slices.Sorted(maps.Keys(all))
}
