// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

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

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/release"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// modulePath is the Go module of our programs. Go records it in each program.
const modulePath = "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s"

// checkPlugins checks that the plugins are installed and that all programs are of one release. Then it asks the plugins
// for their STATUS (CNI specification 1.1.0), as a runtime does.
func (p *Node) checkPlugins(ctx context.Context) ([]Finding, error) {
	var found []Finding
	versions := map[string]string{cli.Program: release.Version()}
	hasIPAM := slices.ContainsFunc(p.lists, func(l conf.List) bool { return l.Plugin(conf.TypeIPAM) != nil })
	for _, typ := range append(slices.Clone(conf.Types), conf.GrowProgram) {
		file := filepath.Join(p.binDir, typ)
		info, err := buildinfo.ReadFile(file)
		switch {
		// if a conflist needs this plugin, the loop over p.lists reports the missing program
		case errors.Is(err, fs.ErrNotExist) && (typ == conf.TypeEgress || hasIPAM):
		case errors.Is(err, fs.ErrNotExist):
			found = append(found, Finding{Severity: severe, About: file,
				Means: "this program is not installed, so no pod gets a network",
				Do: "install the package. If the runtime uses another directory (bin_dir of containerd), give that " +
					"directory with --bin-dir"})
		case err != nil || info.Main.Path != modulePath:
			found = append(found, Finding{Severity: warning, About: file,
				Means: "this file is no program of this project. It may be the original plugin",
				Do:    "install the package again"})
		default:
			versions[typ] = cmp.Or(info.Main.Version, versions[cli.Program])
		}
	}
	for _, l := range p.lists {
		for _, m := range l.Missing(p.binDir) {
			found = append(found, Finding{Severity: severe, About: m.File, Means: m.Where + ": " + m.Text,
				Do: "install the package that has this program. If the runtime uses another directory (bin_dir of " +
					"containerd), give that directory with --bin-dir"})
		}
	}
	if len(slices.Compact(slices.Sorted(maps.Values(versions)))) > 1 {
		var text []string
		for _, typ := range slices.Sorted(maps.Keys(versions)) {
			text = append(text, typ+" "+versions[typ])
		}
		found = append(found, Finding{Severity: warning, About: p.binDir,
			Means: fmt.Sprintf("the programs are of different releases, which were not tested together: %q", text),
			Do:    "install all programs from one package"})
	}
	if p.root != "" {
		return found, nil // the plugins of an image may be for another machine
	}
	for _, l := range p.lists {
		for _, m := range l.Plugins {
			if slices.Contains(conf.Types, m.Type) {
				found = append(found, p.askStatus(ctx, l, m)...)
			}
		}
	}
	return found, nil
}

// answerTimeout is how long a plugin, or containerd, may take to answer.
const answerTimeout = 10 * time.Second

// askStatus runs a plugin with CNI_COMMAND=STATUS. It returns a finding if the plugin answers that it cannot work.
func (p *Node) askStatus(ctx context.Context, l conf.List, m conf.Member) []Finding {
	conf := map[string]any{}
	if json.Unmarshal(m.Raw, &conf) != nil {
		return nil // checkConfig has reported the mistake
	}
	conf["cniVersion"], conf["name"] = "1.1.0", l.Name // this version of CNI has introduced STATUS
	stdin, err := json.Marshal(conf)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
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
	_ = json.Unmarshal(out, &answer) // if the plugin wrote no JSON, Msg keeps err's text, which has the exit status
	if strings.Contains(answer.Msg, "CNI_COMMAND") || answer.Code == 1 {
		return nil // an old release: the plugin does not know STATUS, or does not know this version of CNI
	}
	about := m.Type
	if len(p.lists) > 1 {
		about += " of " + l.Name
	}
	return []Finding{{Severity: severe, About: about, Means: "the plugin cannot work on this node: " + answer.Msg,
		Do: cmp.Or(answer.Details, "correct this fault. The runtime gets the same answer to STATUS, so until then "+
			"the node is not ready")}}
}
