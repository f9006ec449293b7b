// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// containerd has a handler for each network. A pod that names no handler gets the handler "shipped".
var containerd = kind{
	program:  "containerd",
	handlers: true,
	configure: func(s *server, networks []string) map[string]string {
		config := fmt.Sprintf(containerdConfig, s.dir, s.programs)
		for _, n := range networks {
			config += fmt.Sprintf(containerdHandler, s.dir, s.programs, n)
		}
		return map[string]string{"config.toml": config, "registries/_default/hosts.toml": mirror}
	},
	args: func(s *server) []string {
		return []string{"--config", s.path("config.toml"), "--root", s.path("root"), "--state", s.path("state"),
			"--address", s.path("socket")}
	},
	crowd:   2,
	leaves:  []string{"state/*/*/*", "shims/*"},
	stories: []story{{"STATUS", shipped, (*server).statusAnyTime}},
	keeps:   true,
}

// containerdConfig limits containerd to its directory. With restrict_oom_score_adj, no container gets a lower OOM score
// adjustment than containerd, which is not allowed everywhere. After a restart, containerd waits for a pod's shim
// longer than the default of two seconds.
const containerdConfig = `version = 4
debug = {level = 'warn'}
[timeouts]
'io.containerd.timeout.task.state' = '2m'
'io.containerd.timeout.shim.load' = '2m'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '` + pauseImage + `'
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = '%[1]s/registries'
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
cni = {bin_dirs = ['%[1]s/bin', '%[2]s'], conf_dir = '%[1]s/shipped'}
[plugins.'io.containerd.nri.v1.nri']
disable = true
[plugins.'io.containerd.internal.v1.opt']
path = '%[1]s/opt'
[plugins.'io.containerd.shim.v1.manager']
socket_dir = '%[1]s/shims'
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'shipped'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]
`

// configureV3 returns the configuration of containerd 2.1 and 2.2, which do not support version 4 of the format.
func configureV3(s *server, networks []string) map[string]string {
	files := containerd.configure(s, networks)
	files["config.toml"] = strings.Replace(files["config.toml"], "version = 4", "version = 3", 1)
	return files
}

// configureV1 returns the configuration of containerd 1.
func configureV1(s *server, _ []string) map[string]string {
	return map[string]string{"config.toml": fmt.Sprintf(containerdV1Config, s.dir, s.programs)}
}

const containerdV1Config = `version = 2
[debug]
level = 'warn'
[timeouts]
'io.containerd.timeout.task.state' = '2m'
'io.containerd.timeout.shim.load' = '2m'
[plugins.'io.containerd.grpc.v1.cri']
sandbox_image = '` + pauseImage + `'
restrict_oom_score_adj = true
[plugins.'io.containerd.grpc.v1.cri'.cni]
bin_dir = '%[1]s/bin'
conf_dir = '%[1]s/shipped'
[plugins.'io.containerd.nri.v1.nri']
disable = true
[plugins.'io.containerd.internal.v1.opt']
path = '%[1]s/opt'
[plugins.'io.containerd.grpc.v1.cri'.containerd]
default_runtime_name = 'shipped'
[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.shipped]
runtime_type = 'io.containerd.runc.v2'
options = {BinaryName = '%[2]s/runc'}
`

// mirror makes the node the registry of all images.
const mirror = "[host.'http://" + imageHost + "']\n"

const containerdHandler = `%[3]s = {runtime_type = 'io.containerd.runc.v2', cni_conf_dir = '%[1]s/%[3]s', options = {BinaryName = '%[2]s/runc'}}
`

// statusAnyTime checks that containerd calls STATUS each time kubelet asks whether the network is ready.
func (s *server) statusAnyTime(t *testing.T) {
	if ok, message := s.networkReady(t); !ok {
		t.Errorf("the network is not ready: %s", message)
	}
	defer s.withoutProgram(t)()
	if ok, message := s.networkReady(t); ok || !strings.Contains(message, grow) {
		t.Errorf("without it the network is ready %t: %q", ok, message)
	}
}

const grow = "cni-ipvlan-vpc-k8s-grow"

// withoutProgram removes the program grow, which the plugin needs. The function undo restores the program.
func (s *server) withoutProgram(t *testing.T) (undo func()) {
	t.Helper()
	here, away := filepath.Join(s.path("bin"), grow), s.path(grow)
	rename := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	rename(here, away)
	return func() { rename(away, here) }
}
