// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func doctorCommand() *cli.Command {
	var names strings.Builder
	for _, c := range doctor.Checks(false) {
		fmt.Fprintf(&names, "    %-10s %s\n", c.Name, c.About)
	}
	return &cli.Command{
		Name:  "doctor",
		Usage: "Find the faults on this node that break the pods' network; with --fix, repair some of them",
		Description: `It checks

` + names.String() + `
Each finding says what it means, and what to do. An "error" breaks pods now or soon. A
"warning" may break pods. A "note" is for your information. Without --fix it changes
nothing. With --fix it makes the changes that can do no harm, and reports them. If
an error remains, the exit status is 1. With --root it makes no EC2 call, and checks
the files of a machine image that does not run. cni-doctor.timer makes all checks
that do not ask EC2, and writes the numbers of findings for Prometheus.` +
			cli.JSON("errors warnings (that are left) checked findings[] {check severity about means do fixed}"),
		Flags: []cli.Flag{
			conf.Flag(),
			&cli.StringFlag{Name: "bin-dir", Value: conf.UsualBinDir(), Usage: "look for the plugins in `DIR`"},
			&cli.StringSliceFlag{Name: "check", DefaultText: "all",
				Usage: "make only the check `NAME`; repeat the flag or use commas for more checks"},
			&cli.BoolFlag{Name: "local", Usage: "without --check, make no check that asks EC2"},
			&cli.StringFlag{Name: "metrics", Usage: "write the numbers of findings to `FILE`, for Prometheus"},
			&cli.BoolFlag{Name: "fix", Usage: "make the changes that can do no harm"},
			&cli.StringFlag{Name: "root", Usage: "check the files of a machine image in `DIR`, and not this node"},
		},
		Action: func(c *cli.Context) error {
			if c.String("root") != "" && c.String("metrics") != "" {
				return cli.Misuse(c, "--metrics: an image has no metrics, so leave out --root or --metrics")
			}
			checks, err := chosenChecks(c)
			if err != nil {
				return err
			}
			n, err := doctor.Open(c.String("root"), c.String("config"), c.String("bin-dir"))
			if err != nil {
				return err
			}
			defer n.Close()
			r, failed := n.Examine(c.Context, checks, c.Bool("fix"))
			if file := c.String("metrics"); file != "" {
				failed = errors.Join(failed, writeMetrics(c, file, view.Written(r.Metrics(time.Now()))))
			}
			err = errors.Join(failed, cli.Answer(c, r, r.Print))
			if err == nil && r.Errors > 0 {
				err = errors.New(cli.Count(r.Errors, "error") + " left")
			}
			return err
		},
	}
}

// chosenChecks returns the checks that the command line names. If it names none, chosenChecks returns all checks. But
// with --local, it leaves out the checks that ask EC2.
func chosenChecks(c *cli.Context) ([]doctor.Check, error) {
	wanted := c.StringSlice("check")
	var chosen []doctor.Check
	var names []string
	for _, k := range doctor.Checks(c.String("root") != "") {
		names = append(names, k.Name)
		if len(wanted) == 0 && !(c.Bool("local") && k.AsksEC2()) || slices.Contains(wanted, k.Name) {
			chosen = append(chosen, k)
		}
	}
	for _, name := range wanted {
		if !slices.Contains(names, name) {
			return nil, cli.Misuse(c, "--check %q: want one of %s", name, strings.Join(names, ", "))
		}
	}
	return chosen, nil
}
