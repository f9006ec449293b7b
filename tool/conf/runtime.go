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

// The code in this file has the rules by which runtimes parse a list (libcni, NetworkConfFromBytes). If one value has
// the wrong type, runtimes refuse the whole list, even if the value is for another project's plugin. A test compares
// these rules with libcni.

// reviewTypes reviews the values that a runtime parses before it calls a plugin.
func (r *review) reviewTypes(b []byte, object map[string]json.RawMessage) {
	var all map[string]any
	if err := json.Unmarshal(b, &all); err != nil {
		r.report("", "no runtime can read the file: %v", err) // for example, a number that is too large
	}
	type texts struct {
		Name        string   `json:"name"`
		CNIVersion  string   `json:"cniVersion"`
		CNIVersions []string `json:"cniVersions"`
	}
	for _, mistake := range plugin.Mistyped(b, new(texts)) {
		r.report("", "%v", mistake)
	}
	for _, key := range []string{"name", "cniVersion", "cniVersions", "plugins"} {
		if string(object[key]) == "null" {
			r.report("", "%s: null: want a value, or no such key", key)
		}
	}
	for _, key := range []string{"disableCheck", "disableGC", "loadOnlyInlinedPlugins"} {
		if value, ok := object[key]; ok && !isBoolean(value) {
			r.report("", "%s: %s: want true or false", key, value)
		}
	}
	for i, m := range r.Plugins {
		for _, mistake := range plugin.Mistyped(m.Raw, new(types.PluginConf)) {
			r.report(r.nameOf(i), "%v", mistake)
		}
	}
}

// isBoolean reports whether a runtime reads the value as true or false. The texts "true" and "false" count, too, in
// capital or small letters.
func isBoolean(value json.RawMessage) bool {
	var b *bool
	var s string
	if json.Unmarshal(value, &b) == nil && b != nil {
		return true
	}
	return json.Unmarshal(value, &s) == nil && (strings.EqualFold(s, "true") || strings.EqualFold(s, "false"))
}

// readList reads all parts of the list that can be read, and reports whether the text is a list.
func (r *review) readList(b []byte, object map[string]json.RawMessage) bool {
	_ = json.Unmarshal(object["name"], &r.Name) // reviewTypes reports values of the wrong type
	_ = json.Unmarshal(object["cniVersion"], &r.CNIVersion)
	_ = json.Unmarshal(object["cniVersions"], &r.CNIVersions)
	one := singlePlugin(b)
	if one != nil && (r.delegate || !isList(r.file)) {
		r.Plugins = []Member{*one} // runtimes make a list of the plugin
		return true
	}
	if one != nil {
		r.report("", `the file has the configuration of one plugin, and no list: want {"cniVersion": "1.0.0", "name": `+
			`..., "plugins": [...]} around the plugin`)
		return false
	}
	r.readMembers(object["plugins"])
	r.OnlyInlined = object["loadOnlyInlinedPlugins"]
	if r.delegate {
		return true
	}
	all, err := withDropIns(r.file, r.List)
	if err != nil {
		r.report("", "%v", err)
		return true
	}
	if r.Plugins = all; object["plugins"] == nil && len(all) == 0 {
		r.report("", "plugins must be specified: the list of the plugins")
	}
	return true
}

// readMembers reads the plugins that are in the list itself.
func (r *review) readMembers(plugins json.RawMessage) {
	var members []json.RawMessage
	switch err := json.Unmarshal(plugins, &members); {
	case plugins == nil:
	case err != nil:
		r.report("", "plugins: want an array with an object for each plugin")
	case len(members) == 0:
		r.report("", "plugins: []: want at least one plugin")
	}
	for _, raw := range members {
		var m Member
		_ = m.UnmarshalJSON(raw) // review.positions reports a missing type
		r.Plugins = append(r.Plugins, m)
	}
}

// reviewRepeatedKeys looks for keys that an object has twice. Runtimes use the last value, but people read the first.
func (r *review) reviewRepeatedKeys(b []byte) {
	d := json.NewDecoder(bytes.NewReader(b))
	r.findRepeatedKeys(d, nil)
}

// findRepeatedKeys reads the value at path, and looks for keys that an object in the value has twice.
func (r *review) findRepeatedKeys(d *json.Decoder, path []string) {
	token, _ := d.Token() // no error: the text was parsed before
	keys := map[string]bool{}
	for n := 1; (token == json.Delim('{') || token == json.Delim('[')) && d.More(); n++ {
		step := strconv.Itoa(n)
		if token == json.Delim('{') {
			key, _ := d.Token()
			step, _ = key.(string)
			if keys[step] {
				r.reportRepeatedKey(append(slices.Clone(path), step))
			}
			keys[step] = true
		}
		r.findRepeatedKeys(d, append(slices.Clone(path), step))
	}
	if _, ok := token.(json.Delim); ok {
		_, _ = d.Token() // the closing bracket
	}
}

func (r *review) reportRepeatedKey(path []string) {
	where := ""
	if len(path) > 2 && path[0] == "plugins" {
		n, _ := strconv.Atoi(path[1]) // the number counts from 1
		if n > 0 && n <= len(r.Plugins) {
			where, path = r.nameOf(n-1), path[2:]
		}
	}
	r.report(where, "%s: the file has this key twice, and the last value counts: remove one of the two",
		strings.Join(path, ": "))
}
