// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// firstOurs is the first conflist in a folder with a plugin of ours that gives addresses, or the file itself.
func firstOurs(path string) string {
	files, err := conflistsAt(path)
	if err != nil {
		return ""
	}
	for _, f := range files {
		if list, err := readConflist(f); err == nil && list.plugin(typeIPAM) != nil {
			return f
		}
	}
	if len(files) == 1 && files[0] == path {
		return path // it was named, and its mistakes are to be shown
	}
	return ""
}

// checkConfig looks at the conflist as validate does, and at what a runtime would read
// in its place.
func (p *patient) checkConfig(context.Context) ([]ailment, error) {
	if p.file == "" {
		return []ailment{{Severity: severe, About: p.path(configDir), Means: "there is " + errNoConfig.Error() + ": no pod gets a network",
			Do: "copy one there, from the examples in /usr/share/doc/cni-ipvlan-vpc-k8s; --config says where it is, if elsewhere"}}, nil
	}
	mistakes, err := mistakesIn(p.file, p.binDir)
	if err != nil {
		return nil, err
	}
	var found []ailment
	for _, m := range mistakes {
		found = append(found, ailment{Severity: severe, About: m.File, Means: strings.TrimPrefix(m.String(), m.File+": "),
			Do: "correct it; " + Name + " validate " + m.File + " shows all mistakes"})
	}
	files, err := confFiles(filepath.Dir(p.file))
	if err == nil && len(files) > 0 && files[0] != p.file {
		found = append(found, ailment{Severity: severe, About: files[0],
			Means: "runtimes take the first file of the folder, and that is this one: no pod gets its network by " + filepath.Base(p.file),
			Do:    "remove it, or give " + filepath.Base(p.file) + " a name that comes before"})
	}
	return found, err
}

// module is where our programs come from, as Go writes it into them.
const module = "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s"

// checkPlugins looks whether the plugins are of one release, and asks those of the chain
// for their STATUS (CNI specification 1.1.0), as a runtime does.
func (p *patient) checkPlugins(ctx context.Context) ([]ailment, error) {
	var found []ailment
	versions := map[string]string{Name: version()}
	for _, typ := range ourTypes {
		file := filepath.Join(p.binDir, typ)
		info, err := buildinfo.ReadFile(file)
		switch {
		case errors.Is(err, fs.ErrNotExist) && p.list.plugin(typeIPAM) != nil: // if it needs that one, checkConfig misses it
		case errors.Is(err, fs.ErrNotExist):
			found = append(found, ailment{Severity: severe, About: file, Means: "it is not installed: no pod gets a network",
				Do: "install the package, or say --bin-dir, where the runtime's configuration has another folder (containerd: bin_dir)"})
		case err != nil || info.Main.Path != module:
			found = append(found, ailment{Severity: doubted, About: file, Means: "it is none of this suite: it may be the original's",
				Do: "install the package anew"})
		default:
			versions[typ] = cmp.Or(info.Main.Version, versions[Name])
		}
	}
	if len(slices.Compact(slices.Sorted(maps.Values(versions)))) > 1 {
		var text []string
		for _, typ := range slices.Sorted(maps.Keys(versions)) {
			text = append(text, typ+" "+versions[typ])
		}
		found = append(found, ailment{Severity: doubted, About: p.binDir, Means: fmt.Sprintf("the programs are of different releases, which nobody has tried together: %q", text),
			Do: "install all of one package"})
	}
	if p.root != "" {
		return found, nil // its plugins may be for another machine
	}
	for _, m := range p.list.Plugins {
		if slices.Contains(ourTypes, m.Type) {
			found = append(found, p.askStatus(ctx, m)...)
		}
	}
	return found, nil
}

// askStatus runs a plugin with CNI_COMMAND=STATUS.
func (p *patient) askStatus(ctx context.Context, m member) []ailment {
	conf := map[string]any{}
	if json.Unmarshal(m.raw, &conf) != nil {
		return nil // checkConfig has found that
	}
	conf["cniVersion"], conf["name"] = "1.1.0", p.list.Name // STATUS is of this version
	stdin, err := json.Marshal(conf)
	if err != nil {
		return nil
	}
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(p.binDir, m.Type))
	c.Env = append(os.Environ(), "CNI_COMMAND=STATUS", "CNI_PATH="+p.binDir)
	c.Stdin = bytes.NewReader(stdin)
	out, err := c.Output()
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	answer := struct {
		Code         int
		Msg, Details string
	}{Msg: err.Error()}
	_ = json.Unmarshal(out, &answer) // else the exit status has to do
	if strings.Contains(answer.Msg, "CNI_COMMAND") || answer.Code == 1 {
		return nil // a plugin from before STATUS, or that version of CNI
	}
	return []ailment{{Severity: severe, About: m.Type, Means: "it cannot work here: " + answer.Msg,
		Do: cmp.Or(answer.Details, "see what it writes: CNI_COMMAND=STATUS CNI_PATH="+p.binDir+" "+filepath.Join(p.binDir, m.Type)+" <its configuration")}}
}
