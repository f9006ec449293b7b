// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// shortName is the link to the program that "make install" makes.
const shortName = "cni-tool"

func completion() *cli.Command {
	return &cli.Command{
		Name:  "completion",
		Usage: "Print what makes a shell complete the command line of this program",
		Description: `Packages install it. Else:

    ` + Name + ` completion bash >/etc/bash_completion.d/` + Name + `
    ` + Name + ` completion zsh >/usr/local/share/zsh/site-functions/_` + Name + `
    ` + Name + ` completion fish >/etc/fish/completions/` + Name + `.fish`,
		ArgsUsage: strings.Join(slices.Sorted(maps.Keys(shells)), "|"),
		Action: func(c *cli.Context) error {
			write, ok := shells[c.Args().First()]
			if !ok || c.Args().Len() != 1 {
				return misuse(c, "%q: want one of %s", strings.Join(c.Args().Slice(), " "), c.Command.ArgsUsage)
			}
			var script strings.Builder
			write(&script, c.App)
			return answer(c, map[string]string{"shell": c.Args().First(), "script": script.String()}, func(w io.Writer) {
				fmt.Fprint(w, script.String())
			})
		},
	}
}

// shells are those that there is a script for. It has all words in it: the program does
// not run while somebody types.
var shells = map[string]func(w io.Writer, a *cli.App){"bash": bash, "zsh": zsh, "fish": fish}

// choices are the values of flags, and of arguments by the name of their command, where
// these are words. Any other value is completed as a file.
var choices = map[string]string{
	"--output":    "text json",
	"-o":          "text json",
	"--mode":      "none assign full",
	"--partition": "aws aws-cn aws-us-gov",
	"completion":  "bash fish zsh",
}

// commandsOf are ours, without the library's help.
func commandsOf(a *cli.App) []*cli.Command {
	return slices.DeleteFunc(a.VisibleCommands(), func(c *cli.Command) bool { return c.Name == "help" })
}

// spellings are the ways to write a flag: --output, -o.
func spellings(f cli.Flag) []string {
	var all []string
	for _, n := range f.Names() {
		dashes := "--"
		if len(n) == 1 {
			dashes = "-"
		}
		all = append(all, dashes+n)
	}
	return all
}

// flagWords are all spellings of a command's flags.
func flagWords(c *cli.Command) string {
	words := []string{"--help"}
	for _, f := range c.Flags {
		words = append(words, spellings(f)...)
	}
	return strings.Join(words, " ")
}

// usageOf is the help of a flag, without the marks of its placeholder.
func usageOf(f cli.Flag) string {
	if d, ok := f.(cli.DocGenerationFlag); ok {
		return strings.ReplaceAll(d.GetUsage(), "`", "")
	}
	return ""
}

// takesValue tells whether a word follows the flag.
func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

func bash(w io.Writer, a *cli.App) {
	fmt.Fprintf(w, `# bash completion of %[1]s
_cni_ipvlan_vpc_k8s_tool() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=
	case $prev in
`, a.Name)
	for _, flag := range slices.Sorted(maps.Keys(choices)) {
		fmt.Fprintf(w, "\t%s) words='%s' ;;\n", flag, choices[flag])
	}
	fmt.Fprint(w, "\tesac\n\tif [[ -z $words ]]; then\n\t\tcase ${COMP_WORDS[1]} in\n")
	var names []string
	for _, c := range commandsOf(a) {
		names = append(names, c.Name)
		fmt.Fprintf(w, "\t\t%s) [[ $cur != -* ]] || words='%s' ;;\n", c.Name, flagWords(c))
	}
	fmt.Fprintf(w, `		esac
		(( COMP_CWORD > 1 )) || words='%s --help --version'
	fi
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -o default -F _cni_ipvlan_vpc_k8s_tool %s %s
`, strings.Join(names, " "), a.Name, shortName)
}

// zsh writes a function of zshcompsys(1). In the words of _describe and _arguments, a
// colon, a bracket and a quote have a meaning of their own.
func zsh(w io.Writer, a *cli.App) {
	quoted := strings.NewReplacer(`'`, `'\''`, `:`, `\:`, `[`, `\[`, `]`, `\]`).Replace
	fmt.Fprintf(w, "#compdef %s %s\n# zsh completion of %[1]s\nlocal -a commands\ncommands=(\n", a.Name, shortName)
	for _, c := range commandsOf(a) {
		fmt.Fprintf(w, "\t'%s:%s'\n", c.Name, quoted(c.Usage))
	}
	fmt.Fprint(w, ")\nif (( CURRENT == 2 )); then\n\t_describe command commands\n\treturn\nfi\nlocal command=$words[2]\nshift words\n(( CURRENT-- ))\ncase $command in\n")
	for _, c := range commandsOf(a) {
		fmt.Fprintf(w, "%s)\n\t_arguments", c.Name)
		for _, f := range c.Flags {
			value := ""
			if takesValue(f) {
				value = ":value:_files"
			}
			for _, s := range spellings(f) {
				words := value
				if choices[s] != "" {
					words = ":value:(" + choices[s] + ")"
				}
				fmt.Fprintf(w, " \\\n\t\t'%s[%s]%s'", s, quoted(usageOf(f)), words)
			}
		}
		rest := "_files"
		if choices[c.Name] != "" {
			rest = "(" + choices[c.Name] + ")"
		}
		fmt.Fprintf(w, " \\\n\t\t'*:argument:%s' ;;\n", rest)
	}
	fmt.Fprint(w, "esac\n")
}

func fish(w io.Writer, a *cli.App) {
	quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace
	fmt.Fprintf(w, "# fish completion of %s\n", a.Name)
	for _, program := range []string{a.Name, shortName} {
		for _, c := range commandsOf(a) {
			fmt.Fprintf(w, "complete -c %s -n __fish_use_subcommand -f -a %s -d '%s'\n", program, c.Name, quoted(c.Usage))
			here := fmt.Sprintf("complete -c %s -n '__fish_seen_subcommand_from %s'", program, c.Name)
			if choices[c.Name] != "" {
				fmt.Fprintf(w, "%s -f -a '%s'\n", here, choices[c.Name])
			}
			for _, f := range c.Flags {
				fmt.Fprint(w, here, fishFlag(f), " -d '", quoted(usageOf(f)), "'\n")
			}
		}
	}
}

// fishFlag is a flag as complete(1) of fish takes it.
func fishFlag(f cli.Flag) string {
	text, words := "", ""
	for _, s := range spellings(f) {
		if name, long := strings.CutPrefix(s, "--"); long {
			text += " -l " + name
		} else {
			text += " -s " + strings.TrimPrefix(s, "-")
		}
		words = choices[s]
	}
	switch {
	case words != "":
		return text + " -x -a '" + words + "'"
	case takesValue(f):
		return text + " -r"
	}
	return text
}
