// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package packaging has the files that install the suite on a node, and that monitor a fleet of nodes. The package
// itself contains only tests. The files are:
//
//	package          builds .deb, .rpm and .tar.gz, an SBOM, and checksums: make package
//	release          builds all files of a release from its tag: make release
//	nfpm.yaml        the contents of a .deb and an .rpm
//	*.sh             the scripts that run at installation and removal
//	image            the program that makes a container image: make image
//	chart            a Helm chart, whose DaemonSet installs by that image
//	kubernetes       the objects of the chart with two files of values, for kubectl apply
//	render           the program that renders the chart, and the tests of all YAML here
//	rules            the tests of alerts.yaml, by the engine of Prometheus
//	expression       the program that evaluates numbers of pods as Karpenter and nodeadm do, for tests
//	kubectl          the plugin of kubectl for a whole cluster, and its manifest for krew
//	platforms        user data and configurations for EKS, Karpenter, kOps, k3s, Talos and others
//	cloud-init.yaml  an example of user data that makes an instance a node
//	alerts.yaml      rules for Prometheus over the output of cni-ipvlan-vpc-k8s-tool metrics
//	dashboard.json   a Grafana dashboard over the same output
//
// A .deb or .rpm installs its systemd units, and enables none of them. The operator copies the conflist after the
// installation, and a node without a conflist does not need the units. The removal of the package leaves only the state
// in /run, because running pods need this state.
package packaging
