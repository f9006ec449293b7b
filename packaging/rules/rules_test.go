// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package rules evaluates packaging/alerts.yaml with the engine of Prometheus.
package rules

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// hours is the length of each story. every is the interval at which cni-metrics.timer writes the metrics.
const (
	hours = 3
	every = time.Minute
)

// A story has the metrics of a node during several hours. The keys are names of metrics without their common prefix.
type story map[string]func(now time.Duration) float64

// is returns a metric with a constant value.
func is(v float64) func(time.Duration) float64 { return func(time.Duration) float64 { return v } }

// counts returns a counter. The counter increases by one in each interval of the length often, but only between the
// times from and to.
func counts(often, from, to time.Duration) func(time.Duration) float64 {
	return func(now time.Duration) float64 { return float64(max(0, min(now, to)-from) / often) }
}

// renewed returns a metric whose value is a deadline. A new deadline is in the future by the duration most. After each
// deadline, the node asks EC2 again a moment later, and EC2 refuses again. After the time end, the node sets no new
// deadline.
func renewed(most, moment, end time.Duration) func(time.Duration) float64 {
	return func(now time.Duration) float64 {
		return (min(now, end)/(most+moment)*(most+moment) + most).Seconds()
	}
}

// ago returns a metric with the time that is d before the present.
func ago(d time.Duration) func(time.Duration) float64 {
	return func(now time.Duration) float64 { return (now - d).Seconds() }
}

const (
	again     = `commands_total{instance="a", command="ADD", outcome="again"}`
	ok        = `commands_total{instance="a", command="ADD", outcome="ok"}`
	waited    = `commands_total{instance="a", command="ADD", outcome="waited"}`
	failed    = `commands_total{instance="a", command="DEL", outcome="failed"}`
	full      = `full_until_timestamp_seconds{instance="a"}`
	quota     = `quota_until_timestamp_seconds{instance="a"}`
	throttled = `throttled_until_timestamp_seconds{instance="a", action="AttachNetworkInterface"}`
	reserved  = `oldest_reserved_timestamp_seconds{instance="a"}`
	written   = `node_textfile_mtime_seconds{instance="a", file="/d/cni_ipvlan_vpc.prom"}`
	collected = `last_gc_timestamp_seconds{instance="a"}`
	always    = hours * time.Hour
	retry     = 12 * time.Second // the kubelet repeats a failed ADD after this time
)

// alerts has, for each alert, stories in which it must fire, and stories in which it must not fire.
var alerts = map[string]struct{ fires, quiet []story }{
	"CNIPodsWaitForAddresses": {
		fires: []story{
			{`waiting_pods{instance="a"}`: is(1), again: is(0), ok: is(0)},
			// The node is full. In each minute, a waiting pod gets the address of a pod that has ended.
			{`waiting_pods{instance="a"}`: is(0), again: counts(retry, 0, always), ok: counts(time.Minute, 0, always)},
			// EC2 throttles. The only ADD of the node fails after a minute, and the kubelet repeats it again and again.
			{`waiting_pods{instance="a"}`: is(0), again: counts(time.Minute+retry, 0, always), ok: is(9),
				waited: is(0)},
		},
		quiet: []story{
			{`waiting_pods{instance="a"}`: is(0), again: is(0), ok: is(0), waited: is(0)},
			// One ADD fails, and its pod is deleted.
			{again: counts(time.Hour, 0, time.Hour), ok: is(3), waited: is(0)},
			// For ten minutes, each ADD of a busy node fails once.
			{again: counts(4*time.Second, time.Hour, time.Hour+10*time.Minute), ok: is(0),
				waited: counts(4*time.Second, time.Hour+retry-4*time.Second, time.Hour+10*time.Minute+retry)},
		},
	},
	"CNIAddressesNearlyExhausted": {
		fires: []story{{`addresses{instance="a", eni="e", family="ipv4", state="free"}`: is(0),
			`addresses{instance="a", eni="e", family="ipv4", state="bound"}`: is(9),
			`enis{instance="a", state="serving"}`:                            is(3),
			`enis_max{instance="a"}`:                                         is(3),
			`eni_addresses_max{instance="a", family="ipv4"}`:                 is(9),
			`prefixes{instance="a", eni="e", family="ipv4"}`:                 is(0)}},
		quiet: []story{{`addresses{instance="a", eni="e", family="ipv4", state="free"}`: is(0),
			`addresses{instance="a", eni="e", family="ipv4", state="bound"}`: is(9),
			`enis{instance="a", state="serving"}`:                            is(2),
			`enis_max{instance="a"}`:                                         is(3)}},
	},
	"CNIWarmPoolEmpty": {
		fires: []story{{`addresses{instance="a", pool="p", family="ipv4", state="free"}`: is(1),
			`warm_min_addresses{instance="a", pool="p"}`: is(2)},
			{`warm_min_addresses{instance="a", pool="p"}`: is(2)}},
		quiet: []story{{`addresses{instance="a", pool="p", family="ipv4", state="free"}`: is(2),
			`warm_min_addresses{instance="a", pool="p"}`: is(2)}},
	},
	"CNIGrowthFails": {fires: []story{{`unfinished_calls{instance="a"}`: is(1)}},
		quiet: []story{{`unfinished_calls{instance="a"}`: is(0)}}},
	"CNIInstanceFull": {fires: []story{{full: renewed(registry.MostFull, 30*time.Second, always)}},
		quiet: []story{{full: renewed(registry.MostFull, 30*time.Second, 0)}, {full: is(0)}}},
	"CNIQuotaReached": {fires: []story{{quota: renewed(registry.MostQuota, 30*time.Second, always)},
		{quota: renewed(registry.MostQuota/3, 30*time.Second, always)}},
		quiet: []story{{quota: renewed(registry.MostQuota, 30*time.Second, 0)}, {quota: is(0)}}},
	"CNIThrottled": {fires: []story{{throttled: renewed(registry.MostBackoff, time.Minute, always)},
		{throttled: renewed(0, time.Second, always)}},
		quiet: []story{{throttled: renewed(registry.MostBackoff, time.Minute, 5*time.Minute)}}},
	"CNIGarbageNotCollected": {
		fires: []story{{collected: is(0)}, {`node_info{instance="a"}`: is(1)}},
		quiet: []story{{collected: ago(7 * time.Minute), `node_info{instance="a"}`: is(1)}},
	},
	"CNICommandsFail": {fires: []story{{failed: counts(time.Minute, 0, always)}},
		quiet: []story{{failed: counts(20*time.Minute, 0, always)}}},
	"CNILeaseNeverBound": {
		fires: []story{{reserved: is(0), collected: ago(7 * time.Minute)}},
		quiet: []story{{reserved: is(0), collected: is(0)}, {reserved: is(0)},
			{reserved: ago(7 * time.Minute), collected: ago(time.Minute)}},
	},
	"CNILeaseLogNotWritten": {fires: []story{{`lease_log_unwritten_lines{instance="a"}`: is(1)}},
		quiet: []story{{`lease_log_unwritten_lines{instance="a"}`: is(0)}}},
	"CNIRegistrySetAside": {fires: []story{{`registries_set_aside{instance="a"}`: counts(time.Hour, 0, always)}},
		quiet: []story{{`registries_set_aside{instance="a"}`: is(1)}}},
	"CNIMetricsStale": {fires: []story{{written: is(0)}}, quiet: []story{{written: ago(2 * time.Minute)}}},
	"CNIDoctorError": {fires: []story{{`doctor_findings{instance="a", check="c", severity="error"}`: is(1)}},
		quiet: []story{{`doctor_findings{instance="a", check="c", severity="warning"}`: is(1)}}},
	"CNIDoctorStale": {fires: []story{{`doctor_timestamp_seconds{instance="a"}`: is(0)}},
		quiet: []story{{`doctor_timestamp_seconds{instance="a"}`: ago(20 * time.Minute)}}},
	"CNISubnetNearlyFull": {fires: []story{{`subnet_free_addresses{instance="a", subnet="s"}`: is(9)}},
		quiet: []story{{`subnet_free_addresses{instance="a", subnet="s"}`: is(300)}}},
}

// TestRules evaluates each alert in its stories. Each alert must have both kinds of stories: an alert that never fires
// is useless, and so is an alert that fires without a cause.
func TestRules(t *testing.T) {
	groups, errs := rulefmt.ParseFile("../alerts.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}),
		slog.Default())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	known := 0
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			known++
			stories := alerts[r.Alert]
			if len(stories.fires) == 0 || len(stories.quiet) == 0 {
				t.Errorf("%s has no story in which it fires, or none in which it does not", r.Alert)
			}
			for i, s := range stories.fires {
				if !fires(t, r, s) {
					t.Errorf("%s does not fire in story %d", r.Alert, i)
				}
			}
			for i, s := range stories.quiet {
				if fires(t, r, s) {
					t.Errorf("%s fires in quiet story %d", r.Alert, i)
				}
			}
		}
	}
	if known != len(alerts) {
		t.Errorf("there are %d alerts, and %d have stories", known, len(alerts))
	}
}

// fires reports whether the alert fires in the story: its condition has been true for the rule's duration.
func fires(t *testing.T, r rulefmt.Rule, s story) bool {
	t.Helper()
	var load strings.Builder
	fmt.Fprintf(&load, "load %v\n", every)
	for name, value := range s {
		if !strings.HasPrefix(name, "node_textfile") {
			name = "cni_ipvlan_vpc_" + name
		}
		fmt.Fprintf(&load, "  %s", name)
		for now := time.Duration(0); now <= always; now += every {
			fmt.Fprintf(&load, " %v", value(now))
		}
		fmt.Fprintln(&load)
	}
	const step = 30 * time.Second
	q, err := promqltest.NewTestEngine(t, false, 0, 1e6).NewRangeQuery(t.Context(),
		promqltest.LoadedStorage(t, load.String()), nil, r.Expr, time.Unix(0, 0), time.Unix(0, 0).Add(always), step)
	if err != nil {
		t.Fatal(r.Alert, err)
	}
	defer q.Close()
	answer, err := q.Exec(t.Context()).Matrix()
	if err != nil {
		t.Fatal(r.Alert, err)
	}
	for _, series := range answer {
		if firesIn(series, time.Duration(r.For), step) {
			return true
		}
	}
	return false
}

// firesIn reports whether a series has a sample at each step for this long.
func firesIn(series promql.Series, long, step time.Duration) bool {
	var since, last int64
	for i, f := range series.Floats {
		if i == 0 || f.T-last > step.Milliseconds() {
			since = f.T
		}
		if last = f.T; f.T-since >= long.Milliseconds() {
			return true
		}
	}
	return false
}
