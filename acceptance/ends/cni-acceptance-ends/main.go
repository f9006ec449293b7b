// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command cni-acceptance-ends runs on each instance of the acceptance test. It reads the test's calls from standard
// input, and writes the answers to standard output. See package ends.
package main

import (
	"fmt"
	"os"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/acceptance/ends"
)

// stdio is a connection over standard input and output.
type stdio struct{}

func (stdio) Read(b []byte) (int, error)  { return os.Stdin.Read(b) }
func (stdio) Write(b []byte) (int, error) { return os.Stdout.Write(b) }
func (stdio) Close() error                { return os.Stdin.Close() }

func main() {
	if err := ends.Serve(stdio{}); err != nil {
		fmt.Fprintln(os.Stderr, "cni-acceptance-ends:", err)
		os.Exit(1)
	}
}
