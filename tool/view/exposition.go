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

// The types of metrics.
const (
	gauge     = "gauge"
	counter   = "counter"
	histogram = "histogram"
)

// A Metric is a metric of Prometheus with its samples. If Type is empty, the metric is a gauge.
type Metric struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`
	Help    string   `json:"help"`
	Samples []sample `json:"samples"`
}

type sample struct {
	Suffix string            `json:"suffix"` // end of the metric's name; only in a histogram
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`

	text string // the labels in the text format of Prometheus
}

// Add adds a sample with a value and labels. The parameter "labels" has pairs: the name of a label, and then its value.
func (m *Metric) Add(value float64, labels ...string) {
	s := sample{Labels: map[string]string{}, Value: value}
	for pair := range slices.Chunk(labels, 2) {
		s.Labels[pair[0]] = pair[1]
	}
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		pairs = append(pairs, name+`="`+labelEscaper.Replace(s.Labels[name])+`"`)
	}
	s.text = strings.Join(pairs, ",")
	m.Samples = append(m.Samples, s)
}

// addHistogram adds the samples of a histogram of durations. cumulative[i] is the number of durations up to bounds[i].
// All samples get the labels.
func (m *Metric) addHistogram(
	bounds []time.Duration, cumulative []uint64, total uint64, sum time.Duration, labels ...string,
) {
	add := func(suffix string, value float64, more ...string) {
		m.Add(value, slices.Concat(labels, more)...)
		m.Samples[len(m.Samples)-1].Suffix = suffix
	}
	for i, b := range bounds {
		add("_bucket", float64(cumulative[i]), "le", strconv.FormatFloat(b.Seconds(), 'f', -1, 64))
	}
	add("_bucket", float64(total), "le", "+Inf")
	add("_sum", sum.Seconds())
	add("_count", float64(total))
}

// addTime adds a time if it is not the zero time.
func (m *Metric) addTime(t time.Time, labels ...string) {
	if !t.IsZero() {
		m.Add(float64(t.UnixMilli())/1000, labels...)
	}
}

// labelEscaper escapes the values of labels (Prometheus documentation, "Exposition formats").
var labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// Written returns the metrics that have values, with their full names. Their samples are in a fixed order.
func Written(all []Metric) []Metric {
	all = slices.DeleteFunc(all, func(m Metric) bool { return len(m.Samples) == 0 })
	for i := range all {
		all[i].Name = metricPrefix + all[i].Name
		if all[i].Type = cmp.Or(all[i].Type, gauge); all[i].Type == histogram {
			continue // the samples of a histogram keep their order
		}
		slices.SortFunc(all[i].Samples, func(a, b sample) int { return cmp.Compare(a.text, b.text) })
	}
	return all
}

// Expose writes the text format, version 0.0.4, that the textfile collector reads.
func Expose(w io.Writer, all []Metric) {
	for _, m := range all {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", m.Name, m.Help, m.Name, m.Type)
		for _, s := range m.Samples {
			labels := ""
			if s.text != "" {
				labels = "{" + s.text + "}"
			}
			fmt.Fprintf(w, "%s%s%s %s\n", m.Name, s.Suffix, labels, strconv.FormatFloat(s.Value, 'f', -1, 64))
		}
	}
}
