// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package packaging has the files for installing the suite on a node, and for monitoring a fleet of nodes. The Go
// package itself contains only tests. The files are:
//
//	package          builds .deb, .rpm and .tar.gz, an SBOM, and checksums: make package
//	release          builds all files of a release from its tag: make release
//	nfpm.yaml        the contents of a .deb and an .rpm
//	*.sh             the scripts that run at installation and removal
//	image            the program that makes a container image: make image
//	chart            a Helm chart; its DaemonSet uses that image to install the suite
//	kubernetes       the objects of the chart, rendered with two files of values, for kubectl apply
//	render           the program that renders the chart, and the tests of all YAML here
//	rules            the tests of alerts.yaml, which run the engine of Prometheus
//	expression       a program for tests: computes the number of pods of a node as Karpenter and nodeadm do
//	kubectl          a kubectl plugin for a whole cluster, and the manifest with which krew installs the plugin
//	platforms        user data and configurations for EKS, Karpenter, kOps, k3s, Talos and others
//	cloud-init.yaml  an example of user data that makes an instance a node
//	alerts.yaml      alerting rules of Prometheus for the output of cni-ipvlan-vpc-k8s-tool metrics
//	dashboard.json   a Grafana dashboard for the same output
//
// A .deb or .rpm installs its systemd units, but does not enable them, because a node without a conflist does not need
// them. The removal of the package leaves the state in /run, because running pods need it.
package packaging
