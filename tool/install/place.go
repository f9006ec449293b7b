// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package install

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// A Place has the directories for the parts of the suite on a node.
type Place struct {
	Platform string // one of Platforms
	BinDir   string // directory of plugins: the runtime's bin_dir
	ConfDir  string // directory of conflists: the runtime's conf_dir
	ToolDir  string // directory of the tool; "": install no tool
	Systemd  bool   // install units
}

// localBin is the directory in which administrators put programs (hier(7)).
const localBin = "/usr/local/bin"

// A platform is a kind of node. It has a Place, and a function that reports whether this node is of this kind.
type platform struct {
	Place
	isHere func() bool
}

// platforms are all platforms that install knows, in the order in which PlaceOf tries them. The last one fits every
// node.
//
// Sources and reasons:
//
// k3s has its own directories (https://docs.k3s.io/networking/multus-ipams, cniBinDir and cniConfDir).
//
// Talos has no systemd. Its system is read-only, with overlays at /opt and /etc/cni
// (https://docs.siderolabs.com/talos).
//
// On Bottlerocket, /opt/cni and /etc/cni are writable. All other directories in / and /usr are read-only, and /etc is
// empty after a boot. Bottlerocket allows only its own units in its systemd.
//
// On Talos and Bottlerocket, the tool is in the directory of the plugins, where operators find it from a debug
// container (kubectl debug node/NODE).
//
// On Flatcar, /usr is read-only, and /opt/bin is for the administrator.
//
// For the directories of CRI-O, see plugin_dirs and network_dir in crio.conf(5). The containerd in EKS's AMI uses the
// same directories as most runtimes.
var platforms = []platform{
	{Place{"k3s", conf.K3sBinDir, conf.K3sDir, localBin, true}, hasPath("/var/lib/rancher/k3s/agent")},
	{Place{"talos", binDir, confDir, binDir, false}, runsOS("talos")},
	{Place{"bottlerocket", binDir, confDir, binDir, false}, runsOS("bottlerocket")},
	{Place{"flatcar", binDir, confDir, "/opt/bin", true}, runsOS("flatcar")},
	{Place{"eks", binDir, confDir, localBin, true}, hasPath("/etc/eks")},
	{Place{"cri-o", binDir, confDir, localBin, true}, hasPath("/etc/crio")},
	{Place{"containerd", binDir, confDir, localBin, true}, func() bool { return true }},
}

// The directories of most runtimes.
const (
	binDir  = conf.BinDir
	confDir = conf.Dir
)

// Platforms returns the names of all platforms.
func Platforms() []string {
	var names []string
	for _, p := range platforms {
		names = append(names, p.Platform)
	}
	return names
}

// PlaceOf returns the place of the platform that has this name, or of this node's platform if name is empty. If the
// node has no systemd, the place's field Systemd is false.
func PlaceOf(name string) (Place, error) {
	i := slices.IndexFunc(platforms, func(p platform) bool { return p.Platform == name || name == "" && p.isHere() })
	if i < 0 {
		return Place{}, fmt.Errorf("--platform %q: want one of %s", name, strings.Join(Platforms(), ", "))
	}
	place := platforms[i].Place
	place.Systemd = place.Systemd && (hasPath("/usr/lib/systemd/systemd")() || hasPath("/lib/systemd/systemd")())
	return place, nil
}

func hasPath(path string) func() bool {
	return func() bool {
		_, err := os.Stat(path)
		return err == nil
	}
}

// runsOS returns a function that reports whether the node's operating system has this ID (os-release(5)).
func runsOS(id string) func() bool {
	return func() bool {
		for _, file := range []string{"/etc/os-release", "/usr/lib/os-release"} {
			if f, err := os.Open(file); err == nil {
				defer f.Close()
				return idOf(f) == id
			}
		}
		return false
	}
}

func idOf(f *os.File) string {
	for s := bufio.NewScanner(f); s.Scan(); {
		if id, ok := strings.CutPrefix(s.Text(), "ID="); ok {
			return strings.Trim(id, `"'`)
		}
	}
	return ""
}
