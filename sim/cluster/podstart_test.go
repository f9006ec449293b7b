// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// ptpConflist is the smallest pod network with the CNI project's own plugins.
const ptpConflist = `{"cniVersion": "1.0.0", "name": "ptp", "plugins": [
	{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.88.0.0/16"}}]}`

const (
	oneByOne = 100
	atOnce   = 30
)

// podStart measures the time from kubelet's request for a sandbox to the start of the container, and the plugins' share
// of this time. It starts pods in turn on a node with our plugins and on a node with the plugin ptp. The node with our
// plugins has warm addresses.
func (w *world) podStart(t *testing.T) {
	names := []string{"ours", "ptp"}
	warm := object{"min": oneByOne + atOnce + 10}
	o := cluster.NodeOptions{Conflist: edited(t, "10-cni-ipvlan-vpc-k8s", object{"warm": warm}), Type: "m5.4xlarge",
		MaxPods: 200, LogLevel: "debug"}
	n := w.join(t, names[0], o)
	_, err := n.Run(t.Context(), tool, "warm")
	check(t, err)
	o.Conflist = []byte(ptpConflist)
	w.join(t, names[1], o)
	for _, name := range names {
		w.startPods(t, name, "first", 1) // the first pod of a node reads programs from the disk
	}
	for i := range oneByOne {
		for _, name := range names {
			w.startPods(t, name, fmt.Sprint("single-", i), 1)
		}
	}
	for _, name := range names {
		w.startPods(t, name, "burst", atOnce)
		_, err := w.Kubectl(t.Context(), "wait", "--for=delete", "--timeout", patience.String(), "pod", "-l",
			"app="+name+"-burst")
		check(t, err) // so that the two nodes do not start pods at the same time
	}
	w.compareStarts(t, names, "-single-", oneByOne)
	w.compareStarts(t, names, "-burst-", atOnce)
}

func (w *world) compareStarts(t *testing.T, nodes []string, part string, want int) {
	t.Helper()
	for _, name := range nodes {
		starts := readStarts(t, filepath.Join(w.logs, name+"-containerd.log"), part)
		if len(starts) != want {
			t.Errorf("the log of %s has the starts of %d pods with %s, want %d", name, len(starts), part, want)
			continue
		}
		w.figures = append(w.figures, fmt.Sprintf("pod start, %3d pods %-8s %-4s  %s", want,
			strings.Trim(part, "-")+",", name, summary(starts)))
	}
}

// startPods starts pods on a node, waits until all run, and begins to delete them.
func (w *world) startPods(t *testing.T, node, name string, n int) {
	t.Helper()
	label := node + "-" + name
	var pods []object
	for i := range n {
		p := podOn(fmt.Sprintf("%s-%d", label, i), node,
			podSpec(object{"name": "pause", "image": cluster.Pause, "imagePullPolicy": "Never"}))
		p["metadata"].(object)["labels"] = labels(label)
		pods = append(pods, p)
	}
	list := must(json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": pods}))
	check(t, w.Apply(t.Context(), string(list)))
	_, err := w.Kubectl(t.Context(), "wait", "--for=condition=Ready", "--timeout", patience.String(), "pod", "-l",
		"app="+label)
	check(t, err)
	_, err = w.Kubectl(t.Context(), "delete", "--wait=false", "pod", "-l", "app="+label)
	check(t, err)
}

// startTimes has the duration of a pod's start, and how long the plugins took during this start.
type startTimes struct{ all, plugins time.Duration }

// Lines of containerd's log about the start of a pod.
var (
	logLine       = regexp.MustCompile(`^time="([^"]+)" level=\w+ msg="((?:[^"\\]|\\.)*)"(?:.*podsandboxid=(\w+))?`)
	sandboxAsked  = regexp.MustCompile(`^RunPodSandbox for name:\\"([^\\]+)\\"[^>]*$`)
	sandboxMade   = regexp.MustCompile(`^RunPodSandbox for name:\\"([^\\]+)\\".* returns sandbox id \\"(\w+)\\"$`)
	containerMade = regexp.MustCompile(
		`^CreateContainer within sandbox \\"(\w+)\\".* returns container id \\"(\w+)\\"$`)
	containerRuns = regexp.MustCompile(`^StartContainer for \\"(\w+)\\" returns successfully$`)
)

// A follower follows pods through the log of containerd.
type follower struct {
	asked   map[string]time.Time // by the pod's name
	began   map[string]time.Time // when the plugins began, by sandbox
	took    map[string]time.Duration
	pod     map[string]string     // by sandbox
	sandbox map[string]string     // by container
	starts  map[string]startTimes // by the pod's name
}

func (f *follower) line(at time.Time, msg, sandbox string) {
	switch {
	case msg == "begin cni setup":
		f.began[sandbox] = at
	case strings.HasPrefix(msg, "cni result:"):
		f.took[sandbox] = at.Sub(f.began[sandbox])
	case sandboxMade.MatchString(msg):
		m := sandboxMade.FindStringSubmatch(msg)
		f.pod[m[2]] = m[1]
	case sandboxAsked.MatchString(msg):
		f.asked[sandboxAsked.FindStringSubmatch(msg)[1]] = at
	case containerMade.MatchString(msg):
		m := containerMade.FindStringSubmatch(msg)
		f.sandbox[m[2]] = m[1]
	case containerRuns.MatchString(msg):
		s := f.sandbox[containerRuns.FindStringSubmatch(msg)[1]]
		f.starts[f.pod[s]] = startTimes{at.Sub(f.asked[f.pod[s]]), f.took[s]}
	}
}

// readStarts reads from containerd's log the starts of the pods whose names contain part.
func readStarts(t *testing.T, log, part string) (starts []startTimes) {
	t.Helper()
	b, err := os.ReadFile(log)
	check(t, err)
	f := follower{map[string]time.Time{}, map[string]time.Time{}, map[string]time.Duration{}, map[string]string{},
		map[string]string{}, map[string]startTimes{}}
	for line := range strings.Lines(string(b)) {
		m := logLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, m[1])
		check(t, err)
		f.line(at, m[2], m[3])
	}
	for pod, s := range f.starts {
		if strings.Contains(pod, part) {
			starts = append(starts, s)
		}
	}
	return starts
}

// summary has the 50th and 99th percentiles of the pods' starts and of the plugins' times, and the plugins' share.
func summary(starts []startTimes) string {
	var all, plugins []time.Duration
	var sum, share time.Duration
	for _, s := range starts {
		all, plugins = append(all, s.all), append(plugins, s.plugins)
		sum, share = sum+s.all, share+s.plugins
	}
	return fmt.Sprintf("container started after p50 %s p99 %s; plugins p50 %s p99 %s, %.0f %% of it",
		percentile(all, 50), percentile(all, 99), percentile(plugins, 50), percentile(plugins, 99),
		100*share.Seconds()/sum.Seconds())
}

func percentile(values []time.Duration, p int) time.Duration {
	slices.Sort(values)
	return values[(len(values)*p+99)/100-1].Round(time.Millisecond)
}
