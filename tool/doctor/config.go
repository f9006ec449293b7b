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

// checkConfig finds the mistakes in the conflists, as validate does. checkConfig also finds a file that a runtime would
// read instead of the first one.
func (p *Node) checkConfig(context.Context) ([]Finding, error) {
	if p.file == "" {
		return p.withoutConflist(), nil
	}
	var found []Finding
	beside := p.conflists.Beside()
	for _, file := range p.conflists.OurFiles() {
		mistakes, err := file.Mistakes("", beside) // checkPlugins looks for the programs
		if err != nil {
			return nil, err
		}
		for _, m := range mistakes {
			found = append(found, Finding{Severity: severe, About: m.File,
				Means: strings.TrimPrefix(m.String(), m.File+": "),
				Do:    "correct the file; " + cli.Name + " validate " + m.File + " lists all mistakes"})
		}
	}
	if !p.conflists.IsDir && beside.Path != p.path(conf.Dir) {
		return found, nil // no operator says that a runtime reads this directory
	}
	files := beside.Files
	if len(files) > 0 && files[0].Path != p.file && !files[0].Multus {
		found = append(found, Finding{Severity: severe, About: files[0].Path,
			Means: "container runtimes read the first file of the directory, which is this one: no pod gets a " +
				"network from " + filepath.Base(p.file),
			Do: "remove this file, or rename " + filepath.Base(p.file) + " so that it sorts before"})
	}
	return append(found, p.secondConflist(files)...), beside.Unlisted
}

// secondConflist finds another file in the directory of CRI-O, if nothing names our network. CRI-O takes the first
// file. If that is not ours when it starts, it takes the running pods for ones of another network that have ended.
func (p *Node) secondConflist(files []conf.File) []Finding {
	_, err := os.Stat(p.path("/etc/crio"))
	others := slices.DeleteFunc(slices.Clone(files), func(f conf.File) bool { return f.Path == p.file })
	if err != nil || len(others) == 0 || len(others) == len(files) || p.namesNetwork() {
		return nil
	}
	return []Finding{{Severity: warning, About: others[0].Path,
		Means: "CRI-O reads this file, too. If CRI-O starts when " + filepath.Base(p.file) +
			" is not the first one, it sends a DEL for each running pod, and these lose their network",
		Do: "remove this file, or name the network of " + filepath.Base(p.file) +
			" as cni_default_network in /etc/crio/crio.conf.d"}}
}

// networkOfCRIO matches the network that CRI-O takes (crio.conf(5)).
var networkOfCRIO = regexp.MustCompile(`(?m)^\s*cni_default_network\s*=\s*"[^"]+"`)

// namesNetwork reports whether the configuration of CRI-O names its network.
func (p *Node) namesNetwork() bool {
	files, _ := filepath.Glob(p.path("/etc/crio/crio.conf.d/*"))
	return slices.ContainsFunc(append(files, p.path("/etc/crio/crio.conf")), func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && networkOfCRIO.Match(text)
	})
}

// withoutConflist says why there is no conflist of ours: doctor cannot read it, or it is not where it should be.
func (p *Node) withoutConflist() (found []Finding) {
	for _, f := range p.conflists.Files {
		if f.Failed != nil {
			found = append(found, Finding{Severity: severe, About: f.Path,
				Means: "it cannot be read: " + strings.TrimPrefix(f.Failed.Error(), f.Path+": ") +
					": no pod gets a network from it",
				Do: "correct the file; " + cli.Name + " validate " + f.Path + " lists all mistakes"})
		}
	}
	if len(found) > 0 {
		return found
	}
	return []Finding{{Severity: severe, About: p.conflists.Path,
		Means: conf.ErrNone.Error() + " is there: no pod gets a network",
		Do: "copy one of the examples in /usr/share/doc/cni-ipvlan-vpc-k8s to the directory that the runtime reads; " +
			"if the conflist is elsewhere, name it with --config"}}
}
