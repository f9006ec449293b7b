#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/containerd/nri v0.12.5, by which containerd and CRI-O ask plugins for changes of containers: limits.
#
# A good guess: each limit for which the API has a function gets into the container's OCI specification, and into updates. The README lists
# the reservation of memory, the swap limit and the swappiness as changes that a plugin can make, since containerd 1.7. The constant
# UnlimitedPidsLimit lifts the limit of processes. AddRlimit for a limit that the container has replaces it.
#
# What happens: Adjust writes the memory limit, and writes it as the swap limit, too, whatever the plugin has set. The reservation and the
# swappiness are lost. So a plugin that gives a container swap takes all swap from it: in OCI, the swap limit counts memory and swap.
# UnlimitedPidsLimit leaves the old limit. AddRlimit makes a second entry of the same type. For this, the runtime specification demands an
# error. In an update of a container, a plugin's limit of processes is lost. Adjust and UpdateContainer succeed. The script needs Go. Its
# program lies in a copy of the module, because it uses an internal package.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && go mod download -json github.com/containerd/nri@v0.12.5 | tee module | grep Version
cp -r "$(sed -n 's/.*"Dir": "\(.*\)",/\1/p' module)" nri && chmod -R u+w nri && mkdir nri/pkg/runtime-tools/probe && cd nri
cat >pkg/runtime-tools/probe/main.go <<'EOF'
package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/adaptation/builtin"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	"github.com/containerd/nri/pkg/runtime-tools/internal/ocigen"
	oci "github.com/opencontainers/runtime-spec/specs-go"
)

func adjust() {
	var s oci.Spec
	err := json.Unmarshal([]byte(`{"process": {"rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]}, "linux": {"resources": {"memory": {"limit": 1000000000, "swap": 1000000000}, "pids": {"limit": 100}}}}`), &s)
	a := &api.ContainerAdjustment{}
	a.SetLinuxMemoryLimit(2_000_000_000)
	a.SetLinuxMemorySwap(6_000_000_000)
	a.SetLinuxMemoryReservation(500_000_000)
	a.SetLinuxMemorySwappiness(10)
	a.SetLinuxPidLimits(api.UnlimitedPidsLimit)
	a.AddRlimit("RLIMIT_NOFILE", 4096, 4096)
	fmt.Println("Adjust, errors:", err, generate.SpecGenerator(ocigen.New(&s)).Adjust(a))
	all, _ := json.Marshal([]any{s.Linux.Resources, s.Process.Rlimits})
	fmt.Printf("  %s\n", all)
}

func update(_ context.Context, r *api.UpdateContainerRequest) (*api.UpdateContainerResponse, error) {
	u := &api.ContainerUpdate{}
	u.SetContainerId(r.Container.Id)
	u.SetLinuxPidLimits(500)
	u.SetLinuxCPUShares(512)
	return &api.UpdateContainerResponse{Update: []*api.ContainerUpdate{u}}, nil
}

func main() {
	adjust()
	first := func(ctx context.Context, f adaptation.SyncCB) error { _, err := f(ctx, nil, nil); return err }
	later := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	plugin := &builtin.BuiltinPlugin{Base: "plugin", Index: "01", Handlers: builtin.BuiltinHandlers{UpdateContainer: update}}
	runtime, err := adaptation.New("runtime", "1", first, later, adaptation.WithDisabledExternalConnections(),
		adaptation.WithPluginPath("none"), adaptation.WithPluginConfigPath("none"), adaptation.WithBuiltinPlugins(plugin))
	fmt.Println("UpdateContainer, errors:", err, runtime.Start())
	reply, _ := runtime.UpdateContainer(context.Background(), &api.UpdateContainerRequest{Pod: &api.PodSandbox{Id: "pod"}, Container: &api.Container{Id: "container"}})
	all, _ := json.Marshal(reply.Update[0].Linux.Resources)
	fmt.Printf("  %s\n", all)
}
EOF
go run -mod=mod ./pkg/runtime-tools/probe 2>../log >../seen || { cat ../log; exit 1; }
cat ../seen && diff - ../seen <<'EOF'
Adjust, errors: <nil> <nil>
  [{"memory":{"limit":2000000000,"swap":2000000000},"pids":{"limit":100}},[{"type":"RLIMIT_NOFILE","hard":1024,"soft":1024},{"type":"RLIMIT_NOFILE","hard":4096,"soft":4096}]]
UpdateContainer, errors: <nil> <nil>
  {"memory":{},"cpu":{"shares":{"value":512}}}
EOF
