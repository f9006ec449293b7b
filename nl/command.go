// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"strconv"
	"strings"
)

// A cmd is a line of shell being written.
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

// option writes a name and its value, unless the value is empty.
func (c *cmd) option(name, value string) *cmd {
	if value != "" {
		c.word(name).word(value)
	}
	return c
}

// number writes a name and its value, unless the value is 0.
func (c *cmd) number(name string, value int) *cmd {
	if value != 0 {
		c.option(name, strconv.Itoa(value))
	}
	return c
}

// flag writes a word if on.
func (c *cmd) flag(name string, on bool) *cmd {
	if on {
		c.word(name)
	}
	return c
}
