// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"
)

// Arrange returns a command line in the order that the library needs: the command, its flags, its arguments. People
// also type flags before the command, and after the arguments. After "--", all words are arguments. args[0] is the name
// of the program.
func Arrange(app *App, args []string) []string {
	if len(args) < 2 || slices.Contains(args, "--generate-bash-completion") { // a shell asks how to complete a line
		return args
	}
	begin, command := commandOf(app, args)
	if command == nil {
		return args
	}
	flags, rest := splitFlags(command.Flags, slices.Concat(args[1:begin], args[begin+1:]))
	return slices.Concat([]string{args[0], args[begin]}, flags, rest)
}

// commandOf returns the command that the line names, and its index in args. It returns nil if another word comes first
// that is neither a flag nor the possible value of a flag.
func commandOf(app *App, args []string) (int, *Command) {
	for i := 1; i < len(args); i++ {
		if strings.HasPrefix(args[i], "-") {
			continue
		}
		if c := app.Command(args[i]); c != nil {
			return i, c
		}
		if i == 1 || !strings.HasPrefix(args[i-1], "-") { // otherwise the word may be the value of a flag
			return 0, nil
		}
	}
	return 0, nil
}

// splitFlags separates the flags, with their values, from the arguments. It treats an unknown flag like a flag without
// a value: the library then reports the flag.
func splitFlags(known []Flag, args []string) (flags, rest []string) {
	for i := 0; i < len(args); i++ {
		word := args[i]
		switch {
		case word == "--":
			return flags, slices.Concat(rest, args[i:])
		case len(word) < 2 || word[0] != '-':
			rest = append(rest, word)
		case takesNext(known, word) && i+1 < len(args):
			i++
			flags = append(flags, word, args[i])
		default:
			flags = append(flags, word)
		}
	}
	return flags, rest
}

// takesNext reports whether the word after a flag is its value. word is the flag.
func takesNext(known []Flag, word string) bool {
	if strings.Contains(word, "=") {
		return false
	}
	f := flagNamed(known, strings.TrimLeft(word, "-"))
	if f == nil {
		return false
	}
	_, isBool := f.(*urfave.BoolFlag)
	return !isBool
}

// flagNamed returns the flag with this name or alias, or nil.
func flagNamed(known []Flag, name string) Flag {
	i := slices.IndexFunc(known, func(f Flag) bool { return slices.Contains(f.Names(), name) })
	if i < 0 {
		return nil
	}
	return known[i]
}
