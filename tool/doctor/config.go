// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// checkConfig finds the mistakes in the conflists, as validate does. It also finds a file whose name sorts before our
// conflist, because a runtime reads only the first file.
func (p *Node) checkConfig(context.Context) ([]Finding, error) {
	if p.file == "" {
		return p.withoutConflist(), nil
	}
	var found []Finding
	beside := p.conflists.Beside()
	for _, file := range p.conflists.OurFiles() {
		mistakes, err := file.Mistakes("", beside) // "": do not look for the programs; checkPlugins looks for them
		if err != nil {
			return nil, err
		}
		for _, m := range mistakes {
			severity := severe
			if m.Tolerated {
				severity = warning
			}
			found = append(found, Finding{Severity: severity, About: m.File,
				Means: strings.TrimPrefix(m.String(), m.File+": "),
				Do:    "correct the file; " + cli.Name + " validate " + m.File + " lists all mistakes"})
		}
	}
	if !p.conflists.IsDir && beside.Path != p.pathOf(conf.Dir) {
		// Perhaps no runtime reads this directory, so the order of its files is no fault.
		return found, nil
	}
	files := beside.Files
	if len(files) > 0 && files[0].Path != p.file && !files[0].Multus {
		found = append(found, Finding{Severity: severe, About: files[0].Path,
			Means: "container runtimes read only the first file of the directory, and this file is the first. So no " +
				"pod gets a network from " + filepath.Base(p.file),
			Do: "remove this file, or rename " + filepath.Base(p.file) + " so that its name sorts before the name of " +
				"this file"})
	}
	return append(found, p.secondConflist(files)...), beside.Unlisted
}

// secondConflist returns a finding if CRI-O's directory has another file beside ours, and CRI-O's configuration names
// no network. If the other file is the first one when CRI-O starts, CRI-O believes that the running pods of our network
// have ended. CRI-O then sends a DEL for each pod.
func (p *Node) secondConflist(files []conf.File) []Finding {
	_, err := os.Stat(p.pathOf("/etc/crio"))
	others := slices.DeleteFunc(slices.Clone(files), func(f conf.File) bool { return f.Path == p.file })
	if err != nil || len(others) == 0 || len(others) == len(files) || p.namesNetwork() {
		return nil
	}
	return []Finding{{Severity: warning, About: others[0].Path,
		Means: "CRI-O reads this file, too. If CRI-O starts when " + filepath.Base(p.file) +
			" is not the first file, CRI-O sends a DEL for each running pod, and these pods lose their network",
		Do: "remove this file, or set cni_default_network in /etc/crio/crio.conf.d to the network of " +
			filepath.Base(p.file)}}
}

// networkOfCRIO matches the setting of the network that CRI-O uses (crio.conf(5)).
var networkOfCRIO = regexp.MustCompile(`(?m)^\s*cni_default_network\s*=\s*"[^"]+"`)

// namesNetwork reports whether the configuration of CRI-O names the network that CRI-O uses.
func (p *Node) namesNetwork() bool {
	files, _ := filepath.Glob(p.pathOf("/etc/crio/crio.conf.d/*"))
	return slices.ContainsFunc(append(files, p.pathOf("/etc/crio/crio.conf")), func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && networkOfCRIO.Match(text)
	})
}

// withoutConflist returns findings that say why there is no conflist of ours.
func (p *Node) withoutConflist() (found []Finding) {
	for _, f := range p.conflists.Files {
		if f.Failed != nil {
			found = append(found, Finding{Severity: severe, About: f.Path,
				Means: "no pod gets a network from this file, because it cannot be read: " +
					strings.TrimPrefix(f.Failed.Error(), f.Path+": "),
				Do: "correct the file; " + cli.Name + " validate " + f.Path + " lists all mistakes"})
		}
	}
	if len(found) > 0 {
		return found
	}
	return []Finding{{Severity: severe, About: p.conflists.Path,
		Means: "no pod gets a network, because there is " + conf.ErrNone.Error(),
		Do: "copy one of the examples in /usr/share/doc/cni-ipvlan-vpc-k8s to the directory that the runtime reads; " +
			"if the conflist is elsewhere, give its path with --config"}}
}
