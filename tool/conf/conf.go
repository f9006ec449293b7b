// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package conf reads network configuration lists. [Load] reads the conflists at a path once, and finds our plugins in
// them. All questions about the conflists are methods of [Conflists]. The keys and their values are defined by the
// types into which the plugins decode their configurations.
//
// Most methods return an answer about the valid networks, and an error with the mistakes of the other networks. A file
// that Load cannot parse may belong to another program. So the error is about such a file only if no other file has our
// plugins. [Conflists.Unread] has the errors of all files that Load cannot parse.
//
// [Conflists.Whole] is an exception. It returns no answer if a file cannot be parsed, or if a network has a mistake. An
// answer without one of our networks would be wrong.
package conf

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// The types by which a conflist names our plugins.
const (
	TypeIPAM   = "cni-ipvlan-vpc-k8s-ipam"
	TypeIPVlan = "cni-ipvlan-vpc-k8s-ipvlan"
	TypePTP    = "cni-ipvlan-vpc-k8s-unnumbered-ptp"
	TypeEgress = "cni-ipvlan-vpc-k8s-egress"
	TypeAll    = "cni-ipvlan-vpc-k8s" // all of these plugins in one
)

// GrowProgram is the program that TypeIPAM and TypeAll execute to ask EC2. No conflist names this program.
const GrowProgram = lease.GrowProgram

// threePlugins are the plugins of a chain in their order: each plugin needs the result of the plugin before it.
var threePlugins = []string{TypeIPAM, TypeIPVlan, TypePTP}

// partedTypes are the plugins of a chain without TypeAll, in their order. TypeEgress may be missing.
var partedTypes = append(slices.Clone(threePlugins), TypeEgress)

// Types are the types of all our plugins.
var Types = append([]string{TypeAll}, partedTypes...)

// defaultReuse is the reuseIPWait of a pool without a configuration.
const defaultReuse = time.Minute

// KubeletPods is the kubelet's default for the number of pods (kubelet(1), --max-pods).
const KubeletPods = 110

// Where container runtimes look for network configurations and for plugins. k3s has directories of its own.
const (
	Dir       = "/etc/cni/net.d"
	BinDir    = "/opt/cni/bin"
	K3sDir    = "/var/lib/rancher/k3s/agent/etc/cni/net.d"
	K3sBinDir = "/var/lib/rancher/k3s/data/cni"
)

// isOnK3s reports whether our conflist is in the directory of k3s, and not in the directory of other runtimes.
var isOnK3s = sync.OnceValue(func() bool { return len(Load(Dir).OurFiles()) == 0 && len(Load(K3sDir).OurFiles()) > 0 })

// UsualBinDir returns the directory in which the runtime of this node looks for plugins.
func UsualBinDir() string {
	if isOnK3s() {
		return K3sBinDir
	}
	return BinDir
}

// Flag returns the flag --config: the path of our plugins' configuration.
func Flag() cli.Flag {
	usual := Dir
	if isOnK3s() {
		usual = K3sDir
	}
	return &cli.StringFlag{
		Name: "config", Value: usual,
		Usage: "read our plugins' configuration from `PATH`, a conflist or a directory with conflists",
	}
}

// A List is a network configuration list (CNI specification 1.1.0, section 1).
type List struct {
	CNIVersion  string   `json:"cniVersion"`
	CNIVersions []string `json:"cniVersions"`
	Name        string   `json:"name"`
	Plugins     []Member `json:"plugins"`

	OnlyInlined json.RawMessage `json:"loadOnlyInlinedPlugins"` // true: libcni appends no plugins of other files

	File     string `json:"-"` // the file with the list
	Delegate bool   `json:"-"` // the list is a delegate in a file of Multus

	// ipam's configuration; nil: another plugin gives pods their addresses, or the configuration has a mistake
	IPAM    *lease.Config `json:"-"`
	Mistake error         `json:"-"` // in ipam's configuration
}

// A Member is a plugin's configuration in its chain.
type Member struct {
	Type         string
	Capabilities map[string]bool // declared capabilities; the runtime passes a value for each capability
	Raw          json.RawMessage
	File         string // path of the plugin's drop-in in the list's directory; "" if the plugin is in the list's file

	mistake error // a mistake in Capabilities; runtimes refuse the list, but our commands show its other parts
}

// UnmarshalJSON keeps the text of the object, and decodes only its type and its capabilities.
func (m *Member) UnmarshalJSON(b []byte) error {
	m.Raw = slices.Clone(b)
	var head struct {
		Type         string          `json:"type"`
		Capabilities json.RawMessage `json:"capabilities"`
	}
	err := json.Unmarshal(b, &head)
	m.Type = head.Type
	if head.Capabilities != nil {
		m.mistake = json.Unmarshal(head.Capabilities, &m.Capabilities)
	}
	return err
}

// neededPrograms returns the program that a runtime executes for the member. If that program executes GrowProgram, the
// result has GrowProgram, too.
func (m Member) neededPrograms() []string {
	if m.Type == TypeAll || m.Type == TypeIPAM {
		return []string{m.Type, GrowProgram}
	}
	return []string{m.Type}
}

// Plugin returns the configuration of our plugin of this type: the first one in the list, or nil. A configuration of
// TypeAll counts, too, because it has the keys of all our plugins.
func (c List) Plugin(typ string) json.RawMessage { return c.member(typ).Raw }

// member returns the same configuration as Plugin, but with its type and capabilities. If there is none, it returns the
// zero Member.
func (c List) member(typ string) Member {
	i := slices.IndexFunc(c.Plugins, func(m Member) bool { return m.Type == typ || m.Type == TypeAll })
	if i < 0 {
		return Member{}
	}
	return c.Plugins[i]
}

// Chains reports whether a plugin of this type is in the list.
func (c List) Chains(typ string) bool {
	return slices.ContainsFunc(c.Plugins, func(m Member) bool { return m.Type == typ })
}

// isRead reports whether runtimes read a file of this name (libcni, ConfFiles).
func isRead(name string) bool {
	return slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name))
}

// ErrNone means that no conflist has a plugin of ours that gives addresses to pods.
var ErrNone = errors.New("no conflist with the plugin " + TypeAll + " or " + TypeIPAM)

// Absent reports whether an error of [Conflists.All] means that there is no configuration. A configuration that Load
// cannot read is not absent.
func Absent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNone) }

// PoolName returns the name of a pool as the tool prints it. In the registry, the default pool has an empty name.
func PoolName(pool string) string { return cmp.Or(pool, lease.DefaultPool) }
