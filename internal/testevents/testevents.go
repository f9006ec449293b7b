// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package testevents reads the output of go test -json.
package testevents

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// An Event is a line of the output of go test -json ("go doc test2json").
type Event struct {
	Action, Package, Test, Output, Key, Value string
	Elapsed                                   float64
}

// Again is the Action of an Event that Read itself makes. Again means that a VM has died, and that all tests of the
// package run again. So the caller must ignore the package's earlier results.
const Again = "again"

// Read calls the function "handle" for each event, except for the events with output. It prints the output of tests and
// packages that fail. It also prints lines that are no events: make or a build has written them.
func Read(events io.Reader, out io.Writer, handle func(Event)) error {
	outputs := map[[2]string][]string{} // by package and test
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadString('\n')
		if line == "" && err != nil {
			if err == io.EOF {
				err = nil
			}
			return err
		}
		var e Event
		if json.Unmarshal([]byte(line), &e) != nil || e.Package == "" {
			fmt.Fprint(out, line)
			continue
		}
		key := [2]string{e.Package, e.Test}
		switch {
		case e.Action != "output":
			handle(e)
			if e.Action == "fail" {
				fmt.Fprint(out, strings.Join(outputs[key], ""))
			}
		case strings.HasPrefix(e.Output, "exec: "): // this output is from the program that runs the VM
			fmt.Fprint(out, e.Output)
			if strings.HasPrefix(e.Output, "exec: trying once more") {
				handle(Event{Action: Again, Package: e.Package})
			}
		default:
			outputs[key] = append(outputs[key], e.Output)
		}
	}
}
