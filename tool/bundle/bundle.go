// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package bundle writes a support bundle: one file about a node and the network of its pods. It also reads this file,
// on any machine.
//
// A bundle has sources: the registry, the kernel, EC2 and so on (see sources.go). Each source has a deadline, and a
// share of the bundle's size. If a source cannot be read, or is larger than its share, the manifest says so. A missing
// source is never a failure. So a bundle of a broken node has all sources that still work.
//
// The code in allow.go selects and filters the data that may leave the node. In texts of other programs or people, it
// keeps only words that cannot be a secret.
package bundle

import (
	"context"
	"fmt"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// MostBytes is the largest size of a bundle.
const MostBytes = 2_000_000

// A Manifest says what is in a bundle, and what is not.
type Manifest struct {
	Format  int       `json:"format"` // always 1
	Made    time.Time `json:"made"`
	Tool    string    `json:"tool"` // the release that has made the bundle
	Sources []Source  `json:"sources"`
}

// The states of a source: how much of the source is in the bundle.
const (
	Whole  = "whole"
	Cut    = "cut"
	Unread = "unread"
)

// A Source is an entry of the manifest. It reports whether the bundle has all data from one place, for example EC2.
type Source struct {
	Name  string `json:"name"`
	File  string `json:"file"`
	State string `json:"state"` // whole, cut or unread
	Why   string `json:"why"`   // why the source is not whole; else ""
	Took  string `json:"took"`
}

// String says how much of a source the bundle has, and why the bundle does not have more.
func (s Source) String() string {
	return fmt.Sprintf("the source %q is %s: %s", s.Name, s.State, s.Why)
}

// An Entry is a line of systemd's journal. The line is about one of our units.
type Entry struct {
	Time    time.Time `json:"time"`
	Unit    string    `json:"unit"`
	Program string    `json:"program"`
	Level   string    `json:"level"` // the level in syslog: 0 to 7
	Text    string    `json:"text"`
}

// A Bundle is the state of a node when the bundle was made.
type Bundle struct {
	Manifest
	State     *registry.State   // nil if the source was not read; the same holds for the fields below
	Log       []registry.Line   // the end of the lease log
	Networks  []conf.List       // the part of the conflists that may leave the node
	Kernel    *doctor.Snapshot  // links, addresses, routes, rules, and the kernel's other answers to doctor's checks
	Observed  *view.Observation // the answers of registry, kernel, metadata and EC2
	Cloud     *doctor.Answers   // the answers of EC2 and metadata to doctor's checks
	Findings  *doctor.Report    // findings of the doctor that ran on the node
	Unmade    []doctor.Unmade   // checks that the node could not make
	Pods      []PodObjects      // the kernel's objects in the pods' namespaces
	Journal   []Entry           // lines about our units
	Versions  map[string]string // of programs and of the kernel
	Conflists *conf.Conflists   // made from Networks
}

// Source returns what the manifest says about one source.
func (b *Bundle) Source(name string) Source {
	for _, s := range b.Sources {
		if s.Name == name {
			return s
		}
	}
	return Source{Name: name, State: Unread, Why: "the bundle does not have this source"}
}

// Review makes doctor's checks on the data of the bundle. It returns the findings, and the checks that cannot be made.
func (b *Bundle) Review(ctx context.Context) (doctor.Report, []doctor.Unmade) {
	if why := b.missingSource(); why != "" {
		none := doctor.Report{Checked: []string{}, Findings: []doctor.Finding{}}
		return none, []doctor.Unmade{{Check: "all", Why: why}}
	}
	r := doctor.Record{Made: b.Made, State: b.State, Conflists: b.Conflists, Kernel: b.Kernel, Cloud: b.Cloud,
		Observed: b.Observed}
	if r.Cloud == nil {
		r.Cloud = &doctor.Answers{}
	}
	return doctor.Review(ctx, r)
}

// missingSource returns a text about a missing or cut source that every check needs. If there is no such source, it
// returns "". The checks work without a conflist, but would be wrong with only some of the node's conflists.
func (b *Bundle) missingSource() string {
	lacks := func(name string) string { return "the bundle lacks the source " + name + ": " + b.Source(name).Why }
	if b.State == nil {
		return lacks(sourceRegistry)
	}
	if b.Kernel == nil {
		return lacks(sourceKernel)
	}
	for _, name := range []string{sourceRegistry, sourceConflists} {
		if s := b.Source(name); s.State == Cut {
			return "the bundle has only a part of the source " + name + ": " + s.Why
		}
	}
	return ""
}
