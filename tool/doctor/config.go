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

// checkConfig finds the mistakes in the conflists, as validate does. It also finds a file that
// a runtime would read instead of the first one.
func (p *Node) checkConfig(context.Context) ([]Finding, error) {
	if p.file == "" {
		return p.withoutConflist(), nil
	}
	var found []Finding
	for _, file := range conf.Ours(p.given) {
		mistakes, err := conf.Mistakes(file, "", false) // checkPlugins looks for the programs
		if err != nil {
			return nil, err
		}
		for _, m := range mistakes {
			found = append(found, Finding{Severity: severe, About: m.File, Means: strings.TrimPrefix(m.String(), m.File+": "),
				Do: "correct the file; " + cli.Name + " validate " + m.File + " lists all mistakes"})
		}
	}
	dir := filepath.Dir(p.file)
	if p.given == p.file && dir != p.path(conf.Dir) {
		return found, nil // nobody says that a runtime reads this directory
	}
	files, err := conf.Files(dir)
	if err == nil && len(files) > 0 && files[0] != p.file && !conf.Delegates(files[0]) {
		found = append(found, Finding{Severity: severe, About: files[0],
			Means: "container runtimes read the first file of the directory, which is this one: no pod gets a network from " + filepath.Base(p.file),
			Do:    "remove this file, or rename " + filepath.Base(p.file) + " so that it sorts before"})
	}
	return append(found, p.secondConflist(files)...), err
}

// secondConflist finds another file in the directory of CRI-O, if nothing names our network. CRI-O takes the first file. If that is not
// ours when it starts, it takes the running pods for ones of another network that have ended.
func (p *Node) secondConflist(files []string) []Finding {
	_, err := os.Stat(p.path("/etc/crio"))
	others := slices.DeleteFunc(slices.Clone(files), func(f string) bool { return f == p.file })
	if err != nil || len(others) == 0 || len(others) == len(files) || p.namesNetwork() {
		return nil
	}
	return []Finding{{Severity: warning, About: others[0],
		Means: "CRI-O reads this file, too. If CRI-O starts when " + filepath.Base(p.file) + " is not the first one, it sends a DEL for each running pod, and these lose their network",
		Do:    "remove this file, or name the network of " + filepath.Base(p.file) + " as cni_default_network in /etc/crio/crio.conf.d"}}
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

// withoutConflist says why there is no conflist of ours: nobody can read it, or it is not where it should be.
func (p *Node) withoutConflist() (found []Finding) {
	files, _ := conf.Files(p.given) // without the directory there is none
	for _, f := range files {
		if _, err := conf.Lists(f); err != nil {
			found = append(found, Finding{Severity: severe, About: f, Means: "it cannot be read: " + strings.TrimPrefix(err.Error(), f+": ") + ": no pod gets a network from it",
				Do: "correct the file; " + cli.Name + " validate " + f + " lists all mistakes"})
		}
	}
	if len(found) > 0 {
		return found
	}
	return []Finding{{Severity: severe, About: p.given, Means: conf.ErrNone.Error() + " is there: no pod gets a network",
		Do: "copy one of the examples in /usr/share/doc/cni-ipvlan-vpc-k8s to the directory that the runtime reads; if the conflist is elsewhere, name it with --config"}}
}
