// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/excerpt"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/history"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func whois() *cli.Command {
	return &cli.Command{
		Name:      "whois",
		Usage:     "Say which pod has or had an address; with --flow-log, add the pods to each record",
		ArgsUsage: "[ADDRESS] [LOG...]",
		Description: `It reads lease logs. A node writes one if its configuration has the key leaseLog:

    ` + Name + ` whois 10.0.97.30
    ` + Name + ` whois --at "2026-11-24 14:03" 10.0.97.30 /var/log/nodes
    ` + Name + ` whois --flow-log flow.log.gz /var/log/nodes

A LOG is a file, or a directory with the logs of one or many nodes. The files may be
compressed by gzip. Without a LOG, it reads the log of this node, and leaves out the
lines of other instances. The image of the node may have such lines. Between a
boot and the first pod, it reads the leaseLog of the first network. A TIME has the
format of RFC 3339, or is seconds since 1970. It may also be like the time above, in
the time zone of this machine. A time of day without a date is of today. Without --at,
the command lists all leases of the address.

A flow log has EC2's default format, or a header line that names its fields. The
command prints each record with two more fields, src-pod and dst-pod:
namespace/name, or "-" if no pod had the address. If several pods had the address in
the time of the record, commas separate them. If the log has the fields pkt-srcaddr and
pkt-dstaddr, the command uses them. Without these fields, a record has the primary
address of an ENI, even if the packet had another address of this ENI.

Lines of lease logs may come twice and in any order. If a line is lost or damaged,
and may have named another pod, the answer is "unknown".` +
			cli.JSON("[] address begin end (null: none known) namespace pod container interface nic network eni "+
				"instance trace found_in missing (null: it ended by a DEL) unsure (with --at: a lost line "+
				"may say otherwise)") +
			`; with --flow-log: [] the fields of the record, src_pod and dst_pod`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "at", Usage: "say which pod had the address at this `TIME`"},
			conf.Flag(),
			&cli.StringFlag{Name: "flow-log", Usage: "add the pods to the records of this `FILE`; -: standard input"},
		},
		Action: func(c *cli.Context) error {
			signal.Reset(os.Interrupt, syscall.SIGTERM) // let a signal end the process, even while it reads from a pipe
			args := c.Args().Slice()
			if file := c.String("flow-log"); file != "" {
				if c.String("at") != "" {
					return cli.Misuse(c, "--at is not for --flow-log, whose records have their own times")
				}
				h, err := readHistory(c.String("config"), args)
				if err != nil {
					return err
				}
				return annotate(c, h, file)
			}
			if len(args) == 0 {
				return cli.Misuse(c, "want an address, or --flow-log FILE")
			}
			a, err := netip.ParseAddr(args[0])
			if err != nil {
				return cli.Misuse(c, "%q: want an address, for example 10.0.97.30", args[0])
			}
			at, err := parseTime(c.String("at"), time.Now())
			if err != nil {
				return cli.Misuse(c, "--at %w", err)
			}
			h, err := readHistory(c.String("config"), args[1:])
			if err != nil {
				return err
			}
			return answerWhois(c, h, a.Unmap(), at)
		},
	}
}

// readHistory reads the logs at the paths. Without paths, it reads this node's log. If the node's image was made on
// another instance, the node's log also has lines of that instance. The log does not show how the leases of that
// instance ended, so readHistory drops these lines.
func readHistory(config string, paths []string) (*history.History, error) {
	instance := ""
	if len(paths) == 0 {
		var err error
		if paths, instance, err = nodeLogs(config); err != nil {
			return nil, err
		}
	}
	h, damage, err := history.Read(paths...)
	if err != nil {
		return nil, cli.Rooted(err)
	}
	logDamage(damage)
	if instance != "" {
		h.Keep(instance)
	}
	return h, nil
}

// logDamage writes a message for each of the first ten damaged lines and files. If there are more, it writes one
// message with the number of the remaining ones.
func logDamage(damage []history.Damage) {
	const few = 10
	for _, d := range damage[:min(few, len(damage))] {
		if d.Line > 0 {
			slog.Warn("a line of a lease log is damaged, and is ignored", "file", d.File, "line", d.Line)
		} else {
			slog.Warn("a lease log cannot be read to its end, and the rest is ignored",
				"file", d.File, "because", d.Why)
		}
	}
	if rest := len(damage) - few; rest > 0 {
		slog.Warn("the lease logs are damaged at more places", "places", rest)
	}
}

// nodeLogs returns the files of this node's lease log, and the ID of the instance if the registry knows it. Until the
// first pod after a boot, the registry does not have the path of the log. Then nodeLogs takes the path from the first
// network with a leaseLog.
//
// If networks have different logs, nodeLogs returns only one log, because package history cannot merge several logs of
// one node.
func nodeLogs(config string) (files []string, instance string, err error) {
	s, err := cli.ViewRegistry()
	if err != nil {
		return nil, "", err
	}
	file := s.Log.File
	networks, _ := conf.Load(config).All() // ignore networks with mistakes
	for _, l := range networks {
		file = cmp.Or(file, l.IPAM.Policies()[0].Log.File)
	}
	if file == "" {
		return nil, "", cli.Hint(fmt.Errorf("this node writes no lease log"),
			"give the lease logs as arguments, or set leaseLog in the conflist: the log then begins with the next pod")
	}
	files, _ = filepath.Glob(file + ".*")
	files = slices.DeleteFunc(files, func(f string) bool { return !history.Rotated(f, file) })
	if _, err = os.Stat(file); err == nil {
		files = append(files, file)
	}
	if len(files) == 0 {
		return nil, "", cli.Rooted(err)
	}
	return files, s.Instance.ID, nil
}

// parseTime parses a time that a person has typed. If text is empty, it returns the zero time.
func parseTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.Unix(n, 0), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04:05",
		"2006-01-02T15:04"} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if t, err := time.ParseInLocation("2006-01-02 "+layout, now.Format("2006-01-02 ")+text,
			time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{},
		fmt.Errorf(`%q: want a time, for example 2026-11-24T14:03:00Z, "2026-11-24 14:03" or 14:03`, text)
}

// A tenure is the time for which a pod had an address.
type tenure struct {
	Addr      netip.Addr `json:"address" head:"-"`
	Begin     string     `json:"begin"`
	End       *string    `json:"end" head:"-"` // nil: no end is known
	Until     string     `json:"-" head:"end"`
	Who       string     `json:"-" head:"pod"`
	Namespace string     `json:"namespace" head:"-"`
	Pod       string     `json:"pod" head:"-"`
	Container string     `json:"container" head:"-"`
	Interface string     `json:"interface"`
	NIC       int        `json:"nic" head:"-"`
	Network   string     `json:"network" head:"-"`
	ENI       string     `json:"eni"`
	Instance  string     `json:"instance"`
	Trace     string     `json:"trace" head:"-"`    // ID of the ADD's trace, if the runtime traces its calls
	FoundIn   string     `json:"found_in" head:"-"` // where the pod was found: a namespace, or a route of the node
	// Missing is the time at which a collection found that the pod was gone. nil: no collection has found this.
	Missing *time.Time `json:"missing" head:"-"`
	// Unsure is only for --at. It means that lines of the lease log are lost, and that another pod may have had the
	// address.
	Unsure bool `json:"unsure" head:"-"`
}

func tenureOf(l *history.Lease) tenure {
	t := tenure{Addr: l.Address, Begin: timeText(l.Begin), Until: "-", Who: podName(l), Namespace: l.Namespace,
		Pod: l.Pod, Container: l.Container, Interface: l.Interface,
		NIC: l.NIC, Network: l.Network, ENI: l.ENI, Instance: l.Instance,
		Trace: l.Trace, FoundIn: l.NetNS, Missing: view.Moment(l.Missing)}
	if !l.End.IsZero() {
		t.Until = timeText(l.End)
		t.End = &t.Until
	}
	return t
}

func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// podName returns the name of the pod that had a lease, or of the container outside Kubernetes. If the node knew only
// that the address was in use, podName returns "unknown".
func podName(l *history.Lease) string {
	switch {
	case l.Pod != "":
		return l.Namespace + "/" + l.Pod
	case l.Container != "":
		return "container/" + l.Container
	}
	return "unknown"
}

// answerWhois prints which pods had an address at one moment. If at is zero, it prints all leases of the address.
func answerWhois(c *cli.Context, h *history.History, a netip.Addr, at time.Time) error {
	rows := []tenure{}
	sure := at.IsZero() || h.Sure(a, at, at.Add(1))
	for _, l := range h.At(a, at) {
		if !at.IsZero() {
			row := tenureOf(l)
			row.Unsure = !sure
			rows = append(rows, row)
		}
	}
	if !sure {
		slog.Warn("it is unknown which pod had the address at this time, because a lost line of the lease logs may "+
			"name the pod", "address", a)
	}
	var before, after *history.Lease
	for _, l := range h.LeasesOf(a) {
		switch {
		case at.IsZero():
			rows = append(rows, tenureOf(l))
		case l.Begin.After(at):
			after = cmp.Or(after, l)
		default:
			before = l
		}
	}
	return cli.Answer(c, rows, func(w io.Writer) {
		if len(rows) > 0 {
			cli.Tabulate(w, rows)
			return
		}
		if at.IsZero() {
			fmt.Fprintf(w, "these logs name no pod that had %s\n", a)
			return
		}
		if !sure {
			fmt.Fprintf(w, "unknown: the logs do not say which pod had %s at %s\n", a, timeText(at))
		} else {
			fmt.Fprintf(w, "no pod had %s at %s\n", a, timeText(at))
		}
		if before != nil {
			fmt.Fprintf(w, "before: %s, until %s\n", excerpt.Plain(podName(before)), timeText(before.End))
		}
		if after != nil {
			fmt.Fprintf(w, "after: %s, from %s\n", excerpt.Plain(podName(after)), timeText(after.Begin))
		}
	})
}
