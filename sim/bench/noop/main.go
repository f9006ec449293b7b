// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command noop is a CNI plugin that only reads its JSON input and returns prevResult. A chain of noops shows the
// minimum cost of a chain with the same number of Go plugins.
package main

import (
	"encoding/json"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	does := skel.CNIFuncs{Add: add, Del: nothing, Check: nothing, GC: nothing, Status: nothing}
	skel.PluginMainFuncs(does, version.All, "noop")
}

func add(args *skel.CmdArgs) error {
	var conf types.PluginConf
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return err
	}
	if conf.RawPrevResult == nil {
		return types.PrintResult(&types100.Result{CNIVersion: conf.CNIVersion}, conf.CNIVersion)
	}
	if err := version.ParsePrevResult(&conf); err != nil {
		return err
	}
	return types.PrintResult(conf.PrevResult, conf.CNIVersion)
}

func nothing(*skel.CmdArgs) error { return nil }
