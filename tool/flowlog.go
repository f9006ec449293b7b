// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/excerpt"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/history"
)

// defaultFormat has the fields of EC2's default format of flow logs, version 2 (VPC user guide, "Flow log records").
var defaultFormat = strings.Fields("version account-id interface-id srcaddr dstaddr srcport dstport protocol packets " +
	"bytes start end action log-status")

// A flowFormat has the names of the fields of a record, and the indices of the addresses and the times.
type flowFormat struct {
	names                []string
	src, dst, start, end int
}

// newFlowFormat returns the format of records with these fields, or an error if an address or a time is missing. It
// prefers pkt-srcaddr and pkt-dstaddr, which have the packet's own addresses. If a packet has a secondary address of an
// ENI, EC2 writes the ENI's primary address into srcaddr or dstaddr.
func newFlowFormat(names []string) (f flowFormat, err error) {
	find := func(wanted ...string) int {
		for _, w := range wanted {
			if i := slices.Index(names, w); i >= 0 {
				return i
			}
		}
		err = fmt.Errorf("the flow log has no field %s: its fields are %q", strings.Join(wanted, " or "), names)
		return -1
	}
	f = flowFormat{names: names, src: find("pkt-srcaddr", "srcaddr"), dst: find("pkt-dstaddr", "dstaddr"),
		start: find("start"), end: find("end")}
	return f, err
}

// podsOf returns the pods that had a record's two addresses at the time of the record. For an address of no pod, it
// returns "-". If lost lines of the lease log may name another pod, the word "unknown" precedes the known pods.
func (f flowFormat) podsOf(h *history.History, record []string) (src, dst string) {
	start, errStart := strconv.ParseInt(record[f.start], 10, 64)
	end, errEnd := strconv.ParseInt(record[f.end], 10, 64)
	if errStart != nil || errEnd != nil {
		return "-", "-"
	}
	pods := func(text string) string {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return "-" // a record without data has "-" as its address
		}
		var names []string
		from, to := time.Unix(start, 0), time.Unix(max(start, end)+1, 0)
		if !h.Sure(a, from, to) {
			names = append(names, "unknown")
		}
		for _, l := range h.LeasesBetween(a, from, to) {
			if name := podName(l); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			return "-"
		}
		return strings.Join(names, ",")
	}
	return pods(record[f.src]), pods(record[f.dst])
}

// annotate writes the records of a flow log, each with the pods of its two addresses.
func annotate(c *cli.Context, h *history.History, path string) error {
	var in io.ReadCloser = os.Stdin
	if path != "-" {
		var err error
		if in, err = history.Open(path); err != nil {
			return cli.Rooted(err)
		}
		defer in.Close()
	}
	out := bufio.NewWriter(c.App.Writer)
	a := annotator{history: h, out: out, json: c.String("output") == "json"}
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		if err := a.annotateLine(strings.Fields(lines.Text())); err != nil {
			return fmt.Errorf("%s: line %d: %w", path, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	a.finishJSON()
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// An annotator adds pods to the records one by one, because a flow log may be larger than the memory.
type annotator struct {
	history *history.History
	out     *bufio.Writer
	json    bool
	format  *flowFormat
	written int
}

func (a *annotator) annotateLine(fields []string) error {
	if len(fields) == 0 {
		return nil
	}
	if a.format == nil {
		header, err := a.setFormat(fields)
		if header || err != nil {
			return err
		}
	}
	if slices.Equal(fields, a.format.names) {
		return nil // a second header: the input is several files, one after the other
	}
	if len(fields) != len(a.format.names) {
		return fmt.Errorf("the record %q has %d fields, but the format of the flow log has %d", fields,
			len(fields), len(a.format.names))
	}
	src, dst := a.format.podsOf(a.history, fields)
	return a.write(fields, src, dst)
}

// setFormat finds out the format of the flow log from the log's first line, and reports whether this line is a header.
func (a *annotator) setFormat(fields []string) (header bool, err error) {
	header = slices.ContainsFunc(fields, func(name string) bool {
		return name == "srcaddr" || name == "pkt-srcaddr" || name == "version"
	})
	names := defaultFormat
	switch {
	case header:
		names = fields
	case len(fields) != len(defaultFormat):
		return false, cli.Hint(fmt.Errorf("the record has %d fields, but EC2's default format has %d", len(fields),
			len(defaultFormat)),
			"put the names of the fields into the first line, as EC2 does in files in S3")
	}
	f, err := newFlowFormat(names)
	if err != nil {
		return header, err
	}
	a.format = &f
	if !slices.Contains(names, "pkt-dstaddr") || !slices.Contains(names, "pkt-srcaddr") {
		slog.Warn("the flow log lacks the field pkt-srcaddr or pkt-dstaddr. If a packet had a secondary address of "+
			"an ENI, the flow log has the primary address. So the names of some pods may be wrong", "hint",
			"create a new flow log with both fields")
	}
	if header && !a.json {
		return header, a.write(fields, "src-pod", "dst-pod")
	}
	return header, nil
}

func (a *annotator) write(fields []string, src, dst string) error {
	if !a.json {
		_, err := fmt.Fprintln(a.out, excerpt.Plain(strings.Join(append(fields, src, dst), " ")))
		return err
	}
	record := map[string]string{"src_pod": src, "dst_pod": dst}
	for i, name := range a.format.names {
		record[strings.ReplaceAll(name, "-", "_")] = fields[i]
	}
	b, err := json.Marshal(record)
	if err != nil {
		return err
	}
	separator := ",\n"
	if a.written == 0 {
		separator = "[\n"
	}
	a.written++
	_, err = fmt.Fprint(a.out, separator, string(b))
	return err
}

func (a *annotator) finishJSON() {
	switch {
	case a.json && a.written > 0:
		fmt.Fprint(a.out, "\n]\n")
	case a.json:
		fmt.Fprint(a.out, "[]\n")
	}
}
