// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package cli has the code that all commands of the tool share: flags and arguments, output as text or JSON, messages,
// progress and exit codes. It exports the types of the library urfave/cli, so that no other package imports this
// library.
package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"
)

// Types of the library urfave/cli that the commands use.
type (
	// App is a program with commands.
	App = urfave.App
	// Command is a command of an App.
	Command = urfave.Command
	// Context is a command line that was parsed.
	Context = urfave.Context
	// Flag is a flag of any of the types below.
	Flag = urfave.Flag
	// BoolFlag is a flag without a value.
	BoolFlag = urfave.BoolFlag
	// IntFlag takes a number.
	IntFlag = urfave.IntFlag
	// StringFlag takes a word.
	StringFlag = urfave.StringFlag
	// StringSliceFlag takes several words, because a command line may have the flag several times.
	StringSliceFlag = urfave.StringSliceFlag
	// StringSlice is the value of a StringSliceFlag.
	StringSlice = urfave.StringSlice
	// DurationFlag takes a duration such as 15m.
	DurationFlag = urfave.DurationFlag
)

// NewStringSlice returns the default of a StringSliceFlag.
func NewStringSlice(words ...string) *StringSlice { return urfave.NewStringSlice(words...) }

// Program is the name of the installed program. alias is the name of a symbolic link to this program.
const (
	Program = "cni-ipvlan-vpc-k8s-tool"
	alias   = "cni-tool"
)

// Name is the name by which the program was called. Help, messages and hints use it.
var Name = programName(os.Args[0])

// programName returns alias if the program was called by this name, and otherwise Program. Tests call the program by a
// third name.
func programName(arg0 string) string {
	if filepath.Base(arg0) == alias {
		return alias
	}
	return Program
}

// Patience is how long a command may take. It is longer than the minute for which EC2 may throttle an account.
const Patience = 2 * time.Minute

// Complete completes a command: it adds the flag --output, a time limit, and a check of the arguments. A command
// without an ArgsUsage takes no arguments.
func Complete(c *Command) {
	CompleteEndless(c)
	action := c.Action
	c.Action = func(c *Context) error {
		ctx, cancel := context.WithTimeout(c.Context, Patience)
		defer cancel()
		c.Context = ctx
		return action(c)
	}
}

// CompleteEndless is like Complete, but adds no time limit. It is for commands that limit their time themselves, or
// work until a signal.
func CompleteEndless(c *Command) {
	c.HideHelpCommand = true
	c.OnUsageError = Misused
	c.Description = strings.TrimSpace(c.Description)
	c.UsageText = strings.TrimSpace(Name + " " + c.Name + " [options] " + c.ArgsUsage)
	hasOwnOutput := flagNamed(c.Flags, "output") != nil
	if !hasOwnOutput {
		c.Flags = append(c.Flags, &StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text",
			Usage: "answer in `FORMAT`: text or json"})
	}
	action := c.Action
	c.Action = func(c *Context) error {
		if err := checkArgs(c, hasOwnOutput); err != nil {
			return err
		}
		return action(c)
	}
}

// JSON returns the last paragraph of a command's description: the fields of the command's answer with --output json. If
// the text of the fields begins with "[]", the answer is a list of objects. The fields of an object are in braces after
// the name of the object. A field keeps its name and type from release to release. The tests compare the names with the
// transcripts of tool/testdata. Times have the form of RFC 3339, in UTC.
func JSON(fields string) string { return "\n\nWith --output json: " + fields }

// checkArgs refuses arguments that the command would ignore, and unknown formats in --output. If hasOwnOutput is true,
// the command's own flag --output may have any value.
func checkArgs(c *Context, hasOwnOutput bool) error {
	if f := c.String("output"); !hasOwnOutput && f != "text" && f != "json" {
		return Misuse(c, "--output %q: want text or json", f)
	}
	if c.Command.ArgsUsage == "" && c.Args().Present() {
		return Misuse(c, "this command takes no arguments, so remove %q", c.Args().First())
	}
	return nil
}

// unknownFlag and invalidValue match the library's errors about flags. The library gets the texts of these errors from
// the Go package "flag".
var (
	unknownFlag  = regexp.MustCompile(`^flag provided but not defined: -+(.*)$`)
	invalidValue = regexp.MustCompile(`^invalid value "(.*)" for flag -+(\S+): .*$`)
)

// Misused converts the library's error about a command line to an error that Misuse makes.
func Misused(c *Context, err error, _ bool) error {
	if m := unknownFlag.FindStringSubmatch(err.Error()); m != nil {
		var known []string
		for _, f := range c.Command.Flags {
			known = append(known, f.Names()...)
		}
		if best := Nearest(m[1], known); best != "" {
			return Misuse(c, "unknown flag --%s: did you mean --%s?", m[1], best)
		}
		return Misuse(c, "unknown flag --%s", m[1])
	}
	if m := invalidValue.FindStringSubmatch(err.Error()); m != nil {
		return Misuse(c, "--%s %q: want %s", m[2], m[1], wantedValue(flagNamed(c.Command.Flags, m[2])))
	}
	return Misuse(c, "%w", err)
}

// wantedValue describes the values that a flag accepts.
func wantedValue(f Flag) string {
	switch f.(type) {
	case *IntFlag:
		return "a whole number"
	case *DurationFlag:
		return "a time such as 15m or 1h30m"
	case *BoolFlag:
		return "true or false"
	}
	return "another value"
}

// unknownCommand returns the error for a command that does not exist. The error sets the exit status 3.
func unknownCommand(command string, app *App) error {
	var known []string
	for _, c := range app.VisibleCommands() {
		known = append(known, c.Name)
	}
	text := fmt.Sprintf("there is no command %q", command)
	if best := Nearest(command, known); best != "" {
		text += fmt.Sprintf(": did you mean %q?", best)
	}
	return urfave.Exit(text, 3)
}

// Help prints the help of the program. If the command line names a command that does not exist, Help returns an error.
func Help(c *Context) error {
	if c.Args().Present() {
		return unknownCommand(c.Args().First(), c.App)
	}
	return urfave.ShowAppHelp(c)
}

// Misuse returns an error about the command line, with a hint that names the help.
func Misuse(c *Context, format string, args ...any) error {
	return hinted{fmt.Errorf(format, args...), "see " + strings.TrimSpace(c.Command.HelpName) + " --help"}
}
