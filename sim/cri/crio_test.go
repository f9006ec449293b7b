// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// crio has one network for all pods. Each start of CRI-O may choose another network.
var crio = kind{
	program: "crio",
	configure: func(s *server, _ []string) map[string]string {
		return map[string]string{
			"crio.conf":   fmt.Sprintf(crioConfig, s.dir, s.programs),
			"policy.json": `{"default": [{"type": "insecureAcceptAnything"}]}`,
		}
	},
	args: func(s *server) []string {
		return []string{"--config", s.path("crio.conf"), "--config-dir", "", "--cni-config-dir", s.path(s.network)}
	},
	crowd:  5,
	leaves: []string{"root/vfs-containers/*", "run/vfs-containers/*"},
	stories: []story{
		{"STATUS", shipped, (*server).statusAtStart},
		{"a forgotten pod", shipped, (*server).forgottenPod},
		{"killed after an ADD", "last", (*server).killedAfterADD},
	},
}

// crioConfig limits CRI-O to its directory, and makes CRI-O not call iptables at its start. It keeps the default that a
// pod without containers has no process.
const crioConfig = `[crio]
root = '%[1]s/root'
runroot = '%[1]s/run'
storage_driver = 'vfs'
log_dir = '%[1]s/logs'
version_file = '%[1]s/version'
clean_shutdown_file = '%[1]s/clean'
[crio.api]
listen = '%[1]s/socket'
[crio.image]
pause_image = '` + pauseImage + `'
signature_policy = '%[1]s/policy.json'
signature_policy_dir = '%[1]s/policies'
insecure_registries = ['` + imageHost + `']
[crio.network]
plugin_dirs = ['%[1]s/bin']
[crio.nri]
enable_nri = false
[crio.runtime]
log_level = 'warn'
cgroup_manager = 'cgroupfs'
pinns_path = '%[2]s/pinns'
namespaces_dir = '%[1]s/namespaces'
container_exits_dir = '%[1]s/exits'
container_attach_socket_dir = '%[1]s/attach'
hooks_dir = []
disable_hostport_mapping = true
default_runtime = 'runc'
[crio.runtime.runtimes.runc]
runtime_path = '%[2]s/runc'
runtime_root = '%[1]s/runc'
monitor_path = '/usr/bin/conmon'
monitor_cgroup = 'pod'
`

// statusAtStart checks that CRI-O repeats STATUS until the plugins are ready for the first time. Until then, the
// network is not ready.
func (s *server) statusAtStart(t *testing.T) {
	s.kill(t)
	undo := s.withoutProgram(t)
	s.start(t)
	await(t, func() error {
		if ok, message := s.networkReady(t); ok || strings.Contains(message, "uninitialized") {
			return fmt.Errorf("without it the network is ready %t: %s", ok, message)
		}
		return nil
	})
	undo()
	s.ready(t)
}

// forgottenPod simulates a CRI-O that was killed after the plugins' answer, before CRI-O had recorded the pod.
// forgottenPod kills CRI-O, and removes CRI-O's record of the pod. CRI-O never removes the namespaces and the cgroup of
// this pod. But CRI-O calls GC after the first successful STATUS, and GC ends the pod's lease. Another pod, which CRI-O
// knows, keeps its address and links.
func (s *server) forgottenPod(t *testing.T) {
	pods := s.pods(t, "forgotten", 2, nil)
	forgotten, kept := pods[0], pods[1:]
	s.kill(t)
	if err := os.Remove(s.path("root/vfs-containers/" + forgotten.id + "/userdata/config.json")); err != nil {
		t.Fatal(err)
	}
	undo := s.withoutProgram(t) // STATUS fails
	s.start(t)
	if n := len(s.leases(t)); n != len(pods)*s.families {
		t.Errorf("before its first STATUS succeeds there are %d leases of %d pods", n, len(pods))
	}
	undo()
	s.ready(t)
	if known := s.sandboxes(t); !slices.Equal(known, []string{kept[0].id}) {
		t.Errorf("CRI-O knows the sandboxes %v, want %s", known, kept[0].id)
	}
	if n := len(s.leases(t)); n != s.families {
		t.Errorf("there are %d leases, want those of one pod", n)
	}
	if left := nltest.Dump(t, forgotten.NS); strings.Contains(left, "eth") {
		t.Errorf("the pod's namespace has\n%s", left)
	}
	s.connected(t, kept)
	s.endPods(t, kept)
}
