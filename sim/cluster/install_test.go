// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// The container image for this machine, and the manifest that installs our programs on a node without systemd.
const (
	layout   = "../../.cache/cluster/image"
	manifest = "../../packaging/kubernetes/maintain.yaml"
	ourImage = "localhost/cni-ipvlan-vpc-k8s"
)

// installsItself checks a new node without our programs. The shipped manifest and the container image install the
// plugins, and pods run. The second container of the manifest runs a collection. Finally, the pods end, and the removal
// leaves none of our files on the node.
func (w *world) installsItself(t *testing.T) {
	n, err := w.AddNode(t.Context(), "bare", cluster.NodeOptions{Bare: true, MaxPods: 20})
	if n != nil {
		t.Cleanup(func() { check(t, w.RemoveNode(context.Background(), n)) })
	}
	check(t, err)
	check(t, n.ImportLayout(t.Context(), layout, ourImage))
	before := ownFiles(t, n)
	await(t, func() error {
		out, err := w.Kubectl(t.Context(), "get", "node", n.Name, "-o",
			`jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && out != "False" {
			err = fmt.Errorf("a node without a conflist is Ready: %s", out)
		}
		return err
	})
	objects := w.manifest(t, n, "install")
	check(t, w.Apply(t.Context(), objects))
	t.Cleanup(func() {
		w.Kubectl(context.Background(), "delete", "--namespace=kube-system", "--ignore-not-found",
			"daemonset/"+suiteName,
			"configmap/"+suiteName)
	})
	w.rolledOutDaemons(t)
	check(t, w.NodesReady(t.Context()))
	w.apply(t, podOn("one", n.Name, server()), podOn("two", n.Name, server()), podOn("far", "node1", server()))
	one, two, far := w.ready(t, "one", 1)[0], w.ready(t, "two", 1)[0], w.ready(t, "far", 1)[0]
	w.sees(t, one, "http", serverOf(two), one.addr)
	w.sees(t, far, "http", serverOf(one), far.addr)
	w.sees(t, one, "http", serverOf(far), one.addr)
	await(t, func() error { // until the second container has run a collection
		_, err := os.Stat(n.File("/run/cni-ipvlan-vpc-k8s/collected"))
		return err
	})

	// The removal waits for the end of the pods.
	check(t, w.Apply(t.Context(), w.manifest(t, n, "uninstall")))
	await(t, func() error {
		out, err := w.Kubectl(t.Context(), "logs", "--namespace=kube-system",
			"--selector=app.kubernetes.io/name="+suiteName,
			"--container=install", "--tail=5")
		if err == nil && !strings.Contains(out, "the node has pods with addresses from our plugins") {
			err = fmt.Errorf("what the removal says while there are pods: %s", out)
		}
		return err
	})
	if _, err := os.Stat(n.File("/opt/cni/bin/" + suiteName)); err != nil {
		t.Errorf("while there are pods: %v", err)
	}
	w.remove(t, "pod", "one")
	w.remove(t, "pod", "two")
	w.rolledOutDaemons(t)
	if after := ownFiles(t, n); !slices.Equal(before, after) {
		t.Errorf("files of the node\nbefore: %q\nafter:  %q", before, after)
	}
}

const suiteName = "cni-ipvlan-vpc-k8s"

// manifest returns the shipped manifest with the changes that an operator makes for a node. The operator replaces the
// words in CAPITALS, sets tags and security groups of the simulated VPC, and selects the node. command is "install" or
// "uninstall".
func (w *world) manifest(t *testing.T, n *cluster.Node, command string) string {
	t.Helper()
	text := string(must(os.ReadFile(manifest)))
	var index struct {
		Manifests []struct{ Annotations map[string]string }
	}
	check(t, json.Unmarshal(must(os.ReadFile(filepath.Join(layout, "index.json"))), &index))
	changes := []string{
		"REGISTRY/cni-ipvlan-vpc-k8s:VERSION", ourImage + ":" +
			index.Manifests[0].Annotations["org.opencontainers.image.ref.name"],
		"kubernetes.io/os: linux", "kubernetes.io/hostname: " + n.Name,
		"registry.k8s.io/pause:3.10.2", cluster.Pause,
		"--every=5m", "--every=5s",
		"imagePullPolicy: IfNotPresent", "imagePullPolicy: Never\n          env: " + environment(n),
	}
	if command == "uninstall" {
		changes = append(changes, "- --conflist=/config/10-cni-ipvlan-vpc-k8s.conflist", "- --uninstall")
	}
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(text, changes[i]) {
			t.Fatalf("%s has no %s", manifest, changes[i])
		}
		text = strings.ReplaceAll(text, changes[i], changes[i+1])
	}
	return text
}

// environment returns the environment variables for the simulated EC2, as JSON. JSON is also valid YAML.
func environment(n *cluster.Node) string {
	var env []object
	for _, e := range n.Environ() {
		if name, value, _ := strings.Cut(e, "="); strings.HasPrefix(name, "AWS_") {
			env = append(env, object{"name": name, "value": value})
		}
	}
	return string(must(json.Marshal(env)))
}

// rolledOutDaemons waits until the pod of the DaemonSet is ready, after a change of the manifest.
func (w *world) rolledOutDaemons(t *testing.T) {
	t.Helper()
	await(t, func() error {
		_, err := w.Kubectl(t.Context(), "rollout", "status", "--namespace=kube-system", "--timeout=60s",
			"daemonset/"+suiteName)
		if err != nil {
			out, _ := w.Kubectl(t.Context(), "describe", "pods", "--namespace=kube-system",
				"--selector=app.kubernetes.io/name="+suiteName)
			logs, _ := w.Kubectl(t.Context(), "logs", "--namespace=kube-system", "--selector=app.kubernetes.io/name="+
				suiteName, "--container=install", "--tail=20")
			err = fmt.Errorf("%w\n%s\n%s", err, out, logs)
		}
		return err
	})
}

// ownFiles returns the names and sizes of all files in the node's directories into which our programs write.
func ownFiles(t *testing.T, n *cluster.Node) []string {
	t.Helper()
	out, err := exec.Command("find", n.File("/opt"), n.File("/etc/cni"), n.File("/etc/systemd"),
		n.File("/usr/local/bin"), "!", "-type", "d", "-printf", "%P %s\n").Output()
	check(t, err)
	files := strings.Split(string(out), "\n")
	slices.Sort(files)
	return files
}
