// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/chain"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A Mistake says what is wrong with a configuration, and what would be right.
type Mistake struct {
	File  string `json:"file"`
	Where string `json:"where"` // the plugin; "" for the list itself
	Text  string `json:"mistake"`

	// Tolerated means that the network works in most cases, so the command install only warns of the mistake.
	Tolerated bool `json:"-"`
	// Against is the path of the file that File contradicts; "" if the mistake is in File alone.
	Against string `json:"-"`
}

func (m Mistake) String() string {
	if m.Where != "" {
		return m.File + ": " + m.Where + ": " + m.Text
	}
	return m.File + ": " + m.Text
}

// position returns the position of the plugin in its chain, or -1 for the list itself.
func (m Mistake) position() int {
	i := -1
	_, _ = fmt.Sscanf(m.Where, "plugins[%d]", &i) // if Where has another form, i stays -1
	return i
}

// A review looks for the mistakes in one file.
type review struct {
	List
	file           string
	delegate       bool       // the list is in a file of Multus
	siblings       *Conflists // conflists of the file's directory; nil: no runtime reads the directory
	comingPrograms []string   // programs that will be installed before the file
	mistakes       []Mistake
	against        string // the path of the file with which reviewNeighbours compares this file now
	text           []byte
}

// report adds a mistake, but only once, because two rules may find the same mistake.
func (r *review) report(where, format string, args ...any) {
	r.add(Mistake{File: r.file, Where: where, Text: fmt.Sprintf(format, args...)})
}

// reportLines adds a mistake for each line of err, which may be nil.
func (r *review) reportLines(where string, err error) {
	if err == nil {
		return
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		r.report(where, "%s", line)
	}
}

// reportTolerated adds a mistake of the list. The command install only warns of this mistake.
func (r *review) reportTolerated(format string, args ...any) {
	r.add(Mistake{File: r.file, Text: fmt.Sprintf(format, args...), Tolerated: true})
}

func (r *review) add(m Mistake) {
	m.Against = r.against
	if !slices.Contains(r.mistakes, m) {
		r.mistakes = append(r.mistakes, m)
	}
}

// Mistakes lists the mistakes in a file. It also compares the file with siblings, which has all files of the same
// directory. If no runtime reads the directory, siblings is nil. Mistakes returns an error if Load cannot read the
// file or the directory.
func (f File) Mistakes(binDir string, siblings *Conflists) ([]Mistake, error) {
	return (&review{file: f.Path, siblings: siblings}).readAndReview(f.text, binDir, f.unread)
}

// MistakesIn lists the mistakes in the text of a file that is not written yet (see also [File.Mistakes]). The file will
// replace the files at replacedPaths. Before that, the programs in comingPrograms will be put into binDir.
func MistakesIn(
	file string, b []byte, binDir string, replacedPaths []string, comingPrograms ...string,
) ([]Mistake, error) {
	siblings := Load(filepath.Dir(file))
	siblings.Files = slices.DeleteFunc(siblings.Files, func(f File) bool {
		return slices.Contains(replacedPaths, f.Path)
	})
	return (&review{file: file, comingPrograms: comingPrograms, siblings: siblings}).readAndReview(b, binDir, nil)
}

func (r *review) readAndReview(b []byte, binDir string, unread error) ([]Mistake, error) {
	if r.siblings != nil && !errors.Is(r.siblings.Unlisted, fs.ErrNotExist) {
		unread = cmp.Or(unread, r.siblings.Unlisted)
	}
	if unread != nil {
		return nil, unread
	}
	return r.reviewAll(b, binDir), nil
}

// reviewAll makes all reviews of a file, and returns the mistakes in the order of the plugins.
func (r *review) reviewAll(b []byte, binDir string) []Mistake {
	r.text = b
	var object map[string]json.RawMessage
	if err := json.Unmarshal(b, &object); err != nil || object == nil {
		r.report("", "%s", syntaxFault(b, err))
		return r.mistakes
	}
	if delegates := delegatesOf(b); delegates != nil {
		r.reviewDelegates(delegates, binDir)
		return r.mistakes
	}
	if !r.readList(b, object) {
		return r.mistakes
	}
	if object["plugins"] != nil {
		r.reviewKeys("", b, reflect.TypeFor[listKeys]())
	}
	r.reviewTypes(b, object)
	r.reviewRepeatedKeys(b)
	r.reviewHead()
	r.reviewChain()
	for i := range r.Plugins {
		r.reviewPlugin(i)
	}
	r.reviewPrograms(binDir)
	if r.siblings != nil {
		r.reviewNeighbours()
	}
	slices.SortStableFunc(r.mistakes, func(a, b Mistake) int { return cmp.Compare(a.position(), b.position()) })
	return r.mistakes
}

// reviewDelegates reviews the delegates in a file of Multus. It leaves out delegates without a plugin of ours.
func (r *review) reviewDelegates(all []json.RawMessage, binDir string) {
	for i, text := range all {
		if list, err := parseList(r.file, text); err == nil && !slices.ContainsFunc(Types, list.Chains) {
			continue
		}
		d := &review{file: r.file, delegate: true, comingPrograms: r.comingPrograms}
		for _, m := range d.reviewAll(text, binDir) {
			r.report(strings.TrimSpace(fmt.Sprintf("delegates[%d] %s", i, m.Where)), "%s", m.Text)
		}
	}
}

// syntaxFault returns why a file is no JSON object. The argument err is the error of encoding/json. For a syntax error,
// the result has the number of the line.
func syntaxFault(b []byte, err error) string {
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("line %d: %v", 1+bytes.Count(b[:min(int(s.Offset), len(b))], []byte("\n")), err)
	}
	return "the file is no JSON object"
}

// nameOf returns how a [Mistake] names the plugin at position i: by the position and the type of the plugin.
func (r *review) nameOf(i int) string {
	where := strings.TrimSpace(fmt.Sprintf("plugins[%d] %s", i, r.Plugins[i].Type))
	if file := r.Plugins[i].File; file != "" {
		where += " of " + file
	}
	return where
}

// configs are the types into which our plugins decode their configurations. These types alone define the keys and the
// values.
var configs = map[string]func() validator{
	TypeAll:    func() validator { return &chain.Config{} },
	TypeIPAM:   func() validator { return &lease.Config{} },
	TypeIPVlan: func() validator { return &ipvlan.Config{} },
	TypePTP:    func() validator { return &ptp.Config{} },
	TypeEgress: func() validator { return &egress.Config{} },
}

type validator interface{ Validate() error }

// configSections returns the structs that have the keys of a configuration.
func configSections(c validator) []any {
	if all, ok := c.(*chain.Config); ok {
		return all.Sections()
	}
	return []any{c}
}

// keyTypes returns the types of the structs that configSections returns.
func keyTypes(c validator) (types []reflect.Type) {
	for _, p := range configSections(c) {
		types = append(types, reflect.TypeOf(p).Elem())
	}
	return types
}

// reviewPlugin reviews the configuration of one of our plugins.
func (r *review) reviewPlugin(i int) {
	decoded, ours := configs[r.Plugins[i].Type]
	if !ours {
		return
	}
	where, c := r.nameOf(i), decoded()
	r.reviewKeys(where, r.Plugins[i].Raw, append(keyTypes(c), reflect.TypeFor[memberKeys]())...)
	r.reportLines(where, plugin.Decode(r.Plugins[i].Raw, c))
	for _, part := range configSections(c) {
		switch part := part.(type) {
		case *lease.Config:
			r.reviewPools(where, i, part)
			r.reviewEC2(where, part)
		case *egress.Config:
			r.reviewEgress(where, i, part)
		}
	}
}
