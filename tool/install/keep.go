// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// Other programs put plugins of their own after ours: istio-cni, linkerd-cni and antrea edit the conflist of the node.
// The init container of our DaemonSet runs install at each start of its pod. Each run keeps the plugins of other
// programs. Without these plugins, a pod would start outside its mesh.
//
// A conflist of ours may itself have plugins of other projects, such as portmap. If our next conflist lacks portmap,
// the installation must remove portmap. So the installed file has the key conf.Installed, which names the plugins of
// other projects that came with our conflist. The key and the plugins are in one file, so install replaces both at
// once.

// A foundConflist has the keys of a conflist that this package reads.
type foundConflist struct {
	Plugins   []conf.Member `json:"plugins"`
	Installed []string      `json:"cni-ipvlan-vpc-k8s/installed"` // see conf.Installed
}

// addedPlugins returns the plugins that other programs have added to a conflist of ours. The argument is the text of
// this conflist. If the text has no plugin of ours, the result is empty.
func addedPlugins(text []byte) (others []conf.Member) {
	var has foundConflist
	if json.Unmarshal(text, &has) != nil {
		return nil
	}
	ours := func(m conf.Member) bool { return slices.Contains(conf.Types, m.Type) }
	if !slices.ContainsFunc(has.Plugins, ours) {
		return nil
	}
	return slices.DeleteFunc(has.Plugins, func(m conf.Member) bool {
		return ours(m) || slices.Contains(has.Installed, m.Type)
	})
}

func pluginTypes(plugins []conf.Member) (types []string) {
	for _, m := range plugins {
		types = append(types, m.Type)
	}
	return types
}

// textWithAdded returns the text of c, with the plugins that other programs have added to the node's conflist (the
// argument "has"). It also returns the types of these plugins. It adds no plugin of a type that c already has.
func (c *Conflist) textWithAdded(has []byte) (text []byte, kept []string, err error) {
	var fresh foundConflist
	if err := json.Unmarshal(c.Text, &fresh); err != nil {
		return nil, nil, err
	}
	own := slices.DeleteFunc(pluginTypes(fresh.Plugins), func(typ string) bool {
		return slices.Contains(conf.Types, typ)
	})
	others := slices.DeleteFunc(addedPlugins(has), func(m conf.Member) bool { return slices.Contains(own, m.Type) })
	last, end, err := pluginEnds(c.Text)
	if err != nil {
		return nil, nil, err
	}
	var out bytes.Buffer
	out.Write(c.Text[:last])
	for _, m := range others {
		fmt.Fprintf(&out, ",\n    %s", m.Raw)
	}
	out.Write(c.Text[last:end])
	if len(own) > 0 && fresh.Installed == nil {
		list, err := json.Marshal(own)
		if err != nil {
			return nil, nil, err
		}
		fmt.Fprintf(&out, ",\n  %q: %s", conf.Installed, list)
	}
	out.Write(c.Text[end:])
	return out.Bytes(), pluginTypes(others), nil
}

// pluginEnds returns two offsets in the text of a list: the end of the last plugin, and the end of the array of
// plugins.
func pluginEnds(text []byte) (last, end int, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err = d.Token(); err != nil { // {
		return 0, 0, err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return 0, 0, err
		}
		if key != "plugins" {
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil {
				return 0, 0, err
			}
			continue
		}
		if _, err := d.Token(); err != nil { // [
			return 0, 0, err
		}
		for d.More() {
			var plugin json.RawMessage
			if err := d.Decode(&plugin); err != nil {
				return 0, 0, err
			}
		}
		last = int(d.InputOffset())
		_, err = d.Token() // ]
		return last, int(d.InputOffset()), err
	}
	return 0, 0, errors.New("the list has no plugins")
}

// textFor returns the text for the node's conflist at the path target. If the file at this path already has the same
// JSON, textFor returns the text of this file. So the caller writes no new file, and the runtime does not read the
// conflist again.
func (c *Conflist) textFor(target string) ([]byte, error) {
	has, err := os.ReadFile(target)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	text, kept, err := c.textWithAdded(has)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	if sameJSON(has, text) {
		return has, nil
	}
	if len(kept) > 0 {
		slog.Warn("other programs have put plugins after ours, and install keeps these plugins: remove an unwanted "+
			"plugin from the file",
			"plugins", strings.Join(kept, ", "), "conflist", target)
	}
	return text, nil
}

func sameJSON(a, b []byte) bool {
	var one, other any
	return json.Unmarshal(a, &one) == nil && json.Unmarshal(b, &other) == nil && reflect.DeepEqual(one, other)
}

// warnOfOthers logs a warning if a conflist has plugins of other programs. The warning names these plugins. The caller
// is about to remove the whole conflist.
func warnOfOthers(conflist string) {
	text, err := os.ReadFile(conflist)
	if others := pluginTypes(addedPlugins(text)); err == nil && len(others) > 0 {
		slog.Warn("install removes a conflist with plugins that other programs have added: the programs must add "+
			"their plugins to the next conflist",
			"plugins", strings.Join(others, ", "), "conflist", filepath.Base(conflist))
	}
}
