// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// An output prints text for the person at the terminal.
type output struct{ w io.Writer }

func (o output) line(format string, args ...any) { fmt.Fprintf(o.w, format+"\n", args...) }

func (o output) verdict(name, detail string, err error) {
	if err != nil {
		o.line("FAIL %-38s %s", name, strings.ReplaceAll(err.Error(), "\n", "\n       "))
		return
	}
	o.line("ok   %-38s %s", name, detail)
}

func (o output) json(v any) error {
	e := json.NewEncoder(o.w)
	e.SetIndent("", "    ")
	return e.Encode(v)
}
