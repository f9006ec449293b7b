// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// This file reads what runtimes and Multus read. All other files of the package work with its result:
//
//   - NAME.conflist is a list. To its plugins, libcni appends those of the files NAME-OF-THE-NETWORK/*.conf beside it, its drop-ins.
//   - NAME.conf and NAME.json are one plugin, which libcni makes a list of.
//   - A file of Multus may have whole networks in it, its delegates: lists, or one plugin each.

// A node is what the configurations at a path say.
type node struct {
	lists   []List // in the order in which runtimes try their files
	missing error  // the path cannot be listed
	unread  error  // of the files that nobody can parse
}

// load reads a file, or all files of a directory.
func load(path string) (n node) {
	files, err := conflistsAt(path)
	if err != nil {
		return node{missing: err}
	}
	for _, f := range files {
		lists, err := Lists(f)
		n.lists, n.unread = append(n.lists, lists...), errors.Join(n.unread, err)
	}
	return n
}

// ours returns the lists with one of our plugins that gives addresses.
func (n node) ours() (ours []List) {
	for _, l := range n.lists {
		if l.Plugin(TypeIPAM) != nil {
			ours = append(ours, l)
		}
	}
	return ours
}

// failed is why not all could be read, or nil.
func (n node) failed() error { return errors.Join(n.missing, n.unread) }

// Lists reads the networks of a file.
func Lists(path string) ([]List, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	delegates := delegatesOf(b)
	if delegates == nil {
		list, err := parse(path, b)
		return []List{list}, err
	}
	var all []List
	for i, d := range delegates {
		list, e := parse(path, d)
		if e != nil {
			e = fmt.Errorf("%w (delegates[%d])", e, i)
		}
		list.Delegate = true
		all, err = append(all, list), errors.Join(err, e)
	}
	return all, err
}

// delegatesOf returns the networks that a file of Multus has. It returns nil if the file is another one.
func delegatesOf(b []byte) []json.RawMessage {
	var c struct {
		Type      string            `json:"type"`
		Delegates []json.RawMessage `json:"delegates"`
	}
	if json.Unmarshal(b, &c) != nil || !isMultus(c.Type) {
		return nil
	}
	return c.Delegates
}

func isMultus(typ string) bool { return slices.Contains([]string{"multus", "multus-shim"}, typ) }

// parse reads a network: a list, or the one plugin of which a list is made.
func parse(path string, b []byte) (List, error) {
	c := List{File: path}
	err := json.Unmarshal(b, &c)
	if one := single(b); err == nil && one != nil {
		c.Plugins = []Member{*one}
	}
	if err == nil && isList(path) {
		c.Plugins, err = withDropIns(path, c)
	}
	if err != nil {
		return List{File: path}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// single returns the plugin if the text is the configuration of one plugin and no list.
func single(b []byte) *Member {
	var c struct {
		Type    string          `json:"type"`
		Plugins json.RawMessage `json:"plugins"`
	}
	if json.Unmarshal(b, &c) != nil || c.Type == "" || c.Plugins != nil {
		return nil
	}
	return &Member{Type: c.Type, Raw: slices.Clone(b)}
}

// isList reports whether a file is for a list: runtimes take one plugin from others.
func isList(path string) bool {
	return !slices.Contains([]string{".conf", ".json"}, filepath.Ext(path))
}

// withDropIns returns the plugins of a list with those that libcni appends to them.
func withDropIns(path string, c List) ([]Member, error) {
	if c.Name == "" || !networkName.MatchString(c.Name) || strings.EqualFold(strings.Trim(string(c.OnlyInlined), `"`), "true") {
		return c.Plugins, nil
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(path), c.Name, "*.conf"))
	if err != nil {
		return c.Plugins, nil // the name of the directory has a bracket, which no glob of ours matches
	}
	all := slices.Clip(c.Plugins)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		m := Member{File: filepath.Join(c.Name, filepath.Base(f))}
		if err := m.UnmarshalJSON(b); err != nil {
			return nil, fmt.Errorf("%s, which runtimes append to it: %w", f, err)
		}
		all = append(all, m)
	}
	return all, nil
}
