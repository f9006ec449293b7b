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

// A Limit limits the total bandwidth of some links in one direction: the kernel drops packets above the rate
// (tc-police(8)). The filters of all links share one police action with one token bucket. The kernel deletes the action
// soon after the deletion of the last filter.
//
// A [Splice] connects two links. A Limit does not count the packets that the Splice takes from one of these links and
// sends to the other. At ingress, the filters of the Limit come after those of the Splice. At egress, the filters of
// the Limit ignore packets that have arrived through another link. So each packet counts only once.
type Limit struct {
	Devs   []string
	Egress bool
	Rate   uint64 // bytes per second, not 0
	Burst  uint64 // the size of the token bucket in bytes, at least 1
}

// limitPref is the priority of a Limit's filters. The kernel runs these filters after the filters of a Splice or a
// Forbid.
const limitPref = filterPref + 1

func (l Limit) programName() string { return programName(l.effectText()) }

func (l Limit) effectText() string { return fmt.Sprint("limit ", l.Egress, l.Rate, l.Burst) }

// actionIndex returns the index of the police action. All filters name this index. The index depends on the direction,
// the rate and the burst. An action outlives its filters for some time. So with a fixed index, new filters could use an
// old action with another rate.
func (l Limit) actionIndex() uint32 {
	h := fnv.New32a()
	io.WriteString(h, l.effectText())
	return max(h.Sum32(), 1)
}

func (l Limit) String() string {
	f := l.position()
	what := "all packets"
	if l.Egress {
		what = "packets that the namespace itself sends"
	}
	var lines []string
	for _, dev := range l.Devs {
		lines = append(lines,
			fmt.Sprintf("%s action police rate %dbps burst %d conform-exceed drop/continue index %d # %s",
				f.command(dev), l.Rate, l.Burst, l.actionIndex(), what))
	}
	return strings.Join(lines, "\n\t")
}

// position returns a filter with only the hook and the priority of the Limit's filters.
func (l Limit) position() filter {
	if l.Egress {
		return filter{hook: tcEgress, pref: limitPref}
	}
	return filter{hook: tcIngress, pref: limitPref}
}

// filter returns a filter that has no link yet: onLinks sets the index of each link.
func (l Limit) filter() filter {
	f := l.position()
	f.name, f.police = l.programName(), l.policeAction()
	return f
}

func (l Limit) Add(n *NS) error {
	err := addFilters(n, l.Devs, l.filter(), bpf.Count(l.Egress))
	if errors.Is(err, ErrNoBPF) {
		return fmt.Errorf("a limit of the bandwidth needs the kernel's modules sch_ingress, cls_bpf and act_police: %v",
			err)
	}
	return err
}

// Del deletes the filters, even if they have another rate or burst. The links keep the qdiscs that Add has added.
func (l Limit) Del(n *NS) error { return delFilters(n, l.Devs, l.position()) }

func (l Limit) Check(n *NS) error { return checkFilters(n, l.Devs, l.filter()) }

// policeAction returns the attribute for the police action (struct tc_police of linux/pkt_cls.h). The action drops
// packets above the rate. For all other packets, the kernel goes on with the next filter.
func (l Limit) policeAction() attribute {
	const (
		tbf, rateTable, result, rate64 = 1, 2, 5, 8 // TCA_POLICE_*
		shot                           = 2          // TC_ACT_SHOT
		ethernet, cells                = 1, 15      // the kernel wants a table of rates, but does not use it
	)
	ne := binary.NativeEndian
	b := ne.AppendUint32(nil, l.actionIndex())
	b = ne.AppendUint32(b, shot)
	b = ne.AppendUint32(b, 0) // limit, which the kernel does not use
	b = ne.AppendUint32(b, l.ticks())
	b = ne.AppendUint32(b, math.MaxInt32) // mtu: accept packets of any size, also those that GSO splits later
	b = append(b, cells, ethernet)
	b = append(b, make([]byte, 6)...) // overhead, align, mpu
	b = ne.AppendUint32(b, uint32(min(l.Rate, math.MaxUint32)))
	// the peak rate (0: none), the counters, and the capabilities
	b = append(b, make([]byte, 12+12)...)
	// the result MaxUint32 is TC_ACT_UNSPEC: the kernel goes on with the next filter
	options := []attribute{attr(tbf, b), attr(rateTable, make([]byte, 1024)), attr32(result, math.MaxUint32)}
	if l.Rate > math.MaxUint32 {
		options = append(options, attr(rate64, ne.AppendUint64(nil, l.Rate)))
	}
	return nest(unix.NLA_F_NESTED|nl.TCA_BPF_ACT, nest(unix.NLA_F_NESTED|1,
		attrString(nl.TCA_ACT_KIND, "police"), nest(unix.NLA_F_NESTED|nl.TCA_ACT_OPTIONS, options...)))
}

// ticks returns the time that Burst bytes take at the rate Rate, in the kernel's unit of 64 ns (see /proc/net/psched).
// The result is 275 seconds at most.
func (l Limit) ticks() uint32 {
	return uint32(min(float64(l.Burst)/float64(l.Rate)*1e9/64, math.MaxUint32))
}
