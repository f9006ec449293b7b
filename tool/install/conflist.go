// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package install

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// A Conflist is the configuration that a node gets.
type Conflist struct {
	Name string // file name in the directory of conflists
	Text []byte
}

// ReadConflist reads a conflist from a file.
func ReadConflist(file string) (*Conflist, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the conflist of --conflist: %w", err)
	}
	return &Conflist{filepath.Base(file), text}, nil
}

// autoHostInterface matches the key hostInterface with the value "auto". With this value, one conflist works on nodes
// whose boot ENIs have links with different names. No link of a boot ENI has the name "auto", because udev and Linux
// name links by their kind or place.
var autoHostInterface = regexp.MustCompile(`("hostInterface"\s*:\s*)"auto"`)

// WantsHostInterface reports whether the conflist has the hostInterface "auto".
func (c *Conflist) WantsHostInterface() bool { return autoHostInterface.Match(c.Text) }

// SetHostInterface puts the name of the boot ENI's link into the conflist.
func (c *Conflist) SetHostInterface(link string) {
	c.Text = autoHostInterface.ReplaceAll(c.Text, fmt.Appendf(nil, "${1}%q", link))
}

// otherNames returns the node's files that have the same conflist as c, but another name. The comparison ignores
// plugins that other programs may have added.
func (c *Conflist) otherNames(p Place) (old []string) {
	for _, f := range conf.Load(p.ConfDir).Files {
		if filepath.Base(f.Path) == c.Name || !slices.ContainsFunc(f.Lists, isOurs) {
			continue
		}
		has, err := os.ReadFile(f.Path)
		text, _, failed := c.textWithAdded(has)
		if err == nil && failed == nil && sameJSON(has, text) {
			old = append(old, f.Path)
		}
	}
	return old
}

// checkMistakes returns an error with all mistakes of the conflist, except the tolerated mistakes. It only warns of
// these. If a tolerated mistake were an error, a node that already has such a conflist could not get new releases.
func (c *Conflist) checkMistakes(p Place) error {
	file := filepath.Join(p.ConfDir, c.Name)
	found, err := conf.MistakesIn(file, c.Text, p.BinDir, c.otherNames(p), pluginPrograms...)
	if err != nil {
		return err
	}
	var mistakes error
	count, hint := 0, "correct the conflist; "+cli.Name+" validate finds the same mistakes on any machine"
	for _, m := range found {
		if m.Tolerated {
			slog.Warn("the conflist has a mistake, which does not prevent the installation: " + m.String())
			continue
		}
		mistakes = errors.Join(mistakes, errors.New(m.String()))
		if count++; m.Against != "" {
			hint = "if this conflist is a new version of " + m.Against + ", delete that file on the node, or install " +
				"the conflist under the name of that file. Otherwise correct the conflist"
		}
	}
	if count == 0 {
		return nil
	}
	return cli.Hint(fmt.Errorf("%w\nnothing is installed, because the conflist has %s", mistakes,
		cli.Count(count, "mistake")), hint)
}

// putConflist writes the conflist of the operator. Then it removes other files of the node that have the same conflist.
// So even if this process is killed, the runtime has a conflist at every moment. If the operator gives no conflist, and
// the node has no conflist of ours, putConflist warns.
func (i *Installation) putConflist() error {
	if i.Conflist == nil {
		if ours, err := i.conflists(); err == nil && len(ours) == 0 {
			slog.Warn("the node has no conflist of ours, so the runtime does not use the plugins. Copy a conflist "+
				"into this directory, as the last step of the installation",
				"directory", i.ConfDir)
		}
		return nil
	}
	target := filepath.Join(i.ConfDir, i.Conflist.Name)
	old := i.Conflist.otherNames(i.Place)
	from := target // textFor keeps the plugins that other programs have added to the file at this path
	if len(old) > 0 && !(nodeFile{path: target}).exists() {
		from = old[0]
	}
	text, err := i.Conflist.textFor(from)
	if err != nil {
		return err
	}
	if err := i.putFile(nodeFile{path: target, text: text, mode: 0o644}); err != nil {
		return err
	}
	for _, f := range old {
		if err := i.removeFile(f); err != nil {
			return err
		}
	}
	before := func(f conf.File) bool { return f.Path < target && !f.Multus && !slices.Contains(old, f.Path) }
	files := conf.Load(i.ConfDir).Files
	if first := slices.IndexFunc(files, before); first >= 0 {
		slog.Warn("the runtime uses another file and not our conflist, because the name of that file sorts first: "+
			"remove that file, or rename our conflist",
			"used", files[first].Path, "ours", target)
	}
	return nil
}

// conflists returns the paths of the node's conflists that have a plugin of ours.
func (i *Installation) conflists() (ours []string, err error) {
	all := conf.Load(i.ConfDir)
	if errors.Is(all.Unlisted, fs.ErrNotExist) {
		return nil, nil
	}
	for _, f := range all.Files { // a file that Load cannot read does not count as ours
		if slices.ContainsFunc(f.Lists, isOurs) {
			ours = append(ours, f.Path)
		}
	}
	return ours, all.Unlisted
}

// isOurs reports whether the file of a list is ours, because it has a plugin of ours. A file of Multus does not count.
// A plugin in a drop-in does not count, either.
func isOurs(l conf.List) bool {
	return !l.Delegate && slices.ContainsFunc(l.Plugins, func(m conf.Member) bool {
		return m.File == "" && slices.Contains(conf.Types, m.Type)
	})
}
