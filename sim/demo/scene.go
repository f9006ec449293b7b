// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
	list, err := os.ReadFile(conflist)
	if err != nil {
		return nil, err
	}
	if dataPath != "" {
		if list, err = withKey(list, "dataPath", dataPath); err != nil {
			return nil, fmt.Errorf("%s: %w", conflist, err)
		}
	}
	s, err := paths.New(paths.Options{Bin: bin, Conflist: list, Families: []paths.Family{paths.IPv4}})
	if err != nil {
		return nil, err
	}
	return &scene{s, bin}, nil
}

// withKey returns the conflist with this key and value in its first plugin.
func withKey(conflist []byte, key, value string) ([]byte, error) {
	var list map[string]json.RawMessage
	var plugins []map[string]any
	err := json.Unmarshal(conflist, &list)
	if err = errors.Join(err, json.Unmarshal(list["plugins"], &plugins)); err != nil || len(plugins) == 0 {
		return nil, errors.Join(err, errors.New("there is no plugin"))
	}
	plugins[0][key] = value
	if list["plugins"], err = json.Marshal(plugins); err != nil {
		return nil, err
	}
	return json.Marshal(list)
}

// validate checks whether the plugins can run here.
func (s *scene) validate(ctx context.Context) error {
	for _, n := range s.Nodes {
		if err := n.Validate(ctx); err != nil {
			return err
		}
	}
	return nil
}

// tool runs our tool on the node.
func (s *scene) tool(ctx context.Context, n *paths.Node, args ...string) error {
	name := "cni-ipvlan-vpc-k8s-tool"
	out, err := n.Run(ctx, filepath.Join(s.bin, name), args...)
	if err != nil {
		return fmt.Errorf("%s %s on %s: %w\n%s", name, strings.Join(args, " "), n.Name, err, out)
	}
	return nil
}
