// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// worse is by how much a figure may be worse than the baseline's. Counts of instructions repeat within three percent.
const worse = 1.10

// figures are the columns of the table that are held against the baseline.
var figures = []string{"ADD p50", "DEL p50", "CPU ADD+DEL"}

// A baseline is the table of an earlier run; nil if there is none to compare with.
type baseline table

func readBaseline(file string) (baseline, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	t := parseTable(string(b))
	if len(t) < 2 {
		return nil, fmt.Errorf("%s: there is no table", file)
	}
	return baseline(t), nil
}

// compare fails if a figure of our chain is worse than it was.
func (b baseline) compare(now table) error {
	if b == nil {
		return nil
	}
	var errs []error
	for _, row := range now[1:] {
		if row[0] != ours {
			continue
		}
		for _, figure := range figures {
			errs = append(errs, b.compareFigure(row[1], figure, table(now).number(row[1], figure)))
		}
	}
	return errors.Join(errs...)
}

func (b baseline) compareFigure(c, figure string, now float64) error {
	was := table(b).number(c, figure)
	if was == 0 {
		return fmt.Errorf("%s is not in the baseline (c=%s)", figure, c)
	}
	if now <= was*worse {
		return nil
	}
	return fmt.Errorf("%s is %v, and was %v: worse by %.0f %% (c=%s)", figure, now, was, 100*(now/was-1), c)
}

// number is a figure of our chain, c calls at once; 0 if it is not in the table.
func (t table) number(c, figure string) float64 {
	column := slices.Index(t[0], figure)
	for _, row := range t[1:] {
		if row[0] == ours && row[1] == c && column >= 0 && column < len(row) {
			n, _ := strconv.ParseFloat(row[column], 64)
			return n
		}
	}
	return 0
}
