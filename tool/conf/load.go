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

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// This file reads files in the same way as runtimes and Multus. All other files of the package work with the result.
// There are three kinds of files:
//
//   - NAME.conflist is a list. The files NAME-OF-THE-NETWORK/*.conf in the same directory are its drop-ins. libcni
//     appends their plugins to the plugins of the list.
//   - NAME.conf and NAME.json each have one plugin. libcni makes a list of this plugin.
//   - A file of Multus may have whole networks, its delegates. Each delegate is a list or one plugin.

// Conflists are the network configurations at a path: those of one file, or of all files of a directory.
type Conflists struct {
	Path     string
	IsDir    bool
	Files    []File // in the order in which runtimes try them (libcni, ConfFiles; the first file by name wins)
	Unlisted error  // why Load cannot list the path

	policies []lease.Policy // of all pools of the networks without a mistake
	networks []Network
	egresses []NetworkEgress

	networksFailed, egressesFailed error
}

// A File has the text of a network configuration, and the networks in it.
type File struct {
	Path   string
	Lists  []List // the networks that Load can parse
	Failed error  // why Load cannot parse the file, or a network in it
	// the file is of Multus. For a pod's first network, Multus uses the next conflist of the directory, or the conflist
	// that the file names
	Multus bool

	text   []byte
	unread error // why Load cannot read the file's text
}

// Load reads a file, or all files of a directory.
func Load(path string) *Conflists {
	c := &Conflists{Path: path}
	paths, err := c.paths()
	c.Unlisted = err
	for _, p := range paths {
		c.Files = append(c.Files, loadFile(p))
	}
	c.digest()
	return c
}

// digest finds the policies, networks and egresses of our plugins in the files.
func (c *Conflists) digest() {
	for _, l := range c.Ours() {
		if l.IPAM != nil {
			c.policies = append(c.policies, l.IPAM.Policies()...)
		}
	}
	c.policies = lease.Together(c.policies)
	c.networks, c.networksFailed = networksOf(c.lists())
	c.egresses, c.egressesFailed = egressesOf(c.lists())
}

// paths returns the files of a directory that a runtime reads. If the path is a file, it returns this file.
func (c *Conflists) paths() (paths []string, err error) {
	fi, err := os.Stat(c.Path)
	if err != nil {
		return nil, err
	}
	if c.IsDir = fi.IsDir(); !c.IsDir {
		return []string{c.Path}, nil
	}
	entries, err := os.ReadDir(c.Path) // sorted by name
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() && isRead(e.Name()) {
			paths = append(paths, filepath.Join(c.Path, e.Name()))
		}
	}
	return paths, nil
}

// Beside returns all conflists of the directory in which a runtime would find c. If the path is a file, this is the
// directory of the file.
func (c *Conflists) Beside() *Conflists {
	if c.IsDir {
		return c
	}
	return Load(filepath.Dir(c.Path))
}

// lists returns all networks.
func (c *Conflists) lists() (all []List) {
	for _, f := range c.Files {
		all = append(all, f.Lists...)
	}
	return all
}

// Ours returns the networks with one of our plugins that gives addresses, also networks with a mistake.
func (c *Conflists) Ours() []List {
	return slices.DeleteFunc(c.lists(), func(l List) bool { return l.Plugin(TypeIPAM) == nil })
}

// Networked returns our networks. If the path is one file without a network of ours, it returns all networks of the
// file.
func (c *Conflists) Networked() []List {
	if ours := c.Ours(); len(ours) > 0 || c.IsDir {
		return ours
	}
	return c.lists()
}

// OurFiles returns the files with a network of ours. If the path is one file, it always returns this file, so that a
// command shows the mistakes in it.
func (c *Conflists) OurFiles() []File {
	return slices.DeleteFunc(slices.Clone(c.Files), func(f File) bool {
		return c.IsDir && !slices.ContainsFunc(f.Lists, func(l List) bool { return l.Plugin(TypeIPAM) != nil })
	})
}

// All returns our networks without a mistake. The error has the mistakes of our other networks, or says that no network
// is ours.
func (c *Conflists) All() (all []List, failed error) {
	ours := c.Ours()
	for _, l := range ours {
		if failed = errors.Join(failed, l.Mistake); l.IPAM != nil {
			all = append(all, l)
		}
	}
	if len(ours) == 0 {
		failed = c.none()
	}
	return all, failed
}

// Unread returns why Load cannot parse some of the files, or nil.
func (c *Conflists) Unread() (failed error) {
	for _, f := range c.Files {
		failed = errors.Join(failed, f.Failed)
	}
	return failed
}

// none returns the error that there is no network of ours.
func (c *Conflists) none() error {
	unread := c.Unread()
	switch {
	case c.Unlisted != nil:
		return c.Unlisted
	case unread != nil: // an unread file may be ours
		return errors.Join(unread, fmt.Errorf("%s: %v", c.Path, ErrNone))
	}
	return fmt.Errorf("%s: %w", c.Path, ErrNone)
}

// loadFile reads the networks of a file.
func loadFile(path string) File {
	f := File{Path: path}
	if f.text, f.unread = os.ReadFile(path); f.unread != nil {
		f.Failed = f.unread
		return f
	}
	var head struct{ Type string }
	f.Multus = json.Unmarshal(f.text, &head) == nil && isMultus(head.Type)
	delegates := delegatesOf(f.text)
	if delegates == nil {
		f.add(parse(path, f.text))
	}
	for i, d := range delegates {
		list, err := parse(path, d)
		if err != nil {
			err = fmt.Errorf("%w (delegates[%d])", err, i)
		}
		list.Delegate = true
		f.add(list, err)
	}
	return f
}

func (f *File) add(list List, err error) {
	if f.Failed = errors.Join(f.Failed, err); err == nil {
		f.Lists = append(f.Lists, list)
	}
}

// delegatesOf returns the networks that a file of Multus has. delegatesOf returns nil if the file is no file of Multus.
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

// parse reads a network from a list. If the text is one plugin, parse makes a list of it.
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
	c.decode()
	return c, nil
}

// Cached reads the network that a runtime keeps after an ADD: a list with its drop-ins. file is the file from which the
// runtime has read the list.
func Cached(file string, text []byte) (List, error) {
	c := List{File: file}
	err := json.Unmarshal(text, &c)
	c.decode()
	return c, err
}

// decode decodes ipam's configuration, if the list has it.
func (c *List) decode() {
	raw := c.Plugin(TypeIPAM)
	if raw == nil {
		return
	}
	config := &lease.Config{}
	err := json.Unmarshal(raw, config)
	if err == nil {
		err = config.Validate()
	}
	if err != nil {
		c.Mistake = cli.Hint(fmt.Errorf("%s: %w", c.File, err), "see "+cli.Name+" validate "+c.File)
		return
	}
	c.IPAM = config
}

// single returns the plugin if the text is the configuration of one plugin and no list. Otherwise it returns nil.
func single(b []byte) *Member {
	var m Member
	var list struct {
		Plugins json.RawMessage `json:"plugins"`
	}
	if json.Unmarshal(b, &m) != nil || json.Unmarshal(b, &list) != nil || m.Type == "" || list.Plugins != nil {
		return nil
	}
	return &m
}

// isList reports whether runtimes read a list from the file. From a .conf or .json file they read one plugin.
func isList(path string) bool {
	return !slices.Contains([]string{".conf", ".json"}, filepath.Ext(path))
}

// withDropIns returns the plugins of a list, and the plugins that libcni appends to them.
func withDropIns(path string, c List) ([]Member, error) {
	if c.Name == "" || !networkName.MatchString(c.Name) ||
		strings.EqualFold(strings.Trim(string(c.OnlyInlined), `"`), "true") {
		return c.Plugins, nil
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(path), c.Name, "*.conf"))
	if err != nil {
		return c.Plugins, nil // the name of the directory has a bracket, which makes the pattern invalid
	}
	all := slices.Clip(c.Plugins)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		m := Member{File: filepath.Join(c.Name, filepath.Base(f))}
		if err := m.UnmarshalJSON(b); err != nil {
			return nil, fmt.Errorf("%s, which runtimes append to this list: %w", f, err)
		}
		all = append(all, m)
	}
	return all, nil
}
