// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"
)

// Arrange returns a command line in the order that the library urfave/cli needs: the command, its flags, its arguments.
// People may type flags in any place. After the word "--", all words are arguments. args[0] is the name of the program.
func Arrange(app *App, args []string) []string {
	// If the second condition is true, a shell asks how to complete a line, so the order of the words must stay.
	if len(args) < 2 || slices.Contains(args, "--generate-bash-completion") {
		return args
	}
	begin, command := commandOf(app, args)
	if command == nil {
		return args
	}
	flags, rest := splitFlags(command.Flags, slices.Concat(args[1:begin], args[begin+1:]))
	return slices.Concat([]string{args[0], args[begin]}, flags, rest)
}

// commandOf returns the command that the command line names, and its index in args. It returns nil if an argument comes
// before the command. A word after a flag does not count as an argument, because the word may be the flag's value.
func commandOf(app *App, args []string) (int, *Command) {
	for i := 1; i < len(args); i++ {
		if strings.HasPrefix(args[i], "-") {
			continue
		}
		if c := app.Command(args[i]); c != nil {
			return i, c
		}
		if i == 1 || !strings.HasPrefix(args[i-1], "-") { // the word is not the value of a flag
			return 0, nil
		}
	}
	return 0, nil
}

// splitFlags separates the flags, with their values, from the arguments. An unknown flag counts as a flag without a
// value. The library then returns an error about the unknown flag.
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

// takesNext reports whether a flag has its value in the next word of the command line. The argument "word" is the word
// with the flag.
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
