// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package bundle puts what a node shows of its pods' network into one file, and reads such a file on any machine.
//
// A bundle has sources: the registry, the kernel, EC2 and so on (see sources.go). Each source has a deadline and a
// share of the size. If a source cannot be read, or has no room, the manifest has a line about it. A missing source is
// never a failure. So a bundle of a broken node has all sources that still work.
//
// What may leave the node is listed field by field (see allow.go). A type of this project has no field for anything
// else. Text that others may have written keeps only the words that can be no secret.
package bundle

import (
	"context"
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
	Format  int       `json:"format"` // 1
	Made    time.Time `json:"made"`
	Tool    string    `json:"tool"` // the release that has made the bundle
	Sources []Source  `json:"sources"`
}

// How much of a source is in a bundle.
const (
	Whole  = "whole"
	Cut    = "cut"
	Unread = "unread"
)

// A Source is what was asked for the bundle.
type Source struct {
	Name  string `json:"name"`
	File  string `json:"file"`
	State string `json:"state"` // whole, cut or unread
	Why   string `json:"why"`   // it is not whole; else ""
	Took  string `json:"took"`
}

// An Entry is a line of the journal about a unit of ours.
type Entry struct {
	Time    time.Time `json:"time"`
	Unit    string    `json:"unit"`
	Program string    `json:"program"`
	Level   string    `json:"level"` // that of syslog: 0 to 7
	Text    string    `json:"text"`
}

// A Bundle is what a node was like.
type Bundle struct {
	Manifest
	State     *registry.State   // nil: unread, as all that follows
	Log       []registry.Line   // the end of the lease log
	Networks  []conf.List       // what may leave the node of the conflists
	Kernel    *doctor.Snapshot  // links, addresses, routes, rules, and answers to the checks
	Observed  *view.Observation // the four sources side by side
	Cloud     *doctor.Answers   // of EC2 and metadata to the checks
	Findings  *doctor.Report    // of the node itself
	Unmade    []doctor.Unmade   // on the node
	Pods      []Inside          // what the kernel has in their namespaces
	Journal   []Entry           // of our units
	Versions  map[string]string // of programs and of the kernel
	Conflists *conf.Conflists   // of Networks
}

// Source returns what the manifest says of a source.
func (b *Bundle) Source(name string) Source {
	for _, s := range b.Sources {
		if s.Name == name {
			return s
		}
	}
	return Source{Name: name, State: Unread, Why: "the bundle does not have it"}
}

// Review makes doctor's checks on the data of the bundle. Where the data is not whole, it makes none.
func (b *Bundle) Review(ctx context.Context) (doctor.Report, []doctor.Unmade) {
	if why := b.lacks(); why != "" {
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

// lacks is why no check can be made, or "". A node without a conflist is checked as it is.
func (b *Bundle) lacks() string {
	for name, has := range map[string]bool{sourceRegistry: b.State != nil, sourceKernel: b.Kernel != nil} {
		if !has {
			return "the source " + name + " is not there: " + b.Source(name).Why
		}
	}
	for _, name := range []string{sourceRegistry, sourceConflists} {
		if s := b.Source(name); s.State == Cut {
			return "the source " + name + " is not whole: " + s.Why
		}
	}
	return ""
}
