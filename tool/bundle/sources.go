// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bundle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// The names of the sources that the reader asks for.
const (
	sourceConflists = "conflists"
	sourceRegistry  = "registry"
	sourceKernel    = "kernel"
)

// A finish takes the data that was read, and returns the part that may leave the node. A finish runs while no reading
// runs, so a finish may change the gathering.
type finish func() (any, error)

// A reading reads one source. The gathering may end before a slow reading does, so a reading does not change the
// gathering. Its finish returns the value of the file, which is JSON, or nil if another reading stores it.
type reading struct {
	name, file string
	deadline   time.Duration
	share      int // bytes of the compressed file; 0: another reading stores it
	read       func(*gathering, context.Context) (finish, error)
}

// readings are in the order in which they are made. The text of later ones has names that earlier ones know. All
// shares together, and the manifest, have room in a bundle.
var readings = []reading{
	{sourceConflists, "conflists.json", 5 * time.Second, 60_000, (*gathering).conflists},
	{sourceRegistry, "registry.json", 5 * time.Second, 350_000, (*gathering).registry},
	{"lease log", "leaselog.json", 5 * time.Second, 250_000, (*gathering).leaseLog},
	{sourceKernel, "kernel.json", 10 * time.Second, 0, (*gathering).kernel},
	{"findings of doctor", "doctor.json", examineAll + examineOne, 150_000, (*gathering).findings},
	{sourceKernel, "kernel.json", time.Second, 250_000, (*gathering).snapshot}, // with the answers to the checks
	{"answers of EC2", "cloud.json", time.Second, 80_000, (*gathering).answers},
	{"four sources side by side", "observed.json", 20 * time.Second, 220_000, (*gathering).observed},
	{"status --diff", "diff.json", 5 * time.Second, 80_000, (*gathering).difference},
	{"pods", "pods.json", 10 * time.Second, 100_000, (*gathering).pods},
	{"nftables", "nftables.json", 5 * time.Second, 100_000, (*gathering).tables},
	{"BPF", "bpf.json", 5 * time.Second, 50_000, (*gathering).programs},
	{"journal", "journal.json", 10 * time.Second, 200_000, (*gathering).journal},
	{"versions", "versions.json", 10 * time.Second, 10_000, (*gathering).versions},
}

// How long one check of doctor may take, and all.
const (
	examineOne = 10 * time.Second
	examineAll = 35 * time.Second
)

// A gathering is a bundle in the making.
type gathering struct {
	allow    *allowance
	binDir   string
	node     *doctor.Node // nil: it could not be opened, because of unopened
	unopened error
	host     *nl.NS
	lists    *conf.Conflists
	state    *registry.State // as it was read; nil: it was not
	shot     *doctor.Snapshot
	asked    *doctor.Answers
	compared *view.Observation
}

// opened is why the node could not be opened, or nil.
func (g *gathering) opened() error {
	if g.node == nil {
		return fmt.Errorf("the registry or the network namespace of the node cannot be opened: %w", g.unopened)
	}
	return nil
}

// findings returns the findings of doctor.
func (g *gathering) findings(ctx context.Context) (finish, error) {
	if err := g.opened(); err != nil {
		return nil, err
	}
	if g.shot != nil {
		g.node.Record(g.shot, g.asked)
	}
	ctx, cancel := context.WithTimeout(ctx, examineAll)
	defer cancel()
	found, unmade := g.node.ExamineEach(ctx, examineOne)
	return func() (any, error) {
		for i, f := range found.Findings {
			f.About, f.Means, f.Do = g.allow.text(f.About), g.allow.text(f.Means), g.allow.text(f.Do)
			found.Findings[i] = f
		}
		return &examined{found, unmade}, nil
	}, nil
}

// An examined node is what doctor has found there.
type examined struct {
	doctor.Report
	Unmade []doctor.Unmade `json:"unmade"`
}

func (e *examined) Cut() bool {
	e.Findings = e.Findings[:len(e.Findings)/2] // the worst are first
	return len(e.Findings) > 0
}

func (g *gathering) answers(context.Context) (finish, error) {
	return func() (any, error) {
		a := g.asked.Copy()
		if len(a.Asked) == 0 {
			return nil, errors.New("no check has asked EC2 or the metadata service in time")
		}
		a.Instance.Account = ""
		a.Attached, a.Subnets = g.allow.enis(a.Attached), g.allow.subnets(a.Subnets)
		for question, why := range a.Failed {
			a.Failed[question] = g.allow.text(why)
		}
		return a, nil
	}, nil
}

func (g *gathering) observed(ctx context.Context) (finish, error) {
	if err := g.opened(); err != nil {
		return nil, err
	}
	const asking = 15 * time.Second // of the deadline: the kernel's part comes last
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	o, err := view.Observe(ctx, g.node.Pool(), g.lists)
	return func() (any, error) {
		g.compared = o
		left := *o
		left.Metadata.ENIs, left.EC2.ENIs = g.allow.enis(o.Metadata.ENIs), g.allow.enis(o.EC2.ENIs)
		return &left, nil
	}, err
}

func (g *gathering) difference(context.Context) (finish, error) {
	if g.compared == nil {
		return nil, errors.New("the four sources were not compared")
	}
	d := &difference{g.compared.Compare(g.lists.ReuseWait).Difference()}
	return func() (any, error) { return d, nil }, nil
}

// A difference is what status --diff answers, the disagreements first.
type difference struct{ view.Difference }

func (d *difference) Cut() bool {
	d.Addrs = d.Addrs[:len(d.Addrs)/2]
	return len(d.Addrs) > 0
}
