// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// ErrInUse means that pods of the node have addresses from our plugins. The runtime needs the plugins for the DELs of
// these pods.
var ErrInUse = errors.New("the node has pods with addresses from our plugins")

// metricsFiles are the files in which our units write metrics by default.
var metricsFiles = []string{
	"/var/lib/node_exporter/textfile_collector/cni_ipvlan_vpc.prom",
	"/var/lib/node_exporter/textfile_collector/cni_ipvlan_vpc_doctor.prom",
}

// Uninstall removes everything that Install may have installed, and all other conflists with a plugin of ours. It also
// removes the metrics, because node_exporter would export their last values for ever. It does not remove the state in
// /run. It always returns what it has removed, even with an error.
//
// If checkUnused returns an error, Uninstall removes nothing. It calls checkUnused under the lock, because pods may
// start while it waits for the lock.
func (i *Installation) Uninstall(ctx context.Context, checkUnused func() error) ([]Change, error) {
	files, err := i.nodeFiles()
	if err != nil {
		return nil, err
	}
	slices.Reverse(files)
	return i.runLocked(ctx, func() error {
		if err := checkUnused(); err != nil {
			return err
		}
		if err := i.removeConflists(); err != nil {
			return err
		}
		if err := i.stopUnits(ctx, files); err != nil {
			return err
		}
		for _, f := range append(i.enabledLinks(files), files...) {
			if err := i.removeFile(f.path); err != nil {
				return err
			}
			i.removeEmptyDir(path.Dir(f.path))
		}
		for _, f := range metricsFiles {
			if err := i.removeFile(f); err != nil {
				return err
			}
		}
		if err := i.removeEnvironment(); err != nil {
			return err
		}
		if i.Systemd && !i.Check && systemdRuns() {
			return systemctl(ctx, "daemon-reload")
		}
		return nil
	})
}

// removeConflists removes our conflists, and unfinished conflists of killed runs.
func (i *Installation) removeConflists() error {
	ours, err := i.conflists()
	if i.Conflist != nil {
		ours = append(ours, filepath.Join(i.ConfDir, i.Conflist.Name))
	}
	for _, f := range ours {
		warnOfOthers(f)
		err = errors.Join(err, i.removeFile(f))
	}
	return err
}

// enabledLinks returns the symbolic links that enable units of ours. It also returns those that an operator has made.
func (i *Installation) enabledLinks(units []nodeFile) (links []nodeFile) {
	for _, unit := range enableable(units) {
		found, err := filepath.Glob(path.Join(unitDir, "*.wants", unit))
		if err != nil {
			panic(err) // the pattern is always valid
		}
		for _, f := range found {
			links = append(links, nodeFile{path: f})
		}
	}
	return links
}

// InUse returns ErrInUse if the registry or the kernel shows that pods of the node have addresses. If InUse cannot ask
// the registry or the kernel, it returns another error. The argument "host" is the node's namespace. The caller must
// open it before it calls EnterRoot, because the new root directory may have no /proc. lastHint is the last part of
// ErrInUse's hint.
func InUse(host *nl.NS, lastHint string) error {
	s, err := cli.ViewRegistry()
	if err != nil {
		return err
	}
	if s.Leases.Len() > 0 {
		var pods []string
		for a, l := range s.Leases.All() {
			who := l.Key.String()
			// The registry does not know the attachment: the registry was rebuilt after a loss, or the original
			// project's plugins have added this pod.
			if l.Key == (registry.Key{}) {
				who = cmp.Or(l.NetNS, "a pod")
			}
			pods = append(pods, cmp.Or(l.PodOf(), who)+" has "+a.String())
		}
		slices.Sort(pods)
		return inUseError(strings.Join(pods, ", "), lastHint)
	}
	if err = host.Vacant(); errors.Is(err, nl.ErrPods) {
		return inUseError(err.Error(), lastHint)
	}
	return err
}

func inUseError(why, lastHint string) error {
	return cli.Hint(fmt.Errorf("nothing is removed, because %w, and the runtime needs the plugins to delete these "+
		"pods: %s", ErrInUse, why),
		"drain the node. For pods of DaemonSets, delete the DaemonSets. Or install the conflist of the next network "+
			"plugin, under a name that sorts before the name of our conflist. Then delete these pods. "+
			"When the pods are gone, run "+cli.Name+" registry-gc --free-after=15m, and try again"+lastHint)
}
