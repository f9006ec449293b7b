// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package compare makes the same calls to two EC2s and to the metadata services of their instances, and compares the
// answers field by field. The first EC2 is the real one. The second is the simulator, which has a copy of the same VPC
// and subnets.
//
// The suite's own client (package aws) makes the calls, with the unchanged AWS SDK. The calls create, attach, change,
// detach and delete an ENI. EC2 must refuse some of the calls, because they contain deliberate errors. A recorder
// records the answers.
//
// IDs, addresses and times always differ. So the comparison replaces them by their form, for example by "an ID eni-" or
// "an IPv4 address". Some IDs have a counterpart in the other EC2, for example the ID of the new ENI. The comparison
// replaces such an ID and its counterpart by the same name.
//
// A field differs in kind if one side lacks the field, or if the forms differ. The comparison fails if the suite reads
// a field that differs in kind. Otherwise, tests with the simulator could pass although the suite fails on EC2. To find
// out whether the suite reads a field, a probe gives the suite's client the recorded answer without the field. If the
// client's result changes, the suite reads the field.
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

// A Place is an EC2, real or simulated, with two running instances in one subnet. The instances have only their boot
// ENIs.
type Place struct {
	Name        string         // real, or simulated
	EC2         aws.HTTPClient // makes requests to EC2
	EC2URL      string         // the URL of EC2; if empty, the client finds it in the environment
	Metadata    aws.HTTPClient // makes requests to the metadata service of the instance Node
	MetadataURL string         // the URL of this metadata service

	Node, Other         string // IDs of the instances
	Type, Zone          string // of both instances
	VPC, Subnet, Group  string // IDs
	NodeAddr, OtherAddr netip.Addr
	Account             string
}

// Options are the options of Run.
type Options struct {
	Tags  map[string]string // the tags of the ENIs that the steps create
	Pause time.Duration     // how long a step waits before it asks again whether EC2 shows a change
}

// patience is how long a step waits until EC2 and metadata show a change. For an attachment, EC2 takes seconds, and
// metadata sometimes half a minute more.
const patience = 3 * time.Minute

// A Table is the outcome of a comparison.
type Table struct {
	Rows    []Row
	Fields  int      // the number of compared fields
	Actions []string // the EC2 actions that the steps called
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

// Fails reports whether the comparison fails because of the difference: the suite reads the field, and the field
// differs in kind.
func (r Row) Fails() bool { return r.Kind && r.Read }

// Failures returns the rows that make the comparison fail.
func (t Table) Failures() []Row {
	return slices.DeleteFunc(slices.Clone(t.Rows), func(r Row) bool { return !r.Fails() })
}

// Run runs all steps on both sides. If a step fails on one side, Run returns an error, and a Table with the differences
// so far.
func Run(ctx context.Context, real, simulated Place, o Options) (Table, error) {
	defer silenceLog()()
	t := &tableBuilder{seen: map[Row]int{}, calls: map[string]bool{}}
	sides := []*side{newSide(real, o), newSide(simulated, o)}
	for _, s := range allSteps {
		var failed error
		for _, side := range sides {
			if err := side.runStep(ctx, s); err != nil && failed == nil {
				failed = fmt.Errorf("%s: %s: %w", side.place.Name, s.name, err)
			}
		}
		if ctx.Err() != nil {
			return t.result(), context.Cause(ctx)
		}
		t.addStep(s, sides[0], sides[1])
		if failed != nil {
			return t.result(), failed
		}
	}
	return t.result(), nil
}

// silenceLog discards the log messages of the suite's client. Without this, the client would warn of each field that a
// probe removes.
func silenceLog() (restore func()) {
	was := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	return func() { slog.SetDefault(was) }
}

// A tableBuilder collects the contents of a Table.
type tableBuilder struct {
	rows   []Row
	seen   map[Row]int // index into rows; the key is a Row with empty Step and Read
	calls  map[string]bool
	fields int
}

func (t *tableBuilder) addStep(s step, real, sim *side) {
	probes := [2]*probe{newProbe(s, real), newProbe(s, sim)}
	calls := [2]map[string]string{real.callsByName(), sim.callsByName()}
	for _, call := range unionKeys(calls[0], calls[1]) {
		t.calls[call] = true
		a, b := real.answerFields(calls[0][call]), sim.answerFields(calls[1][call])
		for _, field := range unionKeys(a, b) {
			t.fields++
			r := Row{Step: s.name, Call: call, Field: field, Real: a[field].shown, Sim: b[field].shown,
				Kind: a[field].kind != b[field].kind}
			if r.Real == r.Sim && !r.Kind {
				continue
			}
			r.Read = r.Kind && (probes[0].isRead(calls[0][call], field) || probes[1].isRead(calls[1][call], field))
			t.addRow(r)
		}
	}
	if a, b := real.outcome.meaning, sim.outcome.meaning; a != b {
		t.addRow(Row{Step: s.name, Call: s.name, Field: "(meaning to the suite)", Real: a, Sim: b, Kind: true,
			Read: true})
	}
}

// addRow adds a row if the table has no equal row. The comparison of rows ignores Step and Read, and the indices in
// Field. If Read is true in one of the equal rows, Read is true in the table's row.
func (t *tableBuilder) addRow(r Row) {
	key := r
	key.Step, key.Read = "", false
	key.Field = withoutIndices(key.Field)
	if at, ok := t.seen[key]; ok {
		t.rows[at].Read = t.rows[at].Read || r.Read
		return
	}
	t.seen[key] = len(t.rows)
	t.rows = append(t.rows, r)
}

func (t *tableBuilder) result() Table {
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

// unionKeys returns the keys of the two maps, sorted and without duplicates.
func unionKeys[V, W any](a map[string]V, b map[string]W) []string {
	all := map[string]bool{}
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	return slices.Sorted(maps.Keys(all))
}
