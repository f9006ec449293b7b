// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/bundle"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/bundle/page"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

func supportBundle() *cli.Command {
	return &cli.Command{
		Name:  "support-bundle",
		Usage: "Write the state of this node's pods' network to one file; with --read, explain such a file",
		Description: `One tar.gz of at most 2 MB, within two minutes:

    ` + Name + ` support-bundle                            # to a file in this directory
    ` + Name + ` support-bundle -o - | ssh HOST 'cat >b.tar.gz'  # if the disk is full
    ` + Name + ` support-bundle --read b.tar.gz --html b.html

The file has the registry, the end of the lease log, the conflists, the answer of
status --diff and the findings of doctor. From the kernel it has links, addresses,
routes, rules, and our nftables and BPF programs. It also has the journal of our
units, versions, and the answers of EC2 and metadata. If the command cannot read
something, the file says so. The command changes nothing. The file has no
environment, user data or credentials. It has no tags and no configuration of other
programs: see docs/support-bundle.md.

--read works on any machine, without root, EC2 or a network. It makes the checks of
doctor again, with the data of the bundle. It adds the findings that only the node
could make. --html writes a page that explains the node, for any browser.` + cli.JSON("(of --read) made tool errors warnings checked findings[] "+
			"{check severity about means do fixed} node_findings[] (only the node could find them) "+
			"unmade[] {check why part} sources[] {name file state why took}"),
		Flags: []cli.Flag{
			conf.Flag(),
			&cli.StringFlag{Name: "bin-dir", Value: conf.UsualBinDir(), Usage: "look for the plugins in `DIR`"},
			&cli.StringFlag{Name: "read", Usage: "explain the bundle `FILE`; -: standard input"},
			&cli.StringFlag{Name: "html", Usage: "with --read, write a page to `FILE`; -: standard output"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"},
				Usage: "write the bundle to `FILE`; -: standard output; with --read: answer in text or json"},
		},
		Action: func(c *cli.Context) error {
			if c.String("read") != "" {
				return readBundle(c)
			}
			if c.String("html") != "" {
				return cli.Misuse(c, "--html needs --read with a bundle")
			}
			return writeBundle(c)
		},
	}
}

// writeBundle gathers a bundle of this node, and writes it to the file of --output.
func writeBundle(c *cli.Context) error {
	file := c.String("output")
	if slices.Contains([]string{"text", "json"}, file) {
		return cli.Misuse(c, "--output %q: want a file for the bundle, or - for standard output; a format needs --read",
			file)
	}
	if err := cli.NeedRoot(); err != nil {
		return err
	}
	if file == "" {
		file = "cni-support-bundle-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
	}
	var text bytes.Buffer
	m, err := bundle.Gather(c.Context, &text, c.String("config"), c.String("bin-dir"))
	if err != nil {
		return err
	}
	for _, s := range m.Sources {
		if s.State != bundle.Whole {
			fmt.Fprintf(os.Stderr, "%s: %s\n", Name, s)
		}
	}
	if file == "-" {
		_, err := text.WriteTo(c.App.Writer)
		return err
	}
	if err := cli.WriteFile(file, text.Bytes(), 0o600); err != nil { // only the file's owner may read it
		return cli.Hint(err, "write the bundle to another machine: "+Name+
			" support-bundle -o - | ssh HOST 'cat >bundle.tar.gz'")
	}
	_, err = fmt.Fprintln(c.App.Writer, file)
	return err
}

type review struct {
	Made string `json:"made"`
	Tool string `json:"tool"`
	page.Review
	Sources []bundle.Source `json:"sources"`
}

func readBundle(c *cli.Context) error {
	if f := c.String("output"); f == "" {
		_ = c.Set("output", "text")
	} else if !slices.Contains([]string{"text", "json"}, f) {
		return cli.Misuse(c, "--output %q: with --read, want text or json", f)
	}
	b, err := openBundle(c.String("read"))
	if b == nil {
		return err
	}
	found := page.ReviewOf(c.Context, b)
	switch to := c.String("html"); to {
	case "":
	case "-": // the page is the answer
		return errors.Join(err, page.Write(c.App.Writer, b, found))
	default:
		var text bytes.Buffer
		if e := page.Write(&text, b, found); e != nil {
			return errors.Join(err, e)
		}
		if e := cli.WriteFile(to, text.Bytes(), 0o644); e != nil {
			return errors.Join(err, e)
		}
	}
	r := review{Made: timeText(b.Made), Tool: b.Tool, Review: found, Sources: cli.List(b.Sources)}
	return errors.Join(err, cli.Answer(c, r, r.print))
}

// openBundle reads a bundle. If a part of it is damaged, openBundle returns the other parts, and an error.
func openBundle(file string) (*bundle.Bundle, error) {
	in := os.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	b, err := bundle.Read(in)
	if err != nil {
		err = fmt.Errorf("read %s: %w", file, err)
	}
	return b, err
}

func (r review) print(w io.Writer) {
	fmt.Fprintf(w, "made %s by release %s\n", r.Made, r.Tool)
	for _, s := range r.Sources {
		if s.State != bundle.Whole {
			fmt.Fprintln(w, s)
		}
	}
	fmt.Fprintln(w)
	r.Review.Print(w)
}
