// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/bpf"
)

// A Limit limits the rate of the packets that arrive by some links, or of the packets that leave by them. The rate is
// for all the links together. The kernel drops packets above the rate (tc-police(8)). Each link has a filter, and all
// the filters share one action, which has the bucket of tokens. The action ends soon after the last filter.
//
// The limit counts each packet once. The limit does not count packets that a [Splice] sends from one link to the other.
// There are two reasons: the filters for arriving packets come after the filters of the Splice. And the filters for
// outgoing packets ignore packets that have arrived by another link.
type Limit struct {
	Devs   []string
	Egress bool
	Rate   uint64 // bytes in a second, not 0
	Burst  uint64 // bytes at once, at least 1
}

// limitPref is the priority of the filters, after the filters that redirect or drop a packet.
const limitPref = filterPref + 1

// name returns the name of the program. The hash in the name depends on the rate and the burst.
func (l Limit) name() string { return fingerprint(l.purpose()) }

func (l Limit) purpose() string { return fmt.Sprint("limit ", l.Egress, l.Rate, l.Burst) }

// index returns the index of the shared action in its namespace. A limit with another direction, rate or burst has
// another index. Otherwise a new filter would use an old action, because an action outlives its filters for a while.
func (l Limit) index() uint32 {
	h := fnv.New32a()
	io.WriteString(h, l.purpose())
	return max(h.Sum32(), 1)
}

func (l Limit) String() string {
	f := l.place()
	what := "all"
	if l.Egress {
		what = "what the namespace sends itself"
	}
	var lines []string
	for _, dev := range l.Devs {
		lines = append(lines,
			fmt.Sprintf("%s action police rate %dbps burst %d conform-exceed drop/continue index %d # %s",
				f.command(dev), l.Rate, l.Burst, l.index(), what))
	}
	return strings.Join(lines, "\n\t")
}

// place returns a filter that has only the hook and the priority of the limit's filters. The hook and the priority do
// not depend on the rate and the burst.
func (l Limit) place() filter {
	if l.Egress {
		return filter{hook: tcEgress, pref: limitPref}
	}
	return filter{hook: tcIngress, pref: limitPref}
}

// filter returns the filter for each of the links, without the index of the link.
func (l Limit) filter() filter {
	f := l.place()
	f.name, f.police = l.name(), l.police()
	return f
}

// Add adds the filters, or replaces filters that differ.
func (l Limit) Add(n *NS) error {
	err := addFilters(n, l.Devs, l.filter(), bpf.Count(l.Egress))
	if errors.Is(err, ErrNoBPF) {
		return fmt.Errorf("a limit of the bandwidth needs the kernel's modules sch_ingress, cls_bpf and act_police: %v",
			err)
	}
	return err
}

// Del deletes the filters, whatever their rate and burst. The qdiscs to which Add has attached the filters stay on the
// links.
func (l Limit) Del(n *NS) error { return delFilters(n, l.Devs, l.place()) }

// Check returns an error if a filter is missing, or has another effect.
func (l Limit) Check(n *NS) error { return checkFilters(n, l.Devs, l.filter()) }

// police returns the action of the filters, struct tc_police of linux/pkt_cls.h. The action drops packets above the
// rate, and lets the next filter decide on all other packets.
func (l Limit) police() attribute {
	const (
		tbf, rateTable, result, rate64 = 1, 2, 5, 8 // TCA_POLICE_*
		shot                           = 2          // TC_ACT_SHOT
		ethernet, cells                = 1, 15      // the kernel wants a table of rates, but does not use it
	)
	ne := binary.NativeEndian
	b := ne.AppendUint32(nil, l.index())
	b = ne.AppendUint32(b, shot)
	b = ne.AppendUint32(b, 0) // limit, which the kernel does not use
	b = ne.AppendUint32(b, l.ticks())
	b = ne.AppendUint32(b, math.MaxInt32) // mtu: also for packets that are segmented later
	b = append(b, cells, ethernet)
	b = append(b, make([]byte, 6)...) // overhead, align, mpu
	b = ne.AppendUint32(b, uint32(min(l.Rate, math.MaxUint32)))
	// no peak rate, counters, capabilities
	b = append(b, make([]byte, 12+12)...)
	// TC_ACT_UNSPEC: continue
	options := []attribute{attr(tbf, b), attr(rateTable, make([]byte, 1024)), attr32(result, math.MaxUint32)}
	if l.Rate > math.MaxUint32 {
		options = append(options, attr(rate64, ne.AppendUint64(nil, l.Rate)))
	}
	return nest(unix.NLA_F_NESTED|nl.TCA_BPF_ACT, nest(unix.NLA_F_NESTED|1,
		attrString(nl.TCA_ACT_KIND, "police"), nest(unix.NLA_F_NESTED|nl.TCA_ACT_OPTIONS, options...)))
}

// ticks returns the time to send the burst at the rate, in the kernel's unit of 64 ns (see /proc/net/psched): 4 minutes
// at most.
func (l Limit) ticks() uint32 {
	return uint32(min(float64(l.Burst)/float64(l.Rate)*1e9/64, math.MaxUint32))
}
