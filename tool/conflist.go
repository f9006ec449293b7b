// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

// The types by which a conflist names our plugins.
const (
	typeIPAM   = "cni-ipvlan-vpc-k8s-ipam"
	typeIPVlan = "cni-ipvlan-vpc-k8s-ipvlan"
	typePTP    = "cni-ipvlan-vpc-k8s-unnumbered-ptp"
	typeAll    = "cni-ipvlan-vpc-k8s" // is the three in one
)

// three are the plugins of a chain in their order: each needs the result of the one before it.
var three = []string{typeIPAM, typeIPVlan, typePTP}

// ourTypes are all of ours.
var ourTypes = append([]string{typeAll}, three...)

// defaultReuse is the reuseIPWait of a pool that no configuration is known of.
const defaultReuse = time.Minute

// configDir is where container runtimes look for network configurations.
const configDir = "/etc/cni/net.d"

// configFlag says where the configuration of the plugins is.
func configFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "config", Value: configDir,
		Usage: "read our plugins' configuration from the conflist `PATH`, or from the first one in the folder that has it",
	}
}

// A conflist is a network configuration list (CNI specification 1.1.0, section 1).
type conflist struct {
	CNIVersion  string   `json:"cniVersion"`
	CNIVersions []string `json:"cniVersions"`
	Name        string   `json:"name"`
	Plugins     []member `json:"plugins"`
}

// A member is a plugin's configuration in its chain.
type member struct {
	Type string
	raw  json.RawMessage
}

// UnmarshalJSON keeps the object, which is for the plugin to read.
func (m *member) UnmarshalJSON(b []byte) error {
	m.raw = slices.Clone(b)
	var head struct {
		Type string `json:"type"`
	}
	err := json.Unmarshal(b, &head)
	m.Type = head.Type
	return err
}

// programs are those that a runtime executes for the member, and those that these execute.
func (m member) programs() []string {
	if m.Type == typeAll {
		return []string{typeAll, typeIPAM} // which asks EC2 for it
	}
	return []string{m.Type}
}

// plugin returns the first configuration of a plugin of ours, or nil. The one that is all
// three has the keys of each.
func (c conflist) plugin(typ string) json.RawMessage {
	i := slices.IndexFunc(c.Plugins, func(m member) bool { return m.Type == typ || m.Type == typeAll })
	if i < 0 {
		return nil
	}
	return c.Plugins[i].raw
}

// chains tells whether another plugin is in the list, too.
func (c conflist) chains(typ string) bool {
	return slices.ContainsFunc(c.Plugins, func(m member) bool { return m.Type == typ })
}

func readConflist(path string) (conflist, error) {
	var c conflist
	b, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// confFiles lists the configurations in a folder in the order in which runtimes try them
// (libcni, ConfFiles; the first file by name wins).
func confFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

// conflistsAt are those of a folder, or the one file.
func conflistsAt(path string) ([]string, error) {
	fi, err := os.Stat(path)
	if err == nil && fi.IsDir() {
		return confFiles(path)
	}
	return []string{path}, err
}

// errNoConfig means that nothing there has a plugin of ours that gives addresses.
var errNoConfig = errors.New("no conflist with the plugin " + typeAll + " or " + typeIPAM)

// findConfig reads ipam's configuration from a file, or from the first file of a folder
// that has one.
func findConfig(path string) (*lease.Config, error) {
	files, err := conflistsAt(path)
	if err != nil {
		return nil, err
	}
	var unread error
	for _, f := range files {
		list, err := readConflist(f)
		if err != nil {
			unread = errors.Join(unread, err)
			continue
		}
		if raw := list.plugin(typeIPAM); raw != nil {
			return decodeIPAM(f, raw)
		}
	}
	return nil, errors.Join(fmt.Errorf("%s: %w", path, errNoConfig), unread)
}

func decodeIPAM(file string, raw json.RawMessage) (*lease.Config, error) {
	c := &lease.Config{}
	err := json.Unmarshal(raw, c)
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return nil, hinted{fmt.Errorf("%s: %w", file, err), "see " + Name + " validate " + file}
	}
	return c, nil
}

// reuseWaits are for how long an address of each pool cools, as the configuration says;
// without one, or for a pool that is not in it any more, it is the default.
func reuseWaits(c *cli.Context) func(pool string) time.Duration {
	waits := map[string]time.Duration{}
	if config, err := findConfig(c.String("config")); err == nil {
		for _, p := range config.Policies() {
			waits[p.Pool] = p.ReuseWait
		}
	}
	return func(pool string) time.Duration {
		if w, ok := waits[pool]; ok {
			return w
		}
		return defaultReuse
	}
}
