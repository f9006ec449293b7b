// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Sbom writes a software bill of materials for Go programs. The format is CycloneDX 1.6
// (https://cyclonedx.org/docs/1.6/json). The bill lists the modules that Go's linker has recorded in the programs.
//
//	sbom PROGRAM...
//
// The output has neither a date nor a serial number, so the same programs always give the same text.
package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

type component struct {
	Type     string      `json:"type"`
	Ref      string      `json:"bom-ref"`
	Name     string      `json:"name"`
	Version  string      `json:"version"`
	Hashes   []hash      `json:"hashes,omitempty"`
	Licenses []licensing `json:"licenses,omitempty"`
	PURL     string      `json:"purl,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type licensing struct {
	License struct {
		ID string `json:"id"`
	} `json:"license"`
}

type dependency struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn"`
}

type bom struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

func main() {
	b, err := describe(os.Args[1:])
	if err == nil {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		err = e.Encode(b)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sbom: error:", err)
		os.Exit(1)
	}
}

// describe returns the bill of materials of the programs, which must belong to one module.
func describe(programs []string) (*bom, error) {
	b := &bom{Format: "CycloneDX", Spec: "1.6", Version: 1}
	libraries := map[string]component{}
	for _, path := range programs {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil, err
		}
		p, err := program(path, info)
		if err != nil {
			return nil, err
		}
		b.Metadata.Component = own(module("application", &info.Main))
		needs := dependency{Ref: p.Ref}
		for _, l := range linked(info) {
			libraries[l.Ref] = l
			needs.On = append(needs.On, l.Ref)
		}
		b.Components = append(b.Components, p)
		b.Dependencies = append(b.Dependencies, needs)
	}
	for _, l := range libraries {
		b.Components = append(b.Components, l)
	}
	// Programs come before libraries, both sorted by name.
	slices.SortFunc(b.Components, func(x, y component) int {
		return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.Ref, y.Ref))
	})
	return b, nil
}

// program returns the component of a program, identified by its hash.
func program(path string, info *debug.BuildInfo) (component, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return component{}, err
	}
	sum := sha256.Sum256(text)
	name := filepath.Base(path)
	return own(component{
		Type: "application", Ref: name, Name: name, Version: info.Main.Version,
		Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}},
	}), nil
}

// linked returns the modules in a program. It also returns Go's standard library, because scanners look for bugs of
// this library, too.
func linked(info *debug.BuildInfo) []component {
	libraries := []component{module("library", &debug.Module{Path: "stdlib",
		Version: strings.TrimPrefix(info.GoVersion, "go")})}
	for _, m := range info.Deps {
		libraries = append(libraries, module("library", cmp.Or(m.Replace, m)))
	}
	return libraries
}

// module returns the component of a Go module: https://github.com/package-url/purl-spec, type golang.
func module(kind string, m *debug.Module) component {
	purl := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	return component{Type: kind, Ref: purl, Name: m.Path, Version: m.Version, PURL: purl}
}

// own adds the license of this project to a component.
func own(c component) component {
	var l licensing
	l.License.ID = "Apache-2.0"
	c.Licenses = []licensing{l}
	return c
}
