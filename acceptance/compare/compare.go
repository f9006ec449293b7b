// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package compare makes the same calls to two EC2s and to the metadata services of their instances, and compares the
// answers field by field. One EC2 is the real EC2. The other EC2 is the simulator, with the same VPC and subnets.
//
// The suite's own client (package aws) makes the calls, by the unchanged SDK. The calls create, attach, change, detach
// and delete an ENI. Some calls ask for things that EC2 must refuse. A recorder keeps the answers.
//
// IDs, addresses and times always differ. Instead of such a text, the comparison uses the form of the text: "an ID
// eni-", "an IPv4 address". For some texts, the comparison has a name that is the same on both sides. An example is the
// ID of the new ENI. Instead of such a text, the comparison uses the name.
//
// There is no list of the fields that the suite reads. To find out whether the suite reads a field, the comparison
// gives the suite's client the recorded answer without this field. If the client's result differs, the suite reads the
// field. If a field that the suite reads differs in kind, the comparison fails. Then the simulator gives the suite
// another answer than EC2, also in all tests.
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

// A Place is an EC2 with two running instances in one subnet. The instances have only their boot ENIs.
type Place struct {
	Name        string         // real, or simulated
	EC2         aws.HTTPClient // makes requests to EC2
	EC2URL      string         // the URL of EC2; empty: the environment names the URL
	Metadata    aws.HTTPClient // makes requests to the metadata service of Node
	MetadataURL string         // the URL of this metadata service

	Node, Other         string // IDs of the instances
	Type, Zone          string // of both instances
	VPC, Subnet, Group  string // IDs
	NodeAddr, OtherAddr netip.Addr
	Account             string
}

// Options are the same for both sides.
type Options struct {
	Tags  map[string]string // of the ENIs that the steps create
	Pause time.Duration     // between two tries of a step that waits for a change
}

// patience is the longest time that a change may take. An attachment takes seconds, and metadata may lag by half a
// minute.
const patience = 3 * time.Minute

// A Table is the outcome of a comparison.
type Table struct {
	Rows    []Row
	Fields  int      // the number of compared fields
	Actions []string // the actions of EC2 that the steps called
	Paths   []string // the paths of metadata that the steps asked for
}

// A Row is a field that differs.
type Row struct {
	Step  string // the first step in which the field differs
	Call  string // the action, or the path of metadata
	Field string
	Real  string
	Sim   string
	Kind  bool // the field differs in kind: one side lacks it, or the forms differ
	Read  bool // the suite reads the field
}

// Fails reports whether the difference fails the comparison: the suite reads the field, and the field differs in kind.
func (r Row) Fails() bool { return r.Kind && r.Read }

// Failures returns the rows that fail the comparison.
func (t Table) Failures() []Row {
	return slices.DeleteFunc(slices.Clone(t.Rows), func(r Row) bool { return !r.Fails() })
}

// Run makes all steps on both sides. An error means that a side could not go on, for example because EC2 refuses a call
// that the simulator allows. The table then has the differences of the steps before.
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

// quiet silences the client's log, because the client warns of answers in which a field is missing.
func quiet() (restore func()) {
	was := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	return func() { slog.SetDefault(was) }
}

// A table collects rows.
type table struct {
	rows   []Row
	seen   map[Row]int // the index of a row, by all its fields except Step and Read
	calls  map[string]bool
	fields int
}

// compare adds the differences of a step.
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

// add adds a row, unless the table already has the same row from another step or for another index in a list.
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
