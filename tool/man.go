// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

func man() *cli.Command {
	return &cli.Command{
		Name:  "man",
		Usage: "Print the manual page of this program",
		Description: `Packages install it. Else:

    ` + Name + ` man | man -l -`,
		Action: func(c *cli.Context) error {
			p := page{}
			p.write(c.App)
			return answer(c, map[string]string{"page": p.String()}, func(w io.Writer) { fmt.Fprint(w, p.String()) })
		},
	}
}

// A page is a manual page in the macros of man(7), made of what --help is made of.
type page struct{ strings.Builder }

// macro writes a line that begins with a macro. Arguments are quoted.
func (p *page) macro(name string, args ...string) {
	fmt.Fprint(p, ".", name)
	for _, a := range args {
		fmt.Fprintf(p, ` "%s"`, strings.ReplaceAll(roff(a), `"`, `\(dq`))
	}
	fmt.Fprintln(p)
}

// roff makes text stand for itself: a hyphen is that of ASCII, so that flags can be
// copied, and neither a dot nor a quote at the beginning of a line is a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "^", `\(ha`, "~", `\(ti`, "`", `\(ga`, "'", `\(aq`).Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}

// text writes paragraphs. An empty line ends one; lines that are indented stand as they are.
func (p *page) text(text string) {
	verbatim := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		indented := strings.HasPrefix(line, "  ")
		if line != "" && indented != verbatim {
			p.macro(map[bool]string{true: "EX", false: "EE"}[indented])
			verbatim = indented
		}
		switch {
		case line == "" && !verbatim:
			p.macro("PP")
		default:
			fmt.Fprintln(p, roff(line))
		}
	}
	if verbatim {
		p.macro("EE")
	}
}

// tagged writes a paragraph with a heading of its own.
func (p *page) tagged(head, text string) {
	p.macro("TP")
	p.macro("B", head)
	p.text(text)
}

func (p *page) write(a *cli.App) {
	p.macro("TH", strings.ToUpper(a.Name), "8", "", a.Name, "System Administration")
	p.macro("SH", "NAME")
	fmt.Fprintf(p, "%s \\- %s\n", roff(a.Name), roff("look after the pod addresses of a node"))
	p.macro("SH", "SYNOPSIS")
	for _, c := range commandsOf(a) {
		p.macro("B", a.Name+" "+c.Name)
		fmt.Fprintln(p, roff(strings.TrimSpace("[options] "+c.ArgsUsage)))
		p.macro("br")
	}
	p.macro("SH", "DESCRIPTION")
	p.text(about)
	p.macro("SH", "COMMANDS")
	for _, c := range commandsOf(a) {
		p.command(c)
	}
	for _, s := range sections {
		p.macro("SH", s.head)
		for _, e := range s.entries {
			p.tagged(e[0], e[1])
		}
	}
	p.macro("SH", "EXAMPLES")
	p.text(examples)
	p.macro("SH", "SEE ALSO")
	fmt.Fprintln(p, roff("https://github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s"))
}

// command writes what --help says of a command.
func (p *page) command(c *cli.Command) {
	p.macro("SS", strings.TrimSpace(c.Name+" [options] "+c.ArgsUsage))
	p.text(c.Usage + ".\n")
	if c.Description != "" {
		p.macro("PP")
		p.text(c.Description)
	}
	for _, f := range c.Flags {
		d, ok := f.(cli.DocGenerationFlag)
		if !ok {
			continue
		}
		head := strings.Join(spellings(f), ", ")
		if name := placeholder(d.GetUsage()); takesValue(f) && name != "" {
			head += " " + name
		} else if takesValue(f) {
			head += " value"
		}
		text := usageOf(f) + "."
		if value := d.GetDefaultText(); takesValue(f) && value != "" && value != `""` {
			text += " Default: " + value + "."
		}
		p.tagged(head, text)
	}
}

// placeholder is the word between the marks in the help of a flag, which stands for its value.
func placeholder(usage string) string {
	_, rest, _ := strings.Cut(usage, "`")
	word, _, ok := strings.Cut(rest, "`")
	if !ok {
		return ""
	}
	return word
}

const about = `For people, cloud-init and systemd timers, where the CNI plugins cni-ipvlan-vpc-k8s do their work by themselves. It also goes by the name
` + shortName + `.

Standard output is what was asked for, and nothing else: with --output json, JSON whose fields keep their names and types from release to release.
All else goes to standard error behind the name of the program: "error:" and what failed, "hint:" and what can be done about it, warnings,
and a line with the request ID for each change made in EC2.

Help and the version need neither root nor EC2. Commands that look into pods or at the registry need root; the others need the
metadata service of EC2 and the instance's role.
`

const examples = `Before the kubelet starts, by cloud-init:

    ` + Name + ` warm
    kubelet --max-pods=$(` + Name + ` maxpods --max 110)

What is wrong here, and what to do about it:

    ` + Name + ` doctor
    ` + Name + ` status --diff

Every address of the pods of a namespace:

    ` + Name + ` status -o json | jq '.addresses[] | select(.namespace == "web") | .ip'
`

// sections are what belongs to no command.
var sections = []struct {
	head    string
	entries [][2]string
}{
	{"EXIT STATUS", [][2]string{
		{"0", "It is done, and doctor, validate and status --diff have found nothing wrong."},
		{"1", "An error, which standard error names."},
		{"3", "There is no such command."},
	}},
	{"FILES", [][2]string{
		{configDir + "/*.conflist", "Network configurations. The first by name that has the plugin " + typeAll + " or " + typeIPAM + " counts here."},
		{registry.Dir() + "/registry.json", "The registry: what this node knows of its addresses. It may be deleted, and is rebuilt."},
		{registry.Dir() + "/" + lease.Refill, "The mark by which an ADD asks cni-warm.path for more addresses."},
		{"/usr/lib/systemd/system/cni-*", "Units that run this program."},
	}},
	{"ENVIRONMENT", [][2]string{
		{"AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN", "For commands that run elsewhere than on an instance of EC2, whose own region and role they are in place of."},
		{"AWS_ENDPOINT_URL_EC2, AWS_EC2_METADATA_SERVICE_ENDPOINT", "The URLs of EC2 and of the metadata service, where they are not the usual ones."},
		{"CNI_IPVLAN_VPC_STATE_DIR", "The folder of the registry."},
	}},
}
