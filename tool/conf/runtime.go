// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// This file has the rules by which runtimes parse a list (libcni, NetworkConfFromBytes). Runtimes refuse the whole list
// because of one value of the wrong type, also in the configuration of a plugin of others. A test compares these rules
// with libcni.

// runtime reviews the values that a runtime parses before it calls a plugin.
func (r *review) runtime(b []byte, object map[string]json.RawMessage) {
	var all map[string]any
	if err := json.Unmarshal(b, &all); err != nil {
		r.wrong("", "no runtime can read the file: %v", err) // for example, a number that is too large
	}
	type texts struct {
		Name        string   `json:"name"`
		CNIVersion  string   `json:"cniVersion"`
		CNIVersions []string `json:"cniVersions"`
	}
	for _, mistake := range plugin.Mistyped(b, new(texts)) {
		r.wrong("", "%v", mistake)
	}
	for _, key := range []string{"name", "cniVersion", "cniVersions", "plugins"} {
		if string(object[key]) == "null" {
			r.wrong("", "%s: null: want a value, or no such key", key)
		}
	}
	for _, key := range []string{"disableCheck", "disableGC", "loadOnlyInlinedPlugins"} {
		if value, ok := object[key]; ok && !boolean(value) {
			r.wrong("", "%s: %s: want true or false", key, value)
		}
	}
	for i, m := range r.Plugins {
		for _, mistake := range plugin.Mistyped(m.Raw, new(types.PluginConf)) {
			r.wrong(r.where(i), "%v", mistake)
		}
	}
}

// boolean reports whether a runtime reads the value as true or false. A runtime also reads a text as a boolean.
func boolean(value json.RawMessage) bool {
	var b *bool
	var s string
	if json.Unmarshal(value, &b) == nil && b != nil {
		return true
	}
	return json.Unmarshal(value, &s) == nil && (strings.EqualFold(s, "true") || strings.EqualFold(s, "false"))
}

// list reads all parts of the list that can be read, and reports whether the text is a list.
func (r *review) list(b []byte, object map[string]json.RawMessage) bool {
	_ = json.Unmarshal(object["name"], &r.Name) // the method runtime reports values of the wrong type
	_ = json.Unmarshal(object["cniVersion"], &r.CNIVersion)
	_ = json.Unmarshal(object["cniVersions"], &r.CNIVersions)
	one := single(b)
	if one != nil && (r.delegate || !isList(r.file)) {
		r.Plugins = []Member{*one} // runtimes make a list of the plugin
		return true
	}
	if one != nil {
		r.wrong("", `the file has the configuration of one plugin, and no list: want {"cniVersion": "1.0.0", "name": `+
			`..., "plugins": [...]} around the plugin`)
		return false
	}
	r.members(object["plugins"])
	r.OnlyInlined = object["loadOnlyInlinedPlugins"]
	if r.delegate {
		return true
	}
	all, err := withDropIns(r.file, r.List)
	if err != nil {
		r.wrong("", "%v", err)
		return true
	}
	if r.Plugins = all; object["plugins"] == nil && len(all) == 0 {
		r.wrong("", "plugins must be specified: the list of the plugins")
	}
	return true
}

// members reads the plugins that are in the list itself.
func (r *review) members(plugins json.RawMessage) {
	var members []json.RawMessage
	switch err := json.Unmarshal(plugins, &members); {
	case plugins == nil:
	case err != nil:
		r.wrong("", "plugins: want an array with an object for each plugin")
	case len(members) == 0:
		r.wrong("", "plugins: []: want at least one plugin")
	}
	for _, raw := range members {
		var m Member
		_ = m.UnmarshalJSON(raw) // the method positions reports a missing type
		r.Plugins = append(r.Plugins, m)
	}
}

// twice looks for keys that an object has twice. Runtimes read the last value, and people the first.
func (r *review) twice(b []byte) {
	d := json.NewDecoder(bytes.NewReader(b))
	r.repeated(d, nil)
}

// repeated reads the value at path, and looks for keys that an object in the value has twice.
func (r *review) repeated(d *json.Decoder, path []string) {
	token, _ := d.Token() // no error: the text was parsed before
	keys := map[string]bool{}
	for n := 1; (token == json.Delim('{') || token == json.Delim('[')) && d.More(); n++ {
		step := strconv.Itoa(n)
		if token == json.Delim('{') {
			key, _ := d.Token()
			step, _ = key.(string)
			if keys[step] {
				r.repeats(append(slices.Clone(path), step))
			}
			keys[step] = true
		}
		r.repeated(d, append(slices.Clone(path), step))
	}
	if _, ok := token.(json.Delim); ok {
		_, _ = d.Token() // the closing bracket
	}
}

func (r *review) repeats(path []string) {
	where := ""
	if len(path) > 2 && path[0] == "plugins" {
		n, _ := strconv.Atoi(path[1]) // the number counts from 1
		if n > 0 && n <= len(r.Plugins) {
			where, path = r.where(n-1), path[2:]
		}
	}
	r.wrong(where, "%s: the file has this key twice, and the last value counts: remove one of them",
		strings.Join(path, ": "))
}
