// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// leastGrace is the smallest value of --grace. No intent stays in the registry for so long, and EC2's describe calls do
// not show an old state for so long.
const leastGrace = 20 * time.Minute

func eniGC() *cli.Command {
	return &cli.Command{
		Name:  "eni-gc",
		Usage: "Delete the ENIs of instances that no longer exist",
		Description: `For one timer in the whole cluster, or for a timer with RandomizedDelaySec on every node:

    ` + Name + ` eni-gc --grace=1h

If an instance ends after it has created an ENI, and before it has attached the ENI,
the ENI stays. The command deletes an ENI if two runs, at least --grace apart, have
seen all of these facts:

  - the tag ` + book.TagInstance + `, which our ENIs get when they are created
  - the status available, which means not attached
  - the VPC of this instance
  - the instance in the tag is gone, or is this instance. An instance is gone if EC2
    shows no ENI that is attached to it: even a stopped instance has such an ENI. If
    the tag names this instance, the registry of this node has neither the ENI nor an
    unfinished call

It never deletes an ENI of another instance that still exists: the registry-gc of
that instance deletes the ENI. It never deletes ENIs without the tag
` + book.TagInstance + `, such as ENIs of the original plugins. It never deletes ENIs with the tag
` + book.TagNoManage + `=true. The first run only remembers an ENI, in the file of --state. The command needs
ec2:DescribeNetworkInterfaces and ec2:DeleteNetworkInterface.` +
			cli.JSON("deleted[] {id instance subnet first_seen} waiting[] {id instance subnet first_seen}"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "dry-run",
				Usage: "only print what it would delete: delete no ENI, and do not change the file of --state"},
			&cli.DurationFlag{Name: "grace", Value: time.Hour,
				Usage: "delete ENIs that an earlier run saw at least this `TIME` ago"},
			&cli.StringFlag{Name: "state", Usage: "keep in `FILE` the time at which a run first saw each ENI",
				DefaultText: "eni-gc.json in the directory of the registry"},
		},
		Action: func(c *cli.Context) error {
			if g := c.Duration("grace"); g < leastGrace {
				return cli.Misuse(c,
					"--grace %v: want %v or more, because a node may need this time to finish its own work",
					g, leastGrace)
			}
			p, err := cli.OpenPool(lease.Policy{})
			if err != nil {
				return err
			}
			defer p.Close()
			unlock, err := p.Registry.Lock(c.Context, "eni-gc")
			if err != nil {
				return err
			}
			defer unlock()
			l := leakSearch{pool: p, grace: c.Duration("grace"), dry: c.Bool("dry-run"),
				sightings: sightingsAt(c.String("state"))}
			stop := cli.Working("look for leaked ENIs")
			failed := l.deleteOld(c.Context)
			stop()
			return errors.Join(failed, cli.Answer(c, map[string]any{"deleted": cli.List(l.deleted),
				"waiting": cli.List(l.waiting)}, l.print))
		},
	}
}

type leakSearch struct {
	pool  *ipam.Pool
	grace time.Duration
	dry   bool
	sightings

	deleted []leakRow // with --dry-run: ENIs that the command would delete
	waiting []leakRow // ENIs that a later run will delete if it still finds them
}

type leakRow struct {
	ID       string    `json:"id"`
	Instance string    `json:"instance"` // the instance for which the ENI was created
	Subnet   string    `json:"subnet"`
	Seen     time.Time `json:"first_seen"`
}

func (l *leakSearch) print(w io.Writer) {
	verb := "deleted"
	if l.dry {
		verb = "would delete"
	}
	for _, r := range l.deleted {
		fmt.Fprintf(w, "%s %s of %s, first seen %s\n", verb, r.ID, r.Instance, r.Seen.Format(time.RFC3339))
	}
	for _, r := range l.waiting {
		fmt.Fprintf(w, "would delete %s of %s at %s or later, if a run then still finds it\n", r.ID, r.Instance,
			r.Seen.Add(l.grace).Format(time.RFC3339))
	}
}

// deleteOld deletes the leaked ENIs that a run saw for the first time more than --grace ago. It records the other
// leaked ENIs in the file of the sightings. If EC2 throttles or does not answer, the next run deletes further ENIs.
func (l *leakSearch) deleteOld(ctx context.Context) error {
	enis, err := l.findLeaks(ctx)
	if err != nil {
		return err
	}
	seen, err := l.read()
	if err != nil {
		return err
	}
	now := view.Seconds(time.Now())
	still := map[string]time.Time{}
	var failed error
	ended := false // no further call: it would count against EC2's limit, or take ten seconds
	for _, e := range enis {
		first, again := seen[e.ID]
		if !again || first.After(now) { // a time in the future shows that the clock was set back
			first = now
		}
		row := leakRow{e.ID, e.Tags[book.TagInstance], e.Subnet, first}
		if ended || !again || now.Sub(first) < l.grace {
			still[e.ID] = first
			l.waiting = append(l.waiting, row)
			continue
		}
		if err := l.deleteENI(ctx, e.ID); err != nil {
			still[e.ID] = first
			failed = errors.Join(failed, fmt.Errorf("delete %s: %w", e.ID, err))
			ended = aws.Stops(err)
			continue
		}
		l.deleted = append(l.deleted, row)
	}
	if l.dry || len(seen)+len(still) == 0 {
		return failed
	}
	return errors.Join(failed, l.write(still))
}

// deleteENI deletes an ENI. If the ENI is already gone, it returns nil. If an instance has just attached the ENI, EC2
// refuses the deletion, and deleteENI returns an error.
func (l *leakSearch) deleteENI(ctx context.Context, id string) error {
	if l.dry {
		return nil
	}
	err := l.pool.Cloud.DeleteENI(ctx, id)
	if errors.Is(err, aws.ErrNotFound) {
		return nil
	}
	return err
}

func (l *leakSearch) findLeaks(ctx context.Context) ([]aws.ENI, error) {
	cloud := l.pool.Cloud
	self, err := cloud.Instance(ctx)
	if err != nil {
		return nil, err
	}
	idle, err := cloud.DescribeENIs(ctx, aws.ByTag(book.TagManaged, "true", "false"), aws.ByStatus("available"))
	if err != nil {
		return nil, err
	}
	alive, vpc, err := l.aliveInstances(ctx, self, idle)
	if err != nil {
		return nil, err
	}
	busy, err := l.mayUse()
	if err != nil {
		return nil, err
	}
	idle = slices.DeleteFunc(idle, func(e aws.ENI) bool {
		made := e.Tags[book.TagInstance]
		return made == "" || e.VPC != vpc || e.Tags[book.TagNoManage] == "true" ||
			alive[made] && (made != self.ID || busy(e.ID))
	})
	slices.SortFunc(idle, func(a, b aws.ENI) int { return strings.Compare(a.ID, b.ID) })
	return idle, nil
}

// aliveInstances returns which instances still exist, and the VPC of this instance. It looks at this instance, and at
// the instances in the tags of the ENIs. An instance has an attached ENI from its launch to its end. So an instance
// exists if EC2 shows an ENI that is attached to it. If EC2 does not show this instance's boot ENI, the answer is
// incomplete, and aliveInstances returns an error.
func (l *leakSearch) aliveInstances(
	ctx context.Context, self aws.Instance, enis []aws.ENI,
) (alive map[string]bool, vpc string, err error) {
	ids := []string{self.ID}
	for _, e := range enis {
		if id := e.Tags[book.TagInstance]; id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	alive = map[string]bool{}
	const most = 200 // EC2 takes at most 200 values in a filter
	for some := range slices.Chunk(ids, most) {
		attached, err := l.pool.Cloud.DescribeENIs(ctx, aws.ByInstance(some...))
		if err != nil {
			return nil, "", err
		}
		for _, e := range attached {
			alive[e.Instance] = true
			if e.Instance == self.ID && e.MAC == self.MAC {
				vpc = e.VPC
			}
		}
	}
	if vpc == "" {
		return nil, "",
			fmt.Errorf("EC2 does not show the boot ENI of this instance, %s, so EC2's answer is incomplete, and the "+
				"command deletes nothing", self.ID)
	}
	return alive, vpc, nil
}

// mayUse returns a function that reports whether this node may still use an ENI that was created for this node.
func (l *leakSearch) mayUse() (func(id string) bool, error) {
	s, err := l.pool.Registry.View()
	if err != nil {
		return nil, err
	}
	return func(id string) bool {
		if _, known := s.ENIs[id]; !known && s.Instance.ID != "" && len(s.Intents) == 0 && s.Rebuilt.Since.IsZero() {
			return false
		}
		slog.Info("this command does not delete an ENI of this instance, because the node may still use or delete it: "+
			"see status --diff", "eni", id)
		return true
	}, nil
}

// sightings is a file with the time at which eni-gc first saw each leaked ENI. If the file is lost, the time of --grace
// begins again.
type sightings struct{ file string }

func sightingsAt(file string) sightings {
	return sightings{cmp.Or(file, filepath.Join(registry.Dir(), "eni-gc.json"))}
}

func (s sightings) read() (map[string]time.Time, error) {
	b, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var seen map[string]time.Time
	if err := json.Unmarshal(b, &seen); err != nil {
		return nil, cli.Hint(fmt.Errorf("%s: %w", s.file, err),
			"delete the file. The time of --grace then begins again")
	}
	return seen, nil
}

func (s sightings) write(seen map[string]time.Time) error {
	b, err := json.Marshal(seen)
	if err != nil {
		return err
	}
	return cli.WriteFile(s.file, append(b, '\n'), 0o600)
}
