// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
)

// A scene is the simulated VPC of the demo.
type scene struct {
	*paths.Scene
	bin string // the directory of the programs
}

func newScene(bin, conflist, dataPath string) (*scene, error) {
	list, err := paths.ReadConflist(conflist, dataPath)
	if err != nil {
		return nil, err
	}
	s, err := paths.New(paths.Options{Bin: bin, Conflist: list, Families: []paths.Family{paths.IPv4}})
	if err != nil {
		return nil, err
	}
	return &scene{s, bin}, nil
}

func (s *scene) validate(ctx context.Context) error {
	for _, n := range s.Nodes {
		if err := n.Validate(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *scene) runTool(ctx context.Context, n *paths.Node, args ...string) error {
	name := "cni-ipvlan-vpc-k8s-tool"
	out, err := n.Run(ctx, filepath.Join(s.bin, name), args...)
	if err != nil {
		return fmt.Errorf("%s %s on %s: %w\n%s", name, strings.Join(args, " "), n.Name, err, out)
	}
	return nil
}
