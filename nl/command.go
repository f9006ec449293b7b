// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"strconv"
	"strings"
)

// A cmd builds a shell command, for the String methods of Objects.
type cmd struct{ b strings.Builder }

func command(name string) *cmd {
	c := new(cmd)
	c.b.WriteString(name)
	return c
}

func (c *cmd) String() string { return c.b.String() }

func (c *cmd) word(w string) *cmd {
	c.b.WriteString(" " + w)
	return c
}

// option appends a name and a value. If the value is empty, option appends nothing.
func (c *cmd) option(name, value string) *cmd {
	if value != "" {
		c.word(name).word(value)
	}
	return c
}

// number appends a name and a value. If the value is 0, number appends nothing.
func (c *cmd) number(name string, value int) *cmd {
	if value != 0 {
		c.option(name, strconv.Itoa(value))
	}
	return c
}

// flag appends the word name if the argument "on" is true.
func (c *cmd) flag(name string, on bool) *cmd {
	if on {
		c.word(name)
	}
	return c
}
