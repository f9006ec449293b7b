// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Render prints the objects of a Helm chart, as helm template does, with Helm's own engine.
//
//	render CHART RELEASE NAMESPACE [VALUES.yaml]
//
// The helm program would print the same text, but takes three times as long to build.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

func main() {
	text, err := "", errors.New("want CHART RELEASE NAMESPACE [VALUES.yaml]")
	if args := append(os.Args[1:], ""); len(args) == 4 || len(args) == 5 {
		text, err = render(args[0], args[1], args[2], args[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "render: error:", err)
		os.Exit(1)
	}
	fmt.Print(text)
}

// render returns the objects of a chart, each as a YAML document. Without a file of values, it uses the values of the
// chart.
func render(dir, release, namespace, file string) (string, error) {
	chart, err := loader.Load(dir)
	if err != nil {
		return "", err
	}
	values := common.Values{}
	if file != "" {
		if values, err = common.ReadValuesFile(file); err != nil {
			return "", err
		}
	}
	options := common.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, options, nil)
	if err != nil {
		return "", err
	}
	rendered, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return "", err
	}
	// ConfigMaps come before the objects that mount them, as in helm's order of kinds.
	names := slices.SortedFunc(maps.Keys(rendered), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	var b strings.Builder
	for _, name := range names {
		if ext := filepath.Ext(name); ext == ".yaml" && strings.TrimSpace(rendered[name]) != "" {
			fmt.Fprintf(&b, "---\n%s\n", strings.TrimSpace(rendered[name]))
		}
	}
	return b.String(), nil
}

func rank(name string) int {
	if filepath.Base(name) == "configmap.yaml" {
		return 0
	}
	return 1
}
