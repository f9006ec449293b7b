// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package conf reads network configuration lists. It finds them, our plugins in them, and all
// their mistakes. The types of the plugins define the keys and the allowed values.
package conf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// The types by which a conflist names our plugins.
const (
	TypeIPAM   = "cni-ipvlan-vpc-k8s-ipam"
	TypeIPVlan = "cni-ipvlan-vpc-k8s-ipvlan"
	TypePTP    = "cni-ipvlan-vpc-k8s-unnumbered-ptp"
	TypeEgress = "cni-ipvlan-vpc-k8s-egress"
	TypeAll    = "cni-ipvlan-vpc-k8s" // is all of them in one
)

// three are the plugins of a chain in their order: each needs the result of the one before it.
var three = []string{TypeIPAM, TypeIPVlan, TypePTP}

// parted are the plugins that may be in a chain when none is all of them: egress is the last, or
// not there.
var parted = append(slices.Clone(three), TypeEgress)

// Types are the types of all our plugins.
var Types = append([]string{TypeAll}, parted...)

// defaultReuse is the reuseIPWait of a pool without a configuration.
const defaultReuse = time.Minute

// KubeletPods is the kubelet's own limit (kubelet(1), --max-pods).
const KubeletPods = 110

// Where container runtimes look for network configurations and for plugins. k3s has directories of its own.
const (
	Dir       = "/etc/cni/net.d"
	BinDir    = "/opt/cni/bin"
	K3sDir    = "/var/lib/rancher/k3s/agent/etc/cni/net.d"
	K3sBinDir = "/var/lib/rancher/k3s/data/cni"
)

// onK3s reports whether our conflist is where k3s looks for it, and not where others do.
var onK3s = sync.OnceValue(func() bool { return First(Dir) == "" && First(K3sDir) != "" })

// UsualBinDir is where the runtime of this node looks for plugins.
func UsualBinDir() string {
	if onK3s() {
		return K3sBinDir
	}
	return BinDir
}

// Flag says where the configuration of the plugins is.
func Flag() cli.Flag {
	usual := Dir
	if onK3s() {
		usual = K3sDir
	}
	return &cli.StringFlag{
		Name: "config", Value: usual,
		Usage: "read our plugins' configuration from the conflist `PATH`, or from all in the directory that have it",
	}
}

// A List is a network configuration list (CNI specification 1.1.0, section 1).
type List struct {
	CNIVersion  string   `json:"cniVersion"`
	CNIVersions []string `json:"cniVersions"`
	Name        string   `json:"name"`
	Plugins     []Member `json:"plugins"`

	OnlyInlined json.RawMessage `json:"loadOnlyInlinedPlugins"` // true: libcni appends no plugins of other files

	File     string `json:"-"` // that it is in
	Delegate bool   `json:"-"` // the file is of Multus
}

// A Member is a plugin's configuration in its chain.
type Member struct {
	Type string
	Raw  json.RawMessage
	File string // of a drop-in, below the directory of the list
}

// UnmarshalJSON keeps the object, which is for the plugin to read.
func (m *Member) UnmarshalJSON(b []byte) error {
	m.Raw = slices.Clone(b)
	var head struct {
		Type string `json:"type"`
	}
	err := json.Unmarshal(b, &head)
	m.Type = head.Type
	return err
}

// programs returns the programs that a runtime executes for the member, and those that they
// execute.
func (m Member) programs() []string {
	if m.Type == TypeAll {
		return []string{TypeAll, TypeIPAM} // which asks EC2 for it
	}
	return []string{m.Type}
}

// Plugin returns the first configuration of one of our plugins, or nil. The plugin that is
// all three has the keys of each.
func (c List) Plugin(typ string) json.RawMessage {
	i := slices.IndexFunc(c.Plugins, func(m Member) bool { return m.Type == typ || m.Type == TypeAll })
	if i < 0 {
		return nil
	}
	return c.Plugins[i].Raw
}

// Chains reports whether another plugin is in the list, too.
func (c List) Chains(typ string) bool {
	return slices.ContainsFunc(c.Plugins, func(m Member) bool { return m.Type == typ })
}

// Files lists the configurations in a directory in the order in which runtimes try them
// (libcni, ConfFiles; the first file by name wins).
func Files(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && isRead(e.Name()) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

// isRead reports whether runtimes read a file of this name (libcni, ConfFiles).
func isRead(name string) bool {
	return slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name))
}

// conflistsAt returns the conflists of a directory, or the one file.
func conflistsAt(path string) ([]string, error) {
	fi, err := os.Stat(path)
	if err == nil && fi.IsDir() {
		return Files(path)
	}
	return []string{path}, err
}

// ErrNone means that no conflist has one of our plugins that gives addresses.
var ErrNone = errors.New("no conflist with the plugin " + TypeAll + " or " + TypeIPAM)

// Find reads ipam's configuration from a file, or from the first file of a directory
// that has one.
func Find(path string) (*lease.Config, error) {
	n := load(path)
	if n.missing != nil {
		return nil, n.missing
	}
	if ours := n.ours(); len(ours) > 0 {
		return Decode(ours[0].File, ours[0].Plugin(TypeIPAM))
	}
	if n.unread != nil { // it may be ours
		return nil, errors.Join(fmt.Errorf("%s: %v", path, ErrNone), n.unread)
	}
	return nil, fmt.Errorf("%s: %w", path, ErrNone)
}

// A Source is a list with ipam's configuration.
type Source struct {
	List
	*lease.Config
}

// All reads ipam's configuration from a file, or from all files of a directory that have one. It leaves out those with a mistake,
// and its error has all mistakes. Where nobody can parse a file, it may be somebody else's: that counts only if none is ours.
func All(path string) (all []Source, mistakes error) {
	for _, l := range load(path).ours() {
		config, err := Decode(l.File, l.Plugin(TypeIPAM))
		if err == nil {
			all = append(all, Source{l, config})
		}
		mistakes = errors.Join(mistakes, err)
	}
	if len(all) == 0 && mistakes == nil {
		_, mistakes = Find(path)
	}
	return all, mistakes
}

// Absent reports whether an error of Find or All means that there is no configuration, and not that nobody can read it.
func Absent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNone) }

// Decode decodes the configuration of ipam, which the file has.
func Decode(file string, raw json.RawMessage) (*lease.Config, error) {
	c := &lease.Config{}
	err := json.Unmarshal(raw, c)
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return nil, cli.Hint(fmt.Errorf("%s: %w", file, err), "see "+cli.Name+" validate "+file)
	}
	return c, nil
}

// Misfits returns a function. It returns why pods get no addresses of an ENI that others have
// attached, according to the conflists at the path. It returns "" if pods of a network get them, or if
// there is no configuration.
func Misfits(path string) func(registry.ENI) string {
	all := readable(path)
	return func(e registry.ENI) (why string) {
		for _, p := range all {
			if p.Pool != e.Pool {
				continue
			}
			misfit := p.Misfit(e)
			if misfit == "" {
				return ""
			}
			why = cmp.Or(why, misfit)
		}
		return why
	}
}

// ReuseWaits returns a function. It returns how long the addresses of a pool cool, according
// to the conflists at the path: the longest, if networks share the pool. If no configuration has
// the pool, it returns the default.
func ReuseWaits(path string) func(pool string) time.Duration {
	waits := map[string]time.Duration{}
	for _, p := range readable(path) {
		wait := max(waits[p.Pool], p.ReuseWait)
		waits[p.Pool], waits[PoolName(p.Pool)] = wait, wait // pools that are derived from it have its name
	}
	return func(pool string) time.Duration {
		if from, ok := lease.Derived(pool); ok {
			pool = from
		}
		if w, ok := waits[pool]; ok {
			return w
		}
		return defaultReuse
	}
}

// First returns the first of [Ours], or "".
func First(path string) string { return slices.Concat(Ours(path), []string{""})[0] }

// Ours returns the files in a directory that have one of our plugins that gives addresses, or the file itself.
func Ours(path string) (ours []string) {
	n := load(path)
	if n.missing != nil {
		return nil
	}
	for _, l := range n.ours() {
		ours = append(ours, l.File)
	}
	if fi, err := os.Stat(path); len(ours) == 0 && err == nil && !fi.IsDir() {
		return []string{path} // it was named, and its mistakes are to be shown
	}
	return slices.Compact(ours)
}

// Networked returns the lists in a directory that have one of our plugins that gives addresses, or those of the file itself.
func Networked(path string) []List {
	n := load(path)
	if ours := n.ours(); len(ours) > 0 {
		return ours
	}
	if fi, err := os.Stat(path); err != nil || fi.IsDir() {
		return nil
	}
	return n.lists
}

// PoolName returns the name of a pool for people. In the registry, the default pool has an
// empty name.
func PoolName(pool string) string { return cmp.Or(pool, lease.DefaultPool) }

// Delegates reports whether a file is of Multus. Multus hands the first network of a pod to the next conflist of the
// directory, or to the one that the file names.
func Delegates(path string) bool {
	var c struct{ Type string }
	b, err := os.ReadFile(path)
	return err == nil && json.Unmarshal(b, &c) == nil && isMultus(c.Type)
}
