// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
)

// maxWorsening is the largest allowed ratio of a figure to the same figure of an earlier run. Counts of instructions
// differ by at most three percent between runs.
const maxWorsening = 1.10

// comparedColumns are the table columns that baseline.compare compares.
var comparedColumns = []string{"ADD p50", "DEL p50", "CPU ADD+DEL"}

// A baseline is the table that an earlier run printed; nil if -baseline names no file.
type baseline table.Table

func readBaseline(file string) (baseline, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	t := table.Parse(string(b))
	if len(t) < 2 {
		return nil, fmt.Errorf("%s: there is no table", file)
	}
	return baseline(t), nil
}

// compare returns an error for each figure of our data paths that is worse than maxWorsening allows.
func (b baseline) compare(now table.Table) error {
	if b == nil {
		return nil
	}
	var errs []error
	for _, row := range now[1:] {
		if row[0] != ours && row[0] != byVeth {
			continue
		}
		for _, figure := range comparedColumns {
			errs = append(errs, b.compareFigure(row[0], row[1], figure, now.Number(figure, row[0], row[1])))
		}
	}
	return errors.Join(errs...)
}

func (b baseline) compareFigure(chain, c, figure string, now float64) error {
	was := table.Table(b).Number(figure, chain, c)
	if was == 0 {
		return fmt.Errorf("%s of %s is not in the baseline (c=%s)", figure, chain, c)
	}
	if now <= was*maxWorsening {
		return nil
	}
	return fmt.Errorf("%s of %s is %v, and was %v: worse by %.0f %% (c=%s)", figure, chain, now, was,
		100*(now/was-1), c)
}
