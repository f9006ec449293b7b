#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/containerd/nri v0.12.5, by which containerd and CRI-O ask plugins for changes of a new container: removals.
#
# A good guess: two plugins must not change the same thing, except if the second plugin removes it first. The library's comments say that a
# removal together with an addition always means the addition. So a plugin that removes and then sets an annotation, or gives a network
# device another name in the pod, gets its own value. RemoveEnv removes a variable.
#
# What happens: Adjust puts removals and additions into the container's OCI specification in the random order of a map. In most runs, the
# removal comes last: the container then has no value, and the network device does not get into the pod. In other runs, it has the new
# value. For an annotation that the container has had before, one plugin is enough. RemoveEnv has no effect on a variable that the container
# has had before. All calls succeed. The script needs Go. Its program lies in a copy of the module, because it uses an internal package.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
go mod download -json github.com/containerd/nri@v0.12.5 | tee module | grep Version
cp -r "$(sed -n 's/.*"Dir": "\(.*\)",/\1/p' module)" nri && chmod -R u+w nri && mkdir nri/pkg/runtime-tools/probe && cd nri
cat >pkg/runtime-tools/probe/main.go <<'EOF'
package main

import (
	"context"
	"fmt"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/adaptation/builtin"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	"github.com/containerd/nri/pkg/runtime-tools/internal/ocigen"
	oci "github.com/opencontainers/runtime-spec/specs-go"
)

func plugin(index string, change func(*api.ContainerAdjustment)) *builtin.BuiltinPlugin {
	answer := func(context.Context, *api.CreateContainerRequest) (*api.CreateContainerResponse, error) {
		a := &api.ContainerAdjustment{}
		change(a)
		return &api.CreateContainerResponse{Adjust: a}, nil
	}
	return &builtin.BuiltinPlugin{Base: "plugin", Index: index, Handlers: builtin.BuiltinHandlers{CreateContainer: answer}}
}

func main() {
	one := plugin("01", func(a *api.ContainerAdjustment) { a.AddLinuxNetDevice("ens6", &api.LinuxNetDevice{Name: "net1"}) })
	two := plugin("02", func(a *api.ContainerAdjustment) {
		a.RemoveLinuxNetDevice("ens6")
		a.AddLinuxNetDevice("ens6", &api.LinuxNetDevice{Name: "net2"})
		a.RemoveAnnotation("own")
		a.AddAnnotation("own", "new")
		a.RemoveEnv("A")
	})
	first := func(ctx context.Context, f adaptation.SyncCB) error { _, err := f(ctx, nil, nil); return err }
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	runtime, err := adaptation.New("runtime", "1", first, update, adaptation.WithDisabledExternalConnections(),
		adaptation.WithPluginPath("none"), adaptation.WithPluginConfigPath("none"), adaptation.WithBuiltinPlugins(one, two))
	fmt.Println("errors:", err, runtime.Start())
	annotations, devices, env := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for range 300 {
		s := &oci.Spec{Annotations: map[string]string{"own": "old"}, Process: &oci.Process{Env: []string{"A=1", "B=2"}}, Linux: &oci.Linux{}}
		c := &api.Container{Id: "container", Annotations: map[string]string{"own": "old"}, Env: s.Process.Env}
		reply, err := runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{Pod: &api.PodSandbox{Id: "pod"}, Container: c})
		if err == nil {
			err = generate.SpecGenerator(ocigen.New(s)).Adjust(reply.Adjust)
		}
		annotations[fmt.Sprint(s.Annotations, err)] = true
		devices[fmt.Sprint(s.Linux.NetDevices, err)] = true
		env[fmt.Sprint(s.Process.Env, err)] = true
	}
	fmt.Printf("annotations: %v\ndevices: %v, variables: %v\n", annotations, devices, env)
}
EOF
go run -mod=mod ./pkg/runtime-tools/probe 2>../log >../seen || { cat ../log; exit 1; }
cat ../seen && diff - ../seen <<'EOF'
errors: <nil> <nil>
annotations: map[map[] <nil>:true map[own:new] <nil>:true]
devices: map[map[] <nil>:true map[ens6:{net2}] <nil>:true], variables: map[[A=1 B=2] <nil>:true]
EOF
