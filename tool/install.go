// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/install"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func installNode() *cli.Command {
	return &cli.Command{
		Name:  "install",
		Usage: "Install the plugins, the units and the conflist on a node; with --uninstall, remove them",
		Description: `For an init container that mounts / of the node at /host:

    ` + Name + ` install --conflist /config/10-cni-ipvlan-vpc-k8s.conflist

It installs the programs first, then units if there is systemd, and the conflist
last: the node is then ready. It replaces each file by a rename. It does not change
files that are up to date, so it may run at each boot, beside another run, and while
pods start. If it is killed, the next run finishes its work. If the conflist has
mistakes, it refuses the conflist before it changes anything. In "hostInterface", it
replaces "auto" by the name of the boot ENI's link.

It finds out the platform of the node. The platform decides which directories the
runtime uses: ` + strings.Join(install.Platforms(), ", ") + `.
If your runtime has other directories, set --bin-dir and --conf-dir.

It prints its changes.` + cli.JSON("[] change path"),
		Flags: []cli.Flag{
			rootFlag(),
			&cli.StringFlag{Name: "from", Value: "/",
				Usage: "install files from `DIR`, which has the directories of the container image"},
			&cli.StringFlag{Name: "conflist",
				Usage: "install the conflist `FILE` under its own name; without this flag, install no conflist"},
			&cli.BoolFlag{Name: "check", Usage: "change nothing, and print what it would change"},
			&cli.BoolFlag{Name: "uninstall",
				Usage: "remove everything that install has installed, and all conflists with our plugins; refused " +
					"while pods have addresses"},
			&cli.BoolFlag{Name: "force",
				Usage: "with --uninstall: remove everything even while pods have addresses; the DEL of these pods " +
					"then fails"},
			&cli.BoolFlag{Name: "in-use",
				Usage: "change nothing, and fail while pods have addresses; packages run this before their removal"},
			&cli.StringFlag{Name: "platform", DefaultText: "the platform of the node",
				Usage: "use the directories of `PLATFORM`"},
			&cli.StringFlag{Name: "bin-dir", DefaultText: "the directory of the platform",
				Usage: "install the plugins in `DIR` of the node"},
			&cli.StringFlag{Name: "conf-dir", DefaultText: "the directory of the platform",
				Usage: "install the conflist in `DIR` of the node"},
			&cli.StringFlag{Name: "tool-dir", DefaultText: "the directory of the platform",
				Usage: "install the tool in `DIR` of the node; empty: install no tool, and no units"},
			&cli.StringFlag{Name: "systemd", Value: "auto",
				Usage: "install units: `WHEN` is yes, no, or auto (if the node has systemd)"},
			&cli.StringSliceFlag{Name: "env",
				Usage: "the units get the variable `NAME` of install's environment; may be given again"},
			&cli.StringSliceFlag{Name: "enable", Value: defaultUnits(),
				Usage: "enable and start `UNIT`; may be given again; none: enable no unit"},
		},
		Action: func(c *cli.Context) error {
			if err := cli.NeedRoot(); err != nil {
				return err
			}
			if c.Bool("force") && !c.Bool("uninstall") {
				return cli.Misuse(c, "--force is only for --uninstall")
			}
			host, err := nl.Node()
			if err != nil {
				return err
			}
			defer host.Close()
			if c.Bool("in-use") {
				return errors.Join(install.InUse(host, ""), cli.Answer(c, []install.Change{}, func(io.Writer) {}))
			}
			i, err := installation(c)
			if err != nil {
				return err
			}
			defer i.Source.Close()
			changes, err := installOrRemove(c, i, host)
			return errors.Join(err, cli.Answer(c, cli.List(changes), func(w io.Writer) {
				for _, change := range changes {
					fmt.Fprintf(w, "%-8s %s\n", change.Change, change.Path)
				}
			}))
		},
	}
}

func rootFlag() cli.Flag {
	return &cli.StringFlag{Name: "root", Value: "/host",
		Usage: "the root directory of the node is `DIR`; / on the node itself"}
}

func installOrRemove(c *cli.Context, i *install.Installation, host *nl.NS) ([]install.Change, error) {
	if !c.Bool("uninstall") {
		return i.Install(c.Context)
	}
	return i.Uninstall(c.Context, func() error {
		if c.Bool("force") {
			return nil
		}
		return install.InUse(host, "; --force removes everything anyway")
	})
}

// installation reads the variables of --env, and the conflist for the node. Then it enters the node's root directory,
// and chooses the directories for the files.
func installation(c *cli.Context) (*install.Installation, error) {
	root, from := filepath.Clean(c.String("root")), filepath.Clean(c.String("from"))
	if root == from {
		return nil, cli.Misuse(c,
			"--root and --from are both %s: want the node's root directory, and the directory of the files to install",
			root)
	}
	source, err := os.OpenRoot(from)
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	i := &install.Installation{Source: source, Check: c.Bool("check"), Enable: c.StringSlice("enable")}
	if c.Bool("uninstall") || slices.Equal(i.Enable, []string{"none"}) {
		i.Enable = nil
	}
	if !c.Bool("uninstall") {
		if err := i.Lookup(c.StringSlice("env")); err != nil {
			return nil, cli.Misuse(c, "--env: %w", err)
		}
	}
	if file := c.String("conflist"); file != "" {
		if i.Conflist, err = install.ReadConflist(file); err != nil {
			return nil, err
		}
	}
	if err := nameHostInterface(c, i.Conflist); err != nil {
		return nil, err
	}
	if err := install.EnterRoot(root); err != nil {
		return nil, err
	}
	i.Place, err = placeOf(c)
	return i, err
}

// nameHostInterface sets the key hostInterface of the conflist to the name of the boot ENI's link, if the key's value
// is "auto". It asks metadata for the boot ENI.
func nameHostInterface(c *cli.Context, conflist *install.Conflist) error {
	if conflist == nil || c.Bool("uninstall") || !conflist.WantsHostInterface() {
		return nil
	}
	enis, err := aws.New(aws.Options{}).ENIs(c.Context)
	if err != nil {
		return fmt.Errorf(`hostInterface "auto": %w`, err)
	}
	names, err := view.LinkNames()
	if err != nil {
		return err
	}
	for _, e := range enis {
		if link := names[e.MAC]; e.Boot && link != "" {
			conflist.SetHostInterface(link)
			return nil
		}
	}
	return cli.Hint(errors.New(`hostInterface "auto": no link of this network namespace belongs to the boot ENI`),
		"run install on the host network, or set hostInterface to the name of the link")
}

// placeOf returns the directories of the node. A flag has precedence over the value of the platform.
func placeOf(c *cli.Context) (install.Place, error) {
	p, err := install.PlaceOf(c.String("platform"))
	if err != nil {
		return p, cli.Misuse(c, "%w", err)
	}
	for flag, dir := range map[string]*string{"bin-dir": &p.BinDir, "conf-dir": &p.ConfDir, "tool-dir": &p.ToolDir} {
		if !c.IsSet(flag) {
			continue
		}
		if *dir = c.String(flag); !filepath.IsAbs(*dir) && (*dir != "" || flag != "tool-dir") {
			return p, cli.Misuse(c, "--%s %q: want a path of the node that begins with /", flag, *dir)
		}
	}
	switch s := c.String("systemd"); s {
	case "auto":
		p.Systemd = p.Systemd && p.ToolDir != ""
	case "yes", "no":
		p.Systemd = s == "yes"
	default:
		return p, cli.Misuse(c, "--systemd %q: want auto, yes or no", s)
	}
	if p.Systemd && p.ToolDir == "" {
		return p, cli.Misuse(c, "--systemd needs a directory in --tool-dir, because the units call the tool")
	}
	for flag, dir := range map[string]string{"bin-dir": p.BinDir, "conf-dir": p.ConfDir, "tool-dir": p.ToolDir} {
		if p.Systemd && !c.Bool("uninstall") && strings.ContainsFunc(dir, isSpecial) {
			return p, cli.Misuse(c, "--%s %q: want only letters, digits and any of /._+@:=,~- because units name "+
				"this directory. For another name, add --systemd=no", flag, dir)
		}
	}
	return p, nil
}

// isSpecial reports whether a character may have a special meaning for systemd or for a shell. Examples are a blank, %
// and $.
func isSpecial(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._+@:=,~-", r)
}
