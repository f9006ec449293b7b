// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// nodeMetrics are what the registry knows of the node.
func nodeMetrics(s *registry.State, wait func(string) time.Duration, now time.Time) []metric {
	all := tally(s, wait, now)
	return append(append(addressMetrics(s, all), growthMetrics(s, now)...), fileMetrics()...)
}

// addressMetrics tell which addresses there are, and where.
func addressMetrics(s *registry.State, all []holding) []metric {
	info := metric{Name: "node_info", Help: "The node, always 1."}
	if s.Instance.ID != "" {
		// Prometheus itself has a label instance, for whom it has asked.
		info.add(1, "instance_id", s.Instance.ID, "instance_type", s.Instance.Type, "zone", s.Instance.Zone, "version", version())
	}
	return []metric{info, stateMetric(s, all), prefixMetric(s), eniMetric(s), warmMetric(s), reservedMetric(s, all)}
}

// stateMetric counts the addresses of each ENI.
func stateMetric(s *registry.State, all []holding) metric {
	m := metric{Name: "addresses", Help: "Addresses of the ENIs, by state: reserved and bound are leased to pods, cooling ones soon free, " +
		"node the instance's own. A /80 counts with those of its addresses that pods have or had lately."}
	type kind struct {
		eni, state string
		v6         bool
	}
	n := map[kind]int{}
	for _, h := range all {
		n[kind{h.ENI, h.State, h.Addr.Is6()}]++
	}
	for id, e := range s.ENIs {
		for _, v6 := range []bool{false, true} {
			for _, state := range []string{stateReserved, stateBound, stateCooling, stateFree, stateNode} {
				m.add(float64(n[kind{id, state, v6}]), "eni", id, "pool", poolName(e.Pool), "family", family(v6), "state", state)
			}
		}
	}
	return m
}

// prefixMetric counts the prefixes of each ENI.
func prefixMetric(s *registry.State) metric {
	m := metric{Name: "prefixes", Help: "Delegated prefixes of the ENIs: /28 of IPv4, /80 of IPv6."}
	for id, e := range s.ENIs {
		n := map[bool]int{}
		for _, p := range e.Prefixes {
			n[p.CIDR.Addr().Is6()]++
		}
		for _, v6 := range []bool{false, true} {
			m.add(float64(n[v6]), "eni", id, "pool", poolName(e.Pool), "family", family(v6))
		}
	}
	return m
}

// eniMetric counts the ENIs of each pool.
func eniMetric(s *registry.State) metric {
	m := metric{Name: "enis", Help: "ENIs of the instance, the boot ENI included, by the pool that they serve and state: idle ones serve no pod, " +
		"draining ones are on their way out, foreign ones are somebody else's."}
	n := map[[2]string]int{}
	pools := map[string]bool{}
	for _, e := range s.ENIs {
		pools[e.Pool] = true
		n[[2]string{e.Pool, stateOf(e)}]++
	}
	for pool := range pools {
		for _, state := range []string{"serving", "idle", "draining", "foreign"} {
			m.add(float64(n[[2]string{pool, state}]), "pool", poolName(pool), "state", state)
		}
	}
	return m
}

// warmMetric is what the pools want.
func warmMetric(s *registry.State) metric {
	m := metric{Name: "warm_min_addresses", Help: "Free addresses that a pool is to have at least (warm.min)."}
	for pool, w := range s.Warm {
		m.add(float64(w.Min), "pool", poolName(pool))
	}
	return m
}

// reservedMetric tells of ADDs that do not come to an end.
func reservedMetric(s *registry.State, all []holding) metric {
	m := metric{Name: "oldest_reserved_timestamp_seconds", Help: "Since when the oldest lease waits for the kernel to show its address in a pod."}
	var oldest time.Time
	for _, h := range all {
		if l, _ := s.Leases.At(h.Addr); h.State == stateReserved && (oldest.IsZero() || l.Since.Before(oldest)) {
			oldest = l.Since
		}
	}
	m.at(oldest)
	return m
}

func family(v6 bool) string {
	if v6 {
		return "ipv6"
	}
	return "ipv4"
}

// growthMetrics tell how far the node can grow, and what keeps it from that.
func growthMetrics(s *registry.State, now time.Time) []metric {
	limit := metric{Name: "enis_max", Help: "ENIs that the instance type can have, the boot ENI included."}
	each := metric{Name: "eni_addresses_max", Help: "Addresses and prefixes of a family that one ENI can have, the primary address included."}
	if s.Instance.ENIs > 0 {
		limit.add(float64(s.Instance.ENIs))
		each.add(float64(s.Instance.IPv4PerENI), "family", family(false))
		each.add(float64(s.Instance.IPv6PerENI), "family", family(true))
	}
	throttled := metric{Name: "throttled_until_timestamp_seconds", Help: "Until when this node does not call an EC2 action again, because EC2 has throttled it."}
	for action, until := range s.NotBefore {
		throttled.at(until, "action", action)
	}
	full := metric{Name: "full_until_timestamp_seconds", Help: "Until when this node makes no ENI, because EC2 has said that the instance can have no more."}
	full.at(s.Instance.FullUntil)
	return append([]metric{limit, each, throttled, full}, workMetrics(s, now)...)
}

// workMetrics tell what is under way.
func workMetrics(s *registry.State, now time.Time) []metric {
	waiting := metric{Name: "waiting_pods", Help: "ADDs that wait for an address."}
	waiting.add(float64(waitingADDs(s, now)))
	begun := metric{Name: "unfinished_calls", Help: "EC2 calls that change something and are under way, or were interrupted."}
	n := 0
	for _, i := range s.Intents {
		if !strings.HasPrefix(i.Action, "Describe") { // to look is to begin nothing
			n++
		}
	}
	begun.add(float64(n))
	read := metric{Name: "eni_read_timestamp_seconds", Help: "When metadata or EC2 has last told of an ENI."}
	for id, e := range s.ENIs {
		read.at(e.Read, "eni", id)
	}
	return []metric{waiting, begun, read}
}

// fileMetrics tell the age of what is on disk.
func fileMetrics() []metric {
	written := metric{Name: "registry_modified_timestamp_seconds", Help: "When the registry was last written."}
	collected := metric{Name: "last_gc_timestamp_seconds", Help: "When registry-gc has last done all that it had to do."}
	for name, m := range map[string]*metric{"registry.json": &written, collectedMark: &collected} {
		if fi, err := os.Stat(filepath.Join(registry.Dir(), name)); err == nil {
			m.at(fi.ModTime())
		}
	}
	bad := metric{Name: "registries_set_aside", Help: "Registries that could not be read and were begun again (registry.json.bad-*)."}
	aside, err := filepath.Glob(filepath.Join(registry.Dir(), "registry.json.bad-*"))
	if err == nil {
		bad.add(float64(len(aside)))
	}
	return []metric{written, collected, bad}
}
