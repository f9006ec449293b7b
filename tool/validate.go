// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

func validate() *cli.Command {
	return &cli.Command{
		Name:  "validate",
		Usage: "Find all mistakes in network configurations",
		Description: `Use it before a runtime reads the files, on a node or on the machine that makes images:

    ` + Name + ` validate --bin-dir= 10-cni-ipvlan-vpc-k8s.conflist

It looks for keys that no plugin knows, and for values that the plugins, the
runtime or EC2 would refuse. It looks for plugins that are in the wrong order or not
installed, and checks versions. In a directory, it reads all files that a runtime
would read. If the directory of a file has the name net.d, a runtime may read the
other files there, too. Then the command also looks for settings of the node that
differ between these files. If there are mistakes, the exit status is 1.` + cli.JSON("[] file where mistake"),
		ArgsUsage: "CONFLIST|DIR...",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "bin-dir", Value: conf.UsualBinDir(),
				Usage: "look for the plugins in `DIR`; empty: do not look"},
			&cli.BoolFlag{Name: "together", Usage: "check all files of the directory as files of one node, even if " +
				"its name is not net.d"},
		},
		Action: func(c *cli.Context) error {
			if !c.Args().Present() {
				return cli.Misuse(c, "Insufficient Arguments: please specify a conflist")
			}
			var all []conf.Mistake
			for _, path := range c.Args().Slice() {
				found, err := mistakesAt(conf.Load(path), c.String("bin-dir"), c.Bool("together"))
				if err != nil {
					return err
				}
				all = append(all, found...)
			}
			err := cli.Answer(c, cli.List(all), func(w io.Writer) {
				for _, m := range all {
					fmt.Fprintln(w, m)
				}
			})
			if err == nil && len(all) > 0 {
				err = errors.New(cli.Count(len(all), "mistake") + " in the configuration")
			}
			return err
		},
	}
}

// mistakesAt returns the mistakes in a file, or in those files of a directory that runtimes read.
func mistakesAt(conflists *conf.Conflists, binDir string, together bool) (all []conf.Mistake, err error) {
	switch {
	case conflists.Unlisted != nil:
		return nil, conflists.Unlisted
	case len(conflists.Files) == 0:
		return nil, fmt.Errorf("%s: no file's name ends in .conflist, .conf or .json", conflists.Path)
	}
	var beside *conf.Conflists
	if together || forRuntimes(conflists) {
		beside = conflists.Beside()
	}
	for _, f := range conflists.Files {
		found, err := f.Mistakes(binDir, beside)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// forRuntimes reports whether a runtime may read the directory. The directories that runtimes read have the name net.d.
func forRuntimes(conflists *conf.Conflists) bool {
	dir, err := filepath.Abs(conflists.Path)
	if !conflists.IsDir {
		dir = filepath.Dir(dir)
	}
	return err != nil || filepath.Base(dir) == "net.d"
}
