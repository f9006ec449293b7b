// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
)

// toolCommand matches a command of the tool with its options, in pages, units and hints.
var toolCommand = regexp.MustCompile(
	`(?:cni-tool|cni-ipvlan-vpc-k8s-tool)((?: [a-z][a-z0-9-]*)?)((?: --?[a-z][a-z_-]*(?:[= ][^\s,;:)("` +
		"`" + `|]+)?)*)`)

var option = regexp.MustCompile(`(--?[a-z][a-z_-]*)(?:[= ]([^\s]+))?`)

// TestRepoCommands looks for the tool's commands and options in pages, in files of the packages, and in messages. Each
// must exist in the tool.
func TestRepoCommands(t *testing.T) {
	commands := map[string]*cli.Command{}
	for _, c := range tool.New(io.Discard).Commands {
		commands[c.Name] = c
	}
	checked := map[string]int{}
	for file, text := range claimed(t) {
		for _, m := range toolCommand.FindAllStringSubmatch(text, -1) {
			name := strings.TrimSpace(m[1])
			c, known := commands[name]
			if !known && m[2] == "" { // the name of the tool is in a sentence
				if slices.Contains(prose, name) || name == "" {
					continue
				}
			}
			if !known && name != "" {
				t.Errorf("%s: %q: there is no command %s", file, m[0], name)
				continue
			}
			if known {
				checked[filepath.Ext(file)] += 1 + options(t, file, m[0], c, m[2])
			}
		}
	}
	t.Log("commands and options checked, by the kind of file:", checked)
	if checked[".md"] < 100 || checked[".go"] < 60 {
		t.Errorf("only %v are found", checked)
	}
}

// prose has words that follow the name of the tool in sentences, and are not commands.
var prose = []string{"and", "cannot", "does", "has", "in", "is", "knows", "reaches", "reads", "says", "shows", "with",
	"tells", "on", "of", "as", "or", "itself", "asks", "not", "under", "beside"}

func options(t *testing.T, file, whole string, c *cli.Command, text string) (n int) {
	t.Helper()
	for _, m := range option.FindAllStringSubmatch(text, -1) {
		name := strings.TrimLeft(m[1], "-")
		known := slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) }) ||
			slices.Contains([]string{"output", "o", "help", "h"}, name)
		if n++; !known {
			t.Errorf("%s: %q: the command %s has no option %s", file, whole, c.Name, m[1])
		}
		if c.Name == "doctor" && name == "check" {
			for check := range strings.SplitSeq(m[2], ",") {
				isCheck := func(c doctor.Check) bool { return c.Name == check }
				if check != "" && !slices.ContainsFunc(doctor.Checks(false), isCheck) {
					t.Errorf("%s: %q: there is no check %q", file, whole, check)
				}
			}
		}
	}
	return n
}

// named matches where our source concatenates the name of the tool with a text.
var named = regexp.MustCompile(`"\s*\+\s*(?:cli\.)?(?:Name|Program)\s*\+\s*"|\b(?:cli\.)?(?:Name|Program)\s*\+\s*"`)

// claimed returns the texts that name commands: pages, files of the packages, and the source with its messages.
func claimed(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", ".cache", "bin", "dist", "sim", "testdata"}, file) ||
				d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		kinds := []string{".md", ".go", ".yaml", ".service", ".timer", ".txt", ".toml", ".conf", ".sh"}
		if !slices.Contains(kinds, filepath.Ext(file)) || strings.HasSuffix(file, "_test.go") ||
			strings.HasPrefix(file, "docs/bench-") || !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(file)
		text := string(b)
		if filepath.Ext(file) == ".go" {
			text = named.ReplaceAllString(text, "cni-tool")
		}
		all[file] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	makeTarget = regexp.MustCompile("`make ([a-z][a-z0-9-]*)|(?m:^ {4}make ([a-z][a-z0-9-]*))")
	ownPath    = regexp.MustCompile(
		"`((?:packaging|conflist-examples|systemd|docs|aws|ipam|nl|plugin|registry|tool|unnumbered-ptp|internal)/" +
			"[A-Za-z0-9._/@-]+)`")
	configKey = regexp.MustCompile("`([a-z]+[A-Z][A-Za-z0-9]*)`")
)

// TestRepoPages checks that each target of make, each file and each key of a configuration that a page names exists.
func TestRepoPages(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	source := keysOfSource(t)
	targets, files, keys := 0, 0, 0
	for _, page := range append(pages, "README.md") {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range makeTarget.FindAllStringSubmatch(string(b), -1) {
			target := m[1] + m[2]
			if targets++; !regexp.MustCompile(`(?m)^(?:[a-z0-9 -]+ )?` + target +
				`(?: [a-z0-9 -]+)?:`).Match(makefile) {
				t.Errorf("%s: there is no make %s", page, target)
			}
		}
		for _, m := range ownPath.FindAllStringSubmatch(string(b), -1) {
			if _, err := os.Stat(m[1]); err != nil {
				t.Errorf("%s: there is no %s", page, m[1])
			}
			files++
		}
		for _, m := range configKey.FindAllStringSubmatch(string(b), -1) {
			if keys++; !source[m[1]] && !slices.Contains(keysOfOthers, m[1]) {
				t.Errorf("%s: no program of ours knows the key %s", page, m[1])
			}
		}
	}
	t.Log(fmt.Sprint("checked: ", targets, " targets of make, ", files, " files, ", keys, " keys"))
	if targets < 20 || files < 20 || keys < 100 {
		t.Errorf("only %d targets, %d files and %d keys are found", targets, files, keys)
	}
}

// keysOfOthers are keys of the configurations of Kubernetes and of other programs.
var keysOfOthers = []string{"backOffPeriod", "clusterIPs", "ethN", "failureThreshold", "hostNetwork", "nodeSelector",
	"periodSeconds", "preStop",
	"sessionAffinity", "timeoutSeconds"}

// keysOfSource returns the quoted words of our source, which include all keys, and the values of the chart.
func keysOfSource(t *testing.T) map[string]bool {
	t.Helper()
	words := map[string]bool{}
	values, err := os.ReadFile("packaging/chart/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^ *([a-z]+[A-Z][A-Za-z0-9]*):`).FindAllSubmatch(values, -1) {
		words[string(m[1])] = true
	}
	quoted := regexp.MustCompile(`"([a-z]+[A-Z][A-Za-z0-9]*)["=,]`)
	for _, dir := range []string{"ipam", "plugin", "unnumbered-ptp", "tool", "registry", "aws"} {
		err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") ||
				strings.Contains(file, "sim/") {
				return err
			}
			b, err := os.ReadFile(file)
			for _, m := range quoted.FindAllStringSubmatch(string(b), -1) {
				words[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return words
}
