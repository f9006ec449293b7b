// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/install"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func maintain() *cli.Command {
	return &cli.Command{
		Name:  "maintain",
		Usage: "Run collections, repairs, refills and metrics at intervals, on a node without systemd",
		Description: `For a container on a node without systemd. maintain does the work of
cni-gc.timer, cni-warm.path, cni-release.path, cni-metrics.timer and
cni-advertise.timer. It runs the commands of these units, each in a process of its
own. No pod waits for maintain. While it does not run, pods still start, but no
process collects, and no process refills the pools in advance.

maintain needs the privileges of these commands, the host network, and / of the
node. Mounts that the node gets later must appear in the container
(mountPropagation: HostToContainer). On SIGTERM, maintain ends. With --once, it
runs each command once, and prints the result of each.` + cli.JSON("[] command error"),
		Flags: []cli.Flag{
			rootFlag(),
			&cli.StringFlag{Name: "config", DefaultText: "the directory of the platform",
				Usage: "`PATH` on the node: our conflist, or its directory"},
			&cli.DurationFlag{Name: "every", Value: 5 * time.Minute,
				Usage: "repair and collect at this `INTERVAL`; up to 15 % is added"},
			&cli.DurationFlag{Name: "free-after", Value: 15 * time.Minute,
				Usage: "as for registry-gc: `TIME` after which unused addresses are released"},
			&cli.StringFlag{Name: "metrics",
				Usage: "write metrics to `FILE` of the node each minute; without this flag, write none"},
			&cli.BoolFlag{Name: "advertise", Usage: "advertise the addresses of the node each minute"},
			&cli.StringFlag{Name: "kubeconfig", DefaultText: "where kubelets have it",
				Usage: "as for advertise: the kubelet's `FILE` on the node"},
			&cli.StringFlag{Name: "node-name", DefaultText: "the name in the kubelet's certificate, or the host name",
				Usage: "as for advertise: the node's `NAME` in Kubernetes"},
			&cli.BoolFlag{Name: "once", Usage: "run each command once, and end"},
		},
		Action: func(c *cli.Context) error {
			if err := cli.NeedRoot(); err != nil {
				return err
			}
			if c.Duration("every") <= 0 || c.Duration("free-after") <= 0 {
				return cli.Misuse(c, "--every and --free-after must be more than 0")
			}
			if err := install.EnterRoot(filepath.Clean(c.String("root"))); err != nil {
				return err
			}
			m, err := maintenanceOf(c)
			if err != nil {
				return err
			}
			if c.Bool("once") {
				return m.runOnce(c)
			}
			m.loop(c.Context)
			return nil
		},
	}
}

type maintenance struct {
	config    string        // path of the conflist, or of its directory
	every     time.Duration // time between two collections
	freeAfter time.Duration
	metrics   string   // path of the file; "": write no metrics
	advertise []string // arguments of the command advertise; nil: do not advertise
}

func maintenanceOf(c *cli.Context) (*maintenance, error) {
	m := &maintenance{config: c.String("config"), every: c.Duration("every"), freeAfter: c.Duration("free-after"),
		metrics: c.String("metrics")}
	if m.config == "" {
		place, err := install.PlaceOf("")
		if err != nil {
			return nil, err
		}
		m.config = place.ConfDir
	}
	if m.metrics != "" && !filepath.IsAbs(m.metrics) {
		return nil, cli.Misuse(c, "--metrics %q: want a path of the node that begins with /", m.metrics)
	}
	if c.Bool("advertise") {
		m.advertise = []string{"--config", m.config}
	}
	for _, flag := range []string{"kubeconfig", "node-name"} {
		value := c.String(flag)
		if value != "" && m.advertise == nil {
			return nil, cli.Misuse(c, "--%s is for --advertise, which is missing", flag)
		}
		if value != "" {
			m.advertise = append(m.advertise, "--"+flag, value)
		}
	}
	return m, nil
}

// commandTimeout is the time after which maintain ends a command, like TimeoutStartSec= of the units.
const commandTimeout = 3 * time.Minute

// markInterval is how often maintain looks for the marks that plugins leave. A look costs a stat of a file on tmpfs for
// each mark. metricsInterval is how often maintain runs metrics and advertise.
const (
	markInterval    = time.Second
	metricsInterval = time.Minute
)

// loop runs the commands at their intervals until ctx is done. The first collection begins after a random time, so that
// nodes that boot together do not call EC2 together.
func (m *maintenance) loop(ctx context.Context) {
	m.runWarm(ctx)
	collect, measure := time.After(m.every/5+jitter(m.every)), time.After(0)
	look := time.NewTicker(markInterval)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			// Release addresses before the other work, because a pod on another node may wait for an address.
			if hasMark(lease.Release) {
				m.runRelease(ctx)
			}
			if hasMark(lease.Refill) {
				m.runWarm(ctx)
			}
		case <-collect:
			m.runCollection(ctx)
			collect = time.After(m.every + jitter(m.every))
		case <-measure:
			m.runMinutely(ctx)
			measure = time.After(metricsInterval)
		}
	}
}

// hasMark reports whether a plugin has left a mark. The mark is a file in the directory of the registry.
func hasMark(name string) bool {
	_, err := os.Stat(filepath.Join(registry.Dir(), name))
	return err == nil
}

type commandRow struct {
	Command string `json:"command"`
	Error   string `json:"error"` // "" after a success
}

// runOnce runs each command once, and answers with the results.
func (m *maintenance) runOnce(c *cli.Context) error {
	rows := append(m.runWarm(c.Context), m.runRelease(c.Context)...)
	rows = append(rows, m.runCollection(c.Context)...)
	rows = append(rows, m.runMinutely(c.Context)...)
	var failed error
	for _, r := range rows {
		if r.Error != "" {
			failed = errors.New("a command has failed: its messages are above")
		}
	}
	return errors.Join(failed, cli.Answer(c, rows, func(w io.Writer) {
		for _, r := range rows {
			fmt.Fprintf(w, "%-12s %s\n", r.Command, orOK(r.Error))
		}
	}))
}

func orOK(text string) string {
	if text == "" {
		return "ok"
	}
	return text
}

// runWarm runs the command warm, which refills the pools. runWarm first removes the mark lease.Refill, as ExecStartPre=
// of cni-warm.service does. The command warm removes the mark only if it can read the conflist. If the mark stayed,
// maintain would run warm again each second.
func (m *maintenance) runWarm(ctx context.Context) []commandRow {
	_ = os.Remove(filepath.Join(registry.Dir(), lease.Refill))
	return []commandRow{m.runCommand(ctx, "warm", "--config", m.config)}
}

// runRelease runs the command release, as cni-release.service does.
func (m *maintenance) runRelease(ctx context.Context) []commandRow {
	_ = os.Remove(filepath.Join(registry.Dir(), lease.Release)) // for the same reason as in runWarm
	return []commandRow{m.runCommand(ctx, "release", "--config", m.config)}
}

// runCollection does the same work as cni-gc.service, in the same order.
func (m *maintenance) runCollection(ctx context.Context) []commandRow {
	if err := removeOldPins(bpffs, time.Now().Add(-maxPinAge)); err != nil {
		slog.Warn("unused BPF programs of pods stay in the kernel", "error", err)
	}
	rows := []commandRow{
		m.runCommand(ctx, "repair", "--config", m.config),
		m.runCommand(ctx, "registry-gc", "--config", m.config, "--free-after", m.freeAfter.String()),
	}
	if err := view.MarkMaintained(); err != nil {
		slog.Warn("doctor cannot see that maintain works, because maintain cannot write its mark", "error", err)
	}
	return rows
}

// runMinutely writes metrics and advertises the addresses, each only if a flag asks for it.
func (m *maintenance) runMinutely(ctx context.Context) []commandRow {
	rows := m.runMetrics(ctx)
	if m.advertise != nil {
		rows = append(rows, m.runCommand(ctx, "advertise", m.advertise...))
	}
	return rows
}

func (m *maintenance) runMetrics(ctx context.Context) []commandRow {
	if m.metrics == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(m.metrics), 0o755); err != nil {
		slog.Warn("the directory of the metrics cannot be created, so no metrics are written", "error", err)
		return []commandRow{{"metrics", err.Error()}}
	}
	return []commandRow{m.runCommand(ctx, "metrics", "--config", m.config, "--file", m.metrics)}
}

// runCommand runs a command of this tool in a separate process, so that the command cannot affect maintain or other
// commands.
func (m *maintenance) runCommand(ctx context.Context, command string, args ...string) commandRow {
	limited, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	c := exec.CommandContext(limited, "/proc/self/exe", append([]string{command}, args...)...)
	c.Args[0] = Name
	c.Stdout, c.Stderr = os.Stderr, os.Stderr // maintain's log has the output of all commands
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 10 * time.Second
	err := c.Run()
	if err != nil && ctx.Err() == nil { // if ctx is done, maintain itself has stopped the command
		slog.Warn("a command has failed", "command", command, "error", err)
	}
	if err != nil {
		return commandRow{command, err.Error()}
	}
	return commandRow{Command: command}
}

// The plugins pin BPF programs in bpffs, because later pods may use them. If no ADD has opened a pin for a week,
// maintain removes the pin. cni-gc.service does the same. The program stays in the kernel while pods use it.
const (
	bpffs      = "/sys/fs/bpf"
	pinPattern = "cni_ipvlan_vpc_k8s:*"
	maxPinAge  = 7 * 24 * time.Hour
)

// removeOldPins removes pins in a directory. It keeps a pin if a process has opened the pin after the time "since".
func removeOldPins(dir string, since time.Time) error {
	found, err := filepath.Glob(filepath.Join(dir, pinPattern))
	for _, pin := range found {
		fi, err2 := os.Stat(pin)
		if err2 == nil && lastOpened(fi).Before(since) {
			err2 = os.Remove(pin)
		}
		if !errors.Is(err2, fs.ErrNotExist) {
			err = errors.Join(err, err2)
		}
	}
	return err
}

func lastOpened(fi fs.FileInfo) time.Time {
	s, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fi.ModTime()
	}
	return time.Unix(s.Atim.Unix())
}

// defaultUnits are the units that every node needs.
func defaultUnits() *cli.StringSlice { return cli.NewStringSlice("cni-gc.timer", "cni-warm.path") }
