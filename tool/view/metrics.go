// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/release"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// Most says how far the node can grow.
type Most struct {
	ENIs    int  // the number of ENIs that the node may have
	Assigns bool // the node asks EC2 for addresses
}

// Metrics returns what the registry knows about the node. reuseWait returns how long the addresses of a pool cool.
// warmMin has the number of free addresses that each pool should have.
func Metrics(
	s *registry.State, most Most, reuseWait func(string) time.Duration, warmMin map[string]int, now time.Time,
) []Metric {
	all := Tally(s, reuseWait, now)
	return append(append(addressMetrics(s, all, warmMin, now), growthMetrics(s, most, now)...), fileMetrics()...)
}

// addressMetrics returns the metrics of the node, and of its addresses, prefixes and ENIs.
func addressMetrics(s *registry.State, all []Holding, wanted map[string]int, now time.Time) []Metric {
	info := Metric{Name: "node_info", Help: "The labels describe the node. The value is always 1."}
	if s.Instance.ID != "" {
		// Prometheus itself adds a label "instance" with the address that it scrapes, so ours is "instance_id".
		info.Add(1, "instance_id", s.Instance.ID, "instance_type", s.Instance.Type, "zone", s.Instance.Zone, "version",
			release.Version())
	}
	return []Metric{info, stateMetric(s, all), prefixMetric(s), eniMetric(s, now), warmMetric(wanted),
		reservedMetric(s, all)}
}

func stateMetric(s *registry.State, all []Holding) Metric {
	m := Metric{Name: "addresses",
		Help: "How many addresses of an ENI are in a state: reserved, bound, cooling, free or node."}
	type kind struct {
		eni, state string
		family     nl.Family
	}
	n := map[kind]int{}
	for _, h := range all {
		n[kind{h.ENI, h.State, nl.FamilyOf(h.Addr)}]++
	}
	for id, e := range s.ENIs {
		for _, f := range nl.Families {
			for _, state := range []string{StateReserved, StateBound, StateCooling, StateFree, StateNode} {
				m.Add(float64(n[kind{id, state, f}]), "eni", id, "pool", conf.PoolName(e.Pool), "family",
					familyLabel(f), "state", state)
			}
		}
	}
	return m
}

func prefixMetric(s *registry.State) Metric {
	m := Metric{Name: "prefixes", Help: "Delegated prefixes of the ENIs: /28 of IPv4, /80 of IPv6."}
	for id, e := range s.ENIs {
		n := map[nl.Family]int{}
		for _, p := range e.Prefixes {
			n[nl.FamilyOf(p.CIDR.Addr())]++
		}
		for _, f := range nl.Families {
			m.Add(float64(n[f]), "eni", id, "pool", conf.PoolName(e.Pool), "family", familyLabel(f))
		}
	}
	return m
}

func eniMetric(s *registry.State, now time.Time) Metric {
	m := Metric{Name: "enis", Help: "How many ENIs of a pool are in a state: serving, requested, exclusive, idle, " +
		"draining, foreign, no-link or detached."}
	n := map[[2]string]int{}
	pools, exclusive := map[string]bool{}, s.Exclusive()
	for id, e := range s.ENIs {
		pools[e.Pool] = true
		n[[2]string{e.Pool, stateOf(e, exclusive[id], now)}]++
	}
	for pool := range pools {
		for _, state := range eniStates {
			m.Add(float64(n[[2]string{pool, state}]), "pool", conf.PoolName(pool), "state", state)
		}
	}
	return m
}

// warmMetric shows how many free addresses each pool should keep.
func warmMetric(wanted map[string]int) Metric {
	m := Metric{Name: "warm_min_addresses",
		Help: "How many free IPv4 addresses a pool should keep: the lower of warm.min and the number of pods that " +
			"maxPods still allows."}
	for pool, n := range wanted {
		m.Add(float64(n), "pool", conf.PoolName(pool))
	}
	return m
}

// reservedMetric shows the time of the oldest reserved lease. If this time is long ago, an ADD hangs.
func reservedMetric(s *registry.State, all []Holding) Metric {
	m := Metric{Name: "oldest_reserved_timestamp_seconds",
		Help: "The time of the oldest lease whose address the kernel does not show in a pod yet."}
	var oldest time.Time
	for _, h := range all {
		if l, _ := s.Leases.At(h.Addr); h.State == StateReserved && (oldest.IsZero() || l.Since.Before(oldest)) {
			oldest = l.Since
		}
	}
	m.addTime(oldest)
	return m
}

func familyLabel(f nl.Family) string { return strings.ToLower(f.String()) }

// growthMetrics show how many ENIs and addresses the node can have, and when the waits after EC2's refusals end.
func growthMetrics(s *registry.State, most Most, now time.Time) []Metric {
	limit := Metric{Name: "enis_max",
		Help: "How many ENIs the node may have, including the boot ENI."}
	each := Metric{Name: "eni_addresses_max",
		Help: "How many addresses of a family one ENI can have. The primary address counts, and a prefix counts as " +
			"one address."}
	if s.Instance.ENIs > 0 {
		limit.Add(float64(most.ENIs))
	}
	if s.Instance.ENIs > 0 && most.Assigns {
		each.Add(float64(s.Instance.IPv4PerENI), "family", familyLabel(nl.IPv4))
		each.Add(float64(s.Instance.IPv6PerENI), "family", familyLabel(nl.IPv6))
	}
	throttled := Metric{Name: "throttled_until_timestamp_seconds",
		Help: "The time until which this node does not call an EC2 action again, because EC2 throttled the action."}
	for action, until := range s.NotBefore {
		throttled.addTime(until, "action", action)
	}
	full := Metric{Name: "full_until_timestamp_seconds",
		Help: "The time until which this node creates no ENI, because EC2 said that the instance can have no more."}
	full.addTime(s.Instance.FullUntil)
	quota := Metric{Name: "quota_until_timestamp_seconds",
		Help: "The time until which this node creates no ENI, because EC2 said that the account can have no more."}
	quota.addTime(s.Instance.QuotaUntil)
	return append([]Metric{limit, each, throttled, full, quota}, workMetrics(s, now)...)
}

// workMetrics show the numbers of waiting ADDs, of unfinished EC2 calls, and of unwritten lines of the lease log. They
// also show when each ENI was last read.
func workMetrics(s *registry.State, now time.Time) []Metric {
	waiting := Metric{Name: "waiting_pods", Help: "ADDs that wait for an address."}
	waiting.Add(float64(waitingADDs(s, now)))
	begun := Metric{Name: "unfinished_calls",
		Help: "EC2 calls that change something and are not finished."}
	begun.Add(float64(len(s.Intents)))
	read := Metric{Name: "eni_read_timestamp_seconds", Help: "When this node last read an ENI from metadata or EC2."}
	for id, e := range s.ENIs {
		read.addTime(e.Read, "eni", id)
	}
	unwritten := Metric{Name: "lease_log_unwritten_lines",
		Help: "Lines of the lease log that wait in the registry, because the log cannot be written."}
	if s.Log.File != "" {
		unwritten.Add(float64(s.Unwritten()))
	}
	return []Metric{waiting, begun, read, unwritten}
}

// CommandMetrics returns how many ADDs and DELs have ended on this node, and how long they took.
func CommandMetrics(all []registry.Tally) []Metric {
	ended := Metric{Name: "commands_total",
		Help: "ADDs and DELs since the boot, by outcome. Waited: the ADD got its address from EC2. Again: the " +
			"runtime must repeat the command, for example because EC2 throttles. Refused: the pod asked for " +
			"something that it is not allowed to have.",
		Type: counter}
	took := Metric{Name: "command_seconds",
		Help: "How long ADDs and DELs took in the plugin, with the waits for EC2.",
		Type: histogram}
	for _, c := range all {
		labels := []string{"command", c.Command, "outcome", c.Outcome}
		ended.Add(float64(c.Total), labels...)
		if c.Total > 0 { // an outcome that never happened needs no histogram
			took.addHistogram(registry.Bounds[:], c.Within, c.Total, c.Took, labels...)
		}
	}
	return []Metric{ended, took}
}

// fileMetrics show when the registry was written, when a collection was complete, and how many damaged registries were
// renamed to registry.json.bad-*.
func fileMetrics() []Metric {
	written := Metric{Name: "registry_modified_timestamp_seconds", Help: "When the registry was last written."}
	collected := Metric{Name: "last_gc_timestamp_seconds",
		Help: "When registry-gc last finished all of its work."}
	for name, m := range map[string]*Metric{"registry.json": &written, collectedMark: &collected} {
		if fi, err := os.Stat(filepath.Join(registry.Dir(), name)); err == nil {
			m.addTime(fi.ModTime())
		}
	}
	bad := Metric{Name: "registries_set_aside",
		Help: "How many registries could not be read, and were set aside (registry.json.bad-*)."}
	aside, err := filepath.Glob(filepath.Join(registry.Dir(), "registry.json.bad-*"))
	if err == nil {
		bad.Add(float64(len(aside)))
	}
	return []Metric{written, collected, bad}
}
