// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package cli is what all commands of the tool share: flags and arguments, output as text or
// JSON, messages and exit codes, the progress that a terminal shows. It alone imports the
// library urfave/cli, and gives its types on under their names.
package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"
)

// The types of the library, for the commands.
type (
	// App is a program with commands.
	App = urfave.App
	// Command is one of them.
	Command = urfave.Command
	// Context is a command line that was parsed.
	Context = urfave.Context
	// Flag is any of the kinds that follow.
	Flag = urfave.Flag
	// BoolFlag is a flag without a value.
	BoolFlag = urfave.BoolFlag
	// IntFlag takes a number.
	IntFlag = urfave.IntFlag
	// StringFlag takes a word.
	StringFlag = urfave.StringFlag
	// StringSliceFlag takes words, and may be given again.
	StringSliceFlag = urfave.StringSliceFlag
	// StringSlice is the value of a StringSliceFlag.
	StringSlice = urfave.StringSlice
	// DurationFlag takes a time such as 15m.
	DurationFlag = urfave.DurationFlag
)

// NewStringSlice returns the default of a StringSliceFlag.
func NewStringSlice(words ...string) *StringSlice { return urfave.NewStringSlice(words...) }

// Name is the name under which the program is installed.
const Name = "cni-ipvlan-vpc-k8s-tool"

// Patience is how long a command may take. EC2 may throttle an account for a minute,
// and a link needs seconds to appear.
const Patience = 2 * time.Minute

// Complete gives a command what all of them have: the output flag, a limit of time,
// and a look at its arguments, of which it takes none unless it has an ArgsUsage.
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

// CompleteEndless is Complete for a command that works until it is told to end.
func CompleteEndless(c *Command) {
	c.HideHelpCommand = true
	c.OnUsageError = Misused
	c.Description = strings.TrimSpace(c.Description)
	c.UsageText = strings.TrimSpace(Name + " " + c.Name + " [options] " + c.ArgsUsage)
	c.Flags = append(c.Flags, &StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "answer in `FORMAT` text or json"})
	action := c.Action
	c.Action = func(c *Context) error {
		if err := checkArgs(c); err != nil {
			return err
		}
		return action(c)
	}
}

// JSON is the part of a command's description that names the fields of its answer with --output
// json: an object, or, where it begins with [], a list of objects. What stands in braces is within the
// field before them. Times are those of RFC 3339 in UTC. A field keeps its name and type from release to
// release; new ones may come. The transcripts hold this.
func JSON(fields string) string { return "\n\nWith --output json: " + fields }

// checkArgs refuses what the command would not look at. Flags end at the first
// argument: one that comes later would be taken for an ENI, or for an address.
func checkArgs(c *Context) error {
	if f := c.String("output"); f != "text" && f != "json" {
		return Misuse(c, "--output: %q: want text or json", f)
	}
	for _, arg := range c.Args().Slice() {
		if strings.HasPrefix(arg, "-") {
			return Misuse(c, "%s stands behind an argument: flags come first", arg)
		}
	}
	if c.Command.ArgsUsage == "" && c.Args().Present() {
		return Misuse(c, "%s: this command takes no arguments", c.Args().First())
	}
	return nil
}

// Misused is Misuse for what the library finds.
func Misused(c *Context, err error, _ bool) error { return Misuse(c, "%w", err) }

// Misuse is an error in the command line.
func Misuse(c *Context, format string, args ...any) error {
	return hinted{fmt.Errorf(format, args...), "see " + strings.TrimSpace(c.Command.HelpName) + " --help"}
}
