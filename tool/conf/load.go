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

// The code in this file reads configurations as runtimes and Multus do. There are three kinds of files:
//
//   - NAME.conflist is a list. The files NAME-OF-THE-NETWORK/*.conf in the same directory are its drop-ins. libcni
//     appends their plugins to the plugins of the list.
//   - NAME.conf and NAME.json each have one plugin. libcni makes a list of this plugin.
//   - A file of Multus may have whole networks, which Multus calls delegates. Each delegate is a list or one plugin.

// Conflists are the network configurations at a path: those of one file, or of all files of a directory.
type Conflists struct {
	Path     string
	IsDir    bool
	Files    []File // in the order in which runtimes try them (libcni, ConfFiles; the first file by name wins)
	Unlisted error  // why Load cannot list the path

	policies []lease.Policy // of all pools; networks with a mistake are left out
	networks []Network
	egresses []NetworkEgress

	networksFailed, egressesFailed error
}

// A File has the text of a network configuration, and the networks in it.
type File struct {
	Path   string
	Lists  []List // the networks that Load can parse
	Failed error  // why Load cannot parse the file, or a network in it
	// the file configures Multus. For a pod's first network, Multus uses the conflist that this file names. If the file
	// names none, Multus uses the next conflist of the directory
	Multus bool

	text   []byte
	unread error // why Load cannot read the file's text
}

// Load reads a file, or all files of a directory.
func Load(path string) *Conflists {
	c := &Conflists{Path: path}
	paths, err := c.configPaths()
	c.Unlisted = err
	for _, p := range paths {
		c.Files = append(c.Files, loadFile(p))
	}
	c.fillAnswers()
	return c
}

// fillAnswers fills the policies, networks and egresses of c from its files.
func (c *Conflists) fillAnswers() {
	for _, l := range c.Ours() {
		if l.IPAM != nil {
			c.policies = append(c.policies, l.IPAM.Policies()...)
		}
	}
	c.policies = lease.Together(c.policies)
	c.networks, c.networksFailed = networksOf(c.allLists())
	c.egresses, c.egressesFailed = egressesOf(c.allLists())
}

// configPaths returns the paths of the files that a runtime reads in the directory c.Path. If c.Path is a file,
// configPaths returns only c.Path.
func (c *Conflists) configPaths() (paths []string, err error) {
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

// Beside returns all conflists of the directory c.Path, or of the directory of the file c.Path.
func (c *Conflists) Beside() *Conflists {
	if c.IsDir {
		return c
	}
	return Load(filepath.Dir(c.Path))
}

func (c *Conflists) allLists() (all []List) {
	for _, f := range c.Files {
		all = append(all, f.Lists...)
	}
	return all
}

// Ours returns the networks in which a plugin of ours gives pods their addresses. Some of these networks may have a
// mistake.
func (c *Conflists) Ours() []List {
	return slices.DeleteFunc(c.allLists(), func(l List) bool { return l.Plugin(TypeIPAM) == nil })
}

// Networked returns our networks. If c.Path is a file without a network of ours, it returns all networks of the file.
func (c *Conflists) Networked() []List {
	if ours := c.Ours(); len(ours) > 0 || c.IsDir {
		return ours
	}
	return c.allLists()
}

// OurFiles returns the files that have a network of ours. If c.Path is a file, it returns this file in any case, so
// that a command can show the mistakes in it.
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
		failed = c.noneError()
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

// noneError returns the error that there is no network of ours.
func (c *Conflists) noneError() error {
	unread := c.Unread()
	switch {
	case c.Unlisted != nil:
		return c.Unlisted
	case unread != nil: // an unread file may be ours
		return errors.Join(unread, fmt.Errorf("%s: %v", c.Path, ErrNone))
	}
	return fmt.Errorf("%s: %w", c.Path, ErrNone)
}

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
		f.add(parseList(path, f.text))
	}
	for i, d := range delegates {
		list, err := parseList(path, d)
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

// delegatesOf returns the networks in a file of Multus, or nil if the file is no file of Multus.
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

// parseList reads a network from a list. If the text is one plugin, parseList makes a list of this plugin.
func parseList(path string, b []byte) (List, error) {
	c := List{File: path}
	err := json.Unmarshal(b, &c)
	if one := singlePlugin(b); err == nil && one != nil {
		c.Plugins = []Member{*one}
	}
	if err == nil && isList(path) {
		c.Plugins, err = withDropIns(path, c)
	}
	if err != nil {
		return List{File: path}, fmt.Errorf("%s: %w", path, err)
	}
	c.decodeIPAM()
	return c, nil
}

// Cached reads a list from the text that a runtime keeps after an ADD. This text already has the plugins of the
// drop-ins. The argument origin is the path from which the runtime has read the list.
func Cached(origin string, text []byte) (List, error) {
	c := List{File: origin}
	err := json.Unmarshal(text, &c)
	c.decodeIPAM()
	return c, err
}

// decodeIPAM decodes ipam's configuration, if the list has it.
func (c *List) decodeIPAM() {
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

// singlePlugin returns the plugin if the text is the configuration of one valid plugin, and otherwise nil.
func singlePlugin(b []byte) *Member {
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
