// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// metricPrefix begins the names of our metrics (Prometheus documentation, "Metric and
// label naming": a prefix of one word for the application).
const metricPrefix = "cni_ipvlan_vpc_"

// A Metric is a gauge.
type Metric struct {
	Name    string   `json:"name"`
	Help    string   `json:"help"`
	Samples []sample `json:"samples"`
}

// A sample is a value of a metric.
type sample struct {
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`

	text string // the labels, as the exposition has them
}

// Add adds a value with labels: name, value, name, value.
func (m *Metric) Add(value float64, labels ...string) {
	s := sample{Labels: map[string]string{}, Value: value}
	for pair := range slices.Chunk(labels, 2) {
		s.Labels[pair[0]] = pair[1]
	}
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		pairs = append(pairs, name+`="`+escape.Replace(s.Labels[name])+`"`)
	}
	s.text = strings.Join(pairs, ",")
	m.Samples = append(m.Samples, s)
}

// at adds a time, unless it is the zero time.
func (m *Metric) at(t time.Time, labels ...string) {
	if !t.IsZero() {
		m.Add(float64(t.UnixMilli())/1000, labels...)
	}
}

// escape is for the values of labels (Prometheus documentation, "Exposition formats").
var escape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// Written are the metrics that have values, with their full names and in a fixed order.
func Written(all []Metric) []Metric {
	all = slices.DeleteFunc(all, func(m Metric) bool { return len(m.Samples) == 0 })
	for i := range all {
		all[i].Name = metricPrefix + all[i].Name
		slices.SortFunc(all[i].Samples, func(a, b sample) int { return cmp.Compare(a.text, b.text) })
	}
	return all
}

// Expose writes the text format, version 0.0.4, that the textfile collector reads.
func Expose(w io.Writer, all []Metric) {
	for _, m := range all {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s gauge\n", m.Name, m.Help, m.Name)
		for _, s := range m.Samples {
			labels := ""
			if s.text != "" {
				labels = "{" + s.text + "}"
			}
			fmt.Fprintf(w, "%s%s %s\n", m.Name, labels, strconv.FormatFloat(s.Value, 'f', -1, 64))
		}
	}
}
