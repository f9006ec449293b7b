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

// The names of the sources that [Bundle.Review] looks up.
const (
	sourceConflists = "conflists"
	sourceRegistry  = "registry"
	sourceKernel    = "kernel"
)

// A finish is the second part of a [reading]. It returns the data that may leave the node. A finish may change the
// [gathering], because the gathering goes on only after the finish has returned.
type finish func() (any, error)

// A reading reads one source. A reading must not change the gathering. After the reading's deadline, the gathering goes
// on, but the reading may still run. The gathering writes the finish's value to the source's file, as JSON. If another
// reading stores the source, the value is nil.
type reading struct {
	name, file string
	deadline   time.Duration
	share      int // bytes of the compressed file; 0: another reading stores the source
	read       func(*gathering, context.Context) (finish, error)
}

// readings are all readings in their order. A reading adds names to the allowance, so that later readings keep these
// names. A bundle has room for all shares and the manifest together.
var readings = []reading{
	{sourceConflists, "conflists.json", 5 * time.Second, 60_000, (*gathering).readConflists},
	// The kernel is read before the registry, because an ADD makes the lease before the links. So the registry has the
	// lease of each link whose pod still exists.
	{sourceKernel, "kernel.json", 10 * time.Second, 0, (*gathering).readKernel},
	{sourceRegistry, "registry.json", 5 * time.Second, 350_000, (*gathering).readRegistry},
	{"lease log", "leaselog.json", 5 * time.Second, 250_000, (*gathering).readLeaseLog},
	{"findings of doctor", "doctor.json", examineAll + examineOne, 150_000, (*gathering).readFindings},
	// kernel.json also has the answers that the kernel gave to the checks of doctor.
	{sourceKernel, "kernel.json", 5 * time.Second, 250_000, (*gathering).readSnapshot},
	{"answers of EC2", "cloud.json", 5 * time.Second, 80_000, (*gathering).readAnswers},
	{"four sources side by side", "observed.json", 20 * time.Second, 220_000, (*gathering).readObserved},
	{"status --diff", "diff.json", 5 * time.Second, 80_000, (*gathering).readDifference},
	{"pods", "pods.json", 10 * time.Second, 100_000, (*gathering).readPods},
	{"nftables", "nftables.json", 5 * time.Second, 100_000, (*gathering).readTables},
	{"BPF", "bpf.json", 5 * time.Second, 50_000, (*gathering).readPrograms},
	{"journal", "journal.json", 10 * time.Second, 200_000, (*gathering).readJournal},
	{"versions", "versions.json", 10 * time.Second, 10_000, (*gathering).readVersions},
}

// The time that one check of doctor may take, and the time that all checks together may take.
const (
	examineOne = 10 * time.Second
	examineAll = 35 * time.Second
)

// A gathering is a bundle that is being made.
type gathering struct {
	allow    *allowance
	binDir   string
	node     *doctor.Node // nil: the node could not be opened; unopened says why
	unopened error
	host     *nl.NS
	lists    *conf.Conflists
	state    *registry.State // nil: the registry was not read
	shot     *doctor.Snapshot
	asked    *doctor.Answers
	compared *view.Observation
}

// openError returns an error if the node could not be opened.
func (g *gathering) openError() error {
	if g.node == nil {
		return fmt.Errorf("the registry or the network namespace of the node cannot be opened: %w", g.unopened)
	}
	return nil
}

func (g *gathering) readFindings(ctx context.Context) (finish, error) {
	if err := g.openError(); err != nil {
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
			f.About, f.Means, f.Do = g.allow.keptText(f.About), g.allow.keptText(f.Means), g.allow.keptText(f.Do)
			found.Findings[i] = f
		}
		return &examination{found, unmade}, nil
	}, nil
}

// An examination has the findings of the doctor that ran on the node.
type examination struct {
	doctor.Report
	Unmade []doctor.Unmade `json:"unmade"`
}

func (e *examination) Cut() bool {
	e.Findings = e.Findings[:len(e.Findings)/2] // the worst findings come first
	return len(e.Findings) > 0
}

func (g *gathering) readAnswers(context.Context) (finish, error) {
	return func() (any, error) {
		a := g.asked.Copy()
		if len(a.Asked) == 0 {
			return nil, errors.New("no check of doctor has got an answer of EC2 or the metadata service")
		}
		a.Instance.Account = ""
		a.Attached, a.Subnets = g.allow.keptENIs(a.Attached), g.allow.keptSubnets(a.Subnets)
		for question, why := range a.Failed {
			a.Failed[question] = g.allow.keptText(why)
		}
		return a, nil
	}, nil
}

func (g *gathering) readObserved(ctx context.Context) (finish, error) {
	if err := g.openError(); err != nil {
		return nil, err
	}
	// This time is shorter than the reading's deadline, because Observe first asks EC2, and then reads the kernel.
	const asking = 15 * time.Second
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	o, err := view.Observe(ctx, g.node.Pool(), g.lists)
	return func() (any, error) {
		g.compared = o
		left := *o
		left.Metadata.ENIs, left.EC2.ENIs = g.allow.keptENIs(o.Metadata.ENIs), g.allow.keptENIs(o.EC2.ENIs)
		return &left, nil
	}, err
}

func (g *gathering) readDifference(context.Context) (finish, error) {
	if g.compared == nil {
		return nil, errors.New("registry, kernel, metadata and EC2 were not compared")
	}
	d := &difference{g.compared.Compare(g.lists.ReuseWait).Difference()}
	return func() (any, error) { return d, nil }, nil
}

// A difference is the answer of status --diff, with the disagreements first.
type difference struct{ view.Difference }

func (d *difference) Cut() bool {
	d.Addrs = d.Addrs[:len(d.Addrs)/2]
	return len(d.Addrs) > 0
}
